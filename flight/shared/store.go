package shared

import (
	"context"
	"errors"
	"time"

	"github.com/ushergo/usher/flight"
)

// Store is what the processes that share loads have in common. Engines implement it; users hold a Group. Every method
// decides in one atomic step at the store's own time, which it reports (At), and none may wait for another caller.
//
// An error means that the outcome is unknown. Begin, Renew and Finish may be repeated: the same Token, and the same
// Fence, get the same answer.
type Store interface {
	// Begin asks what to do about a key.
	Begin(ctx context.Context, b Begin) (State, error)
	// Renew extends a lead. Held is false when another leads or the record is gone: stop loading.
	Renew(ctx context.Context, r Renew) (Renewed, error)
	// Finish ends a lead, with what it brought.
	Finish(ctx context.Context, f Finish) (Finished, error)
	// Forget parts what is being loaded under the key now from all who ask later.
	Forget(ctx context.Context, space, key string) error
	// ForgetAll does that for all keys of a space. When it fails, some may have been parted and some not: repeat it.
	ForgetAll(ctx context.Context, space string) error
	// Watch tells what happens in a space until ctx ends, and returns then with nil. It may lose events, and says so with
	// Missed when it begins and whenever it may have. told must be quick.
	Watch(ctx context.Context, space string, told func(Event)) error
}

// ErrForeign: the store holds something under our name that this version cannot read. The error that wraps it names
// the key and says what to do.
var ErrForeign = errors.New("flight: the store holds a record of another layout")

// Begin is a question by a process that wants the value of a key.
type Begin struct {
	Space, Key string
	Token      string        // of this attempt to lead; unique
	Lease      time.Duration // of the lead, if it is granted
	After      uint64        // 0: a new question. Else the After of the Follow that was answered before
	MaxAge     time.Duration // a new question may be answered with a finished value not older than this
}

// Kind is what a State says.
type Kind uint8

const (
	Lead   Kind = iota + 1 // load it: you hold Fence for Left
	Follow                 // another loads it: wait for an event or for Left, then ask again with After
	Done                   // here is the result
	Held                   // it failed lately: leave it alone for Left
	Alone                  // it cannot be shared: load it for yourself
)

func (k Kind) String() string {
	return [...]string{"none", "lead", "follow", "done", "held", "alone"}[min(k, Alone)]
}

// State is the answer to Begin.
type State struct {
	Kind     Kind
	At       time.Time     // of the decision, by the store's clock
	Fence    uint64        // of the lead, or of the result
	After    uint64        // for the next Begin
	Left     time.Duration // of the lease, or of the hold
	Failures int           // in a row, before this
	Result   Result        // of Done and Held
}

// Status is how a load ended.
type Status uint8

const (
	Released   Status = iota + 1 // without a result: another may try
	Loaded                       // with a value
	Failed                       // with an error
	Unsharable                   // with a value for its caller alone
)

// Result is what a lead brought.
type Result struct {
	Status     Status
	Value      []byte
	Class      flight.Class // of a failure
	Message    string       // of a failure
	Superseded bool         // a Forget came while it was being loaded
}

// Finish ends the lead with that Fence.
type Finish struct {
	Space, Key string
	Fence      uint64
	Result     Result
	Keep       time.Duration // how long the result is kept for those who follow
	Hold       time.Duration // how long a failing or unsharable key is left alone
}

// Finished is the answer to Finish.
type Finished struct {
	At         time.Time
	Lost       bool // another leads, or nobody remembers: nothing was published
	Superseded bool // it was published for those alone who asked before the Forget
}

// Renew extends the lead with that Fence by Lease from now.
type Renew struct {
	Space, Key string
	Fence      uint64
	Lease      time.Duration
}

// Renewed is the answer to Renew.
type Renewed struct {
	At   time.Time
	Held bool
}

// What is an event's kind.
type What uint8

const (
	Ended     What = iota + 1 // a lead of the key has ended: ask again
	Forgotten                 // Forget(key)
	AllGone                   // ForgetAll
	Missed                    // anything may have happened
)

// Event is something that happened in a space.
type Event struct {
	What What
	Key  string // of Ended and Forgotten
}
