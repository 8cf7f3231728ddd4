package room

import (
	"errors"
	"time"
)

// Op says what a Command asks for.
type Op uint8

const (
	OpTick      Op = iota // what time brings: schedule, expiry, abandonment, promotion
	OpEnter               // a place in the room: the presented ticket's, the request id's, or a new one
	OpStatus              // what became of a ticket; also a sign of life
	OpHeard               // signs of life of many tickets
	OpClaim               // first use of an admission
	OpRenew               // use of an admission
	OpLeave               // give up a place or a session
	OpConfigure           // a new configuration
	OpState               // open, pause or close
	OpInstances           // the number of living instances changed
)

// Command is one request to a room's machine. Which fields count depends on Op.
type Command struct {
	Op      Op
	Ref     Ref      // enter (optional), status, claim, renew, leave
	NewID   ID       // enter: the id if a new ticket is made; never used twice
	Request [16]byte // enter: HMAC of the request id; zero: none
	Refs    []Ref    // heard: at most MaxMoves

	// With Ref: when the presented ticket was signed, µs since 1970 (0: not known), and whether a validly signed admission of
	// it was presented too. An engine that may lose in a failover what it has answered takes up again by them what it lost.
	Issued   int64
	Admitted bool

	Rand uint64 // random bits for order "random": tick, leave, enter, configure, state

	Config     *Config // configure
	Digest     string  // configure: of what the file says; empty: the admin API asks
	IfRevision uint64  // configure: only over this revision; 0: over any
	Seed       []byte  // configure: 32 secret random bytes for the next opening
	State      string  // state: open | paused | closed
	Message    string  // state: the operator's words
	Instances  int64   // instances
}

// MaxMoves bounds what one command moves (promotes, expires, abandons). A command that leaves
// work behind says so in Result.More, and ticks go on with it.
const MaxMoves = 500

// TicketState is where a ticket is in its life.
type TicketState uint8

const (
	Waiting TicketState = iota + 1
	Active              // admitted: holds a session
	Ended
)

func (s TicketState) String() string {
	switch s {
	case Waiting:
		return "waiting"
	case Active:
		return "admitted"
	case Ended:
		return "ended"
	}
	return "none"
}

// View is a ticket as a command found or left it.
type View struct {
	Ref
	State    TicketState
	Pos      uint64 // 0: not drawn yet
	Random   bool   // will be drawn at an admission: has no place
	Created  bool   // by this command
	Reason   Reason // once ended
	Claimed  bool
	IdleEnd  time.Duration // admitted: ends this long after the decision unless renewed
	FinalEnd time.Duration // admitted: ends this long after the decision whatever happens
	TokenEnd time.Duration // admitted: an admission token signed now ends then, min(idle, max)
}

// Result is a machine's answer.
type Result struct {
	At     int64 // decision time, µs since 1970
	Cursor       // head of the log after the command
	View   View
	Err    error   // one of the errors below, or nil
	Events []Event // what changed, in order; valid until the machine's next step
	More   bool    // MaxMoves was reached: tick again soon
}

// Answers to commands. They are expected outcomes, not failures; compare with errors.Is.
var (
	ErrClosed      = errors.New("room is closed")
	ErrNotOpen     = errors.New("room is not open yet")
	ErrFull        = errors.New("room is full")
	ErrSpent       = errors.New("request id belongs to a ticket that has ended")
	ErrNoTicket    = errors.New("no such ticket")
	ErrEnded       = errors.New("ticket has ended") // View.Reason says why
	ErrNotAdmitted = errors.New("ticket is not admitted")
	ErrRevision    = errors.New("the room was changed meanwhile")
	ErrIDTaken     = errors.New("ticket id is taken")
	ErrBadCommand  = errors.New("bad command")
)

// Answers of stores and the shell.
var (
	// ErrNotFound: there is no room of that name.
	ErrNotFound = errors.New("no such room")
	// ErrUnavailable: the engine cannot take the command now; nothing was done.
	ErrUnavailable = errors.New("engine unavailable")
	// ErrUnknown: the command may or may not have been done. Ask again with the same ids.
	ErrUnknown = errors.New("outcome unknown")
	// ErrTrimmed: the log no longer reaches back to that position.
	ErrTrimmed = errors.New("the log no longer holds that position")
	// ErrWaiters: a room in which people wait is deleted by force only.
	ErrWaiters = errors.New("people wait in this room")
)
