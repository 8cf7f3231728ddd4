package affinity

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"
	"unicode/utf8"
)

// Store is the directory. Engines implement it; affinitytest holds each of them to what is said here. Every method decides
// in one atomic step at the store's own time, which it reports (At). An error means that the outcome is unknown; all of
// them may be repeated. They are safe for concurrent use.
type Store interface {
	// Claim asks for a key.
	Claim(ctx context.Context, c Claim) (Claimed, error)
	// Refresh confirms rows, each by itself; the answers are in the order of the items. When it fails, some may have been
	// confirmed.
	Refresh(ctx context.Context, r Refresh) (Refreshed, error)
	// Clear takes a row away if it is the one that was named.
	Clear(ctx context.Context, c Clear) (Cleared, error)
	// Get reads a row. Its State is None where there is none.
	Get(ctx context.Context, space, key string) (Row, error)
	// Announce tells that an instance lives.
	Announce(ctx context.Context, a Announce) (Announced, error)
	// Instances lists the living ones by their ids.
	Instances(ctx context.Context, space string) ([]Instance, error)
	// Drain asks an instance to take no new sessions, or again to take some. false: no such instance lives.
	Drain(ctx context.Context, d Drain) (bool, error)
}

var (
	// ErrUnavailable: the directory does not answer. Sessions that exist go on.
	ErrUnavailable = errors.New("affinity: the directory does not answer; existing sessions go on, new ones have to wait")
	// ErrForeign: the store holds something under our name that this version cannot read. The error that wraps it names
	// the key and says what to do.
	ErrForeign = errors.New("affinity: the store holds a record of another layout")
	// ErrBadRequest: a name or a time that cannot be. The error that wraps it names the field.
	ErrBadRequest = errors.New("affinity: bad request")
)

// State of a row.
type State uint8

const (
	None     State = iota
	Building       // claimed; the session is being built, until a deadline
	Ready
)

func (s State) String() string { return [...]string{"none", "building", "ready"}[min(s, Ready)] }

// Identity is one start of one instance.
type Identity struct {
	Instance string // 1 to 128 of A-Z a-z 0-9 . _ : -
	Epoch    uint64 // greater after each start; not 0
}

// Row is what the directory says of a key.
type Row struct {
	State      State
	Owner      Identity
	Addr       string // where requests for the session go: host:port, or a URL
	Session    string // the session's id, as its owner named it; "" while building
	Generation uint64
	Left       time.Duration // until it expires, at the time of the answer
	At         time.Time     // of the answer
}

// Claim asks for a key before a session is built.
type Claim struct {
	Space, Key string
	Owner      Identity
	Addr       string
	Token      string        // unique for this attempt; repeat it when the answer was lost
	Build      time.Duration // until then the session must be ready (Refresh); 1 ms to 1 h
}

// Verdict of a claim.
type Verdict uint8

const (
	Yours  Verdict = iota + 1 // build the session; Row.Generation is yours
	Theirs                    // Row is the owner's
	Spent                     // the claim of this token was granted, and is over: make another
)

func (v Verdict) String() string {
	return [...]string{"none", "yours", "theirs", "spent"}[min(v, Spent)]
}

// Claimed is the answer to Claim.
type Claimed struct {
	Verdict Verdict
	Row     Row
}

// Refresh confirms rows of one owner.
type Refresh struct {
	Space string
	Owner Identity
	TTL   time.Duration // from now; 1 ms to 24 h
	Items []Item
}

// Item is one row to confirm. Ready makes a building row a ready one, which has Session; a row that is building keeps its
// deadline otherwise.
type Item struct {
	Key        string
	Generation uint64
	Ready      bool
	Session    string
}

// Refreshed is the answer to Refresh.
type Refreshed struct {
	At   time.Time
	Held []bool // false: the row is not this owner's, or no more; stop
}

// Clear takes a row away. It is how an owner gives it back, and how whoever finds the owner dead evicts it.
type Clear struct {
	Space, Key string
	Owner      Identity
	Generation uint64
}

// Cleared is the answer to Clear.
type Cleared struct {
	At      time.Time
	Cleared bool // it was that one, now or when this was asked before; false: nothing was changed
}

// Announce tells that an instance lives, for TTL. With TTL 0 it departs.
type Announce struct {
	Space    string
	Owner    Identity
	Addr     string
	Sessions int // it has now
	Max      int // it can have; 0: no limit
	Draining bool
	TTL      time.Duration
}

// Announced is the answer to Announce.
type Announced struct {
	At         time.Time
	Superseded bool          // a later start of the same instance lives: stop
	Draining   bool          // somebody asked it to drain
	DrainFor   time.Duration // how long its sessions have then; 0: as long as the instance says
}

// Instance is one that lives.
type Instance struct {
	Owner    Identity
	Addr     string
	Sessions int
	Max      int
	Draining bool // by itself, or because somebody asked for it
	Left     time.Duration
}

// Drain asks the living instance of that name to drain, or no longer to.
type Drain struct {
	Space, Instance string
	On              bool
	For             time.Duration // how long its sessions have; 1 ms to 24 h, or 0: as long as the instance says
}

var (
	spaceName    = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
	instanceName = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,128}$`)
)

// MaxKey is the longest key, in bytes.
const MaxKey = 512

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrBadRequest}, args...)...)
}

// CheckSpace says what is wrong with a space's name. Engines ask it.
func CheckSpace(space string) error {
	if !spaceName.MatchString(space) {
		return bad("space %q: use 1 to 64 of A-Z a-z 0-9 _ . -", space)
	}
	return nil
}

// CheckKey says what is wrong with a space's name or a key.
func CheckKey(space, key string) error {
	if key == "" || len(key) > MaxKey {
		return bad("key: 1 to %d bytes, not %d", MaxKey, len(key))
	}
	if !utf8.ValidString(key) {
		return bad("key: must be UTF-8; encode other bytes, as base64")
	}
	return CheckSpace(space)
}

func (o Identity) check() error {
	if !instanceName.MatchString(o.Instance) {
		return bad("instance %q: use 1 to 128 of A-Z a-z 0-9 _ . : -", o.Instance)
	}
	if o.Epoch == 0 || o.Epoch > maxNumber {
		return bad("epoch %d: a number of 1 to 2^53 that is greater after each start, like the time in microseconds", o.Epoch)
	}
	return nil
}

// maxNumber is what Lua and JavaScript can still tell from its neighbours.
const maxNumber = 1 << 53

func checkText(name, s string, most int) error {
	if len(s) > most {
		return bad("%s: at most %d bytes, not %d", name, most, len(s))
	}
	if !utf8.ValidString(s) {
		return bad("%s: must be UTF-8", name)
	}
	return nil
}

func within(name string, d, low, high time.Duration) error {
	if d < low || d > high {
		return bad("%s %v: from %v to %v", name, d, low, high)
	}
	return nil
}

// Check says what is wrong with a claim.
func (c Claim) Check() error {
	if c.Token == "" || len(c.Token) > 128 {
		return bad("token: 1 to 128 bytes that nobody else uses")
	}
	return errors.Join(CheckKey(c.Space, c.Key), c.Owner.check(), checkText("addr", c.Addr, 512), within("build", c.Build, time.Millisecond, time.Hour))
}

// Check says what is wrong with a refresh.
func (r Refresh) Check() error {
	if err := errors.Join(CheckSpace(r.Space), r.Owner.check(), within("ttl", r.TTL, time.Millisecond, 24*time.Hour)); err != nil {
		return err
	}
	for _, it := range r.Items {
		if err := errors.Join(CheckKey(r.Space, it.Key), checkText("session", it.Session, 256)); err != nil {
			return err
		}
	}
	return nil
}

// Check says what is wrong with a clear.
func (c Clear) Check() error { return errors.Join(CheckKey(c.Space, c.Key), c.Owner.check()) }

// Check says what is wrong with an announcement.
func (a Announce) Check() error {
	if a.Sessions < 0 || a.Max < 0 {
		return bad("sessions and max: not below 0")
	}
	return errors.Join(CheckSpace(a.Space), a.Owner.check(), checkText("addr", a.Addr, 512), within("ttl", a.TTL, 0, time.Hour))
}

// Check says what is wrong with a drain.
func (d Drain) Check() error {
	if d.For != 0 {
		if err := within("drain", d.For, time.Millisecond, 24*time.Hour); err != nil {
			return err
		}
	}
	return errors.Join(CheckSpace(d.Space), Identity{d.Instance, 1}.check())
}
