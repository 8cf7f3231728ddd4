package affinity

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ushergo/usher/keylock"
)

// Options of Open. Space, Instance and Build are required.
type Options[S any] struct {
	// Space is what the instances of one service have in common.
	Space string
	// Instance names this one. Danger: two processes of one name at once; the earlier started is told to stop.
	Instance string
	// Epoch is greater after each start of the instance; default: the time in µs.
	Epoch uint64
	// Addr is where requests for this instance's sessions go: host:port, or a URL. Default: none, and nothing can be
	// brought here.
	Addr string

	// Build makes the session of a key that was claimed. Its context ends at BuildFor, with the claim, and with the caller
	// who waits for it; fence is the session's generation. It must not go through Use for the same key.
	Build func(ctx context.Context, key string, fence uint64) (S, error)
	// Close frees what Build made. It is called once for each session by a goroutine of its own, also while a late caller
	// still uses it: it has to end what hangs. Default: nothing.
	Close func(s S, why error)

	// TTL is how long a row lives without a refresh, and so how long the directory may be away while sessions go on;
	// default 15m. Danger: shorter than an outage of the directory, all sessions end in it. What is dead is evicted by
	// comparison long before.
	TTL time.Duration
	// Margin is how long before the row's expiry an owner that could not confirm it stops; default TTL/10.
	Margin time.Duration
	// Every is how often rows are confirmed, in batches, and the instance announced; default 5s. An evicted owner hears of
	// it so late at most, unless it is used before.
	Every time.Duration
	// BuildFor is how long Build may take; default 60s. A builder that dies keeps its key so long at most. The time counts
	// towards Locks.MaxHold of whoever waits for it, so MaxHold should be longer.
	BuildFor time.Duration
	// Idle ends a session that nobody used for so long; default 30m. Negative: never.
	Idle time.Duration
	// MaxLife ends a session after so long, between two uses; default: never.
	MaxLife time.Duration
	// MaxSessions is how many there may be here; beyond it new ones are ErrCapacity. Default: no limit.
	MaxSessions int
	// DrainFor is how long the sessions have after somebody asked this instance to drain, unless it was said with it; default
	// 5m. What is then left is closed.
	DrainFor time.Duration
	// CallTimeout bounds each call to the directory; default 2s.
	CallTimeout time.Duration

	// Locks are the options of the per-key lock; its Forced and Observer are called beside the owner's own.
	Locks keylock.Options

	Observer Observer     // default: nobody
	Logger   *slog.Logger // default: nobody
}

// Observer is told what happens to sessions. Its methods must be quick and may be called by many goroutines.
type Observer interface {
	// Built tells how long a build took, and its error.
	Built(key string, took time.Duration, err error)
	// Retired tells why a session ended: ErrForced of keylock, ErrLost, ErrUnconfirmed, ErrIdle, ErrAge, ErrClosed, …
	Retired(key string, why error)
	// Refreshed tells how many rows were confirmed and refused in one round, or that the directory did not answer.
	Refreshed(held, lost int, err error)
}

func (o *Options[S]) defaults() error {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&o.TTL, 15*time.Minute)
	set(&o.Margin, o.TTL/10)
	set(&o.Every, 5*time.Second)
	set(&o.BuildFor, time.Minute)
	set(&o.Idle, 30*time.Minute)
	set(&o.DrainFor, 5*time.Minute)
	set(&o.CallTimeout, 2*time.Second)
	if o.Epoch == 0 {
		o.Epoch = uint64(time.Now().UnixMicro())
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Build == nil {
		return bad("Build: what makes a session is missing")
	}
	if o.Margin+2*o.Every > o.TTL {
		return bad("TTL %v: must be longer than Margin (%v) and two rounds of Every (%v)", o.TTL, o.Margin, o.Every)
	}
	id := Identity{o.Instance, o.Epoch}
	return errors.Join(CheckSpace(o.Space), id.check(), checkText("addr", o.Addr, 512),
		within("TTL", o.TTL, time.Millisecond, 24*time.Hour), within("Every", o.Every, time.Millisecond, time.Hour/4),
		within("BuildFor", o.BuildFor, time.Millisecond, time.Hour))
}

// Why sessions end, and why there is none.
var (
	// ErrLost: the directory says that the key is another's, or nobody's.
	ErrLost = errors.New("affinity: the directory no longer names this instance as the session's owner")
	// ErrUnconfirmed: the directory could not be asked until shortly before the row's expiry.
	ErrUnconfirmed = errors.New("affinity: the directory could not be asked for so long that the session may be another's")
	// ErrSuperseded: a later start of the same instance lives.
	ErrSuperseded = errors.New("affinity: a later start of this instance has been announced; give each its own name")
	// ErrIdle: nobody used the session.
	ErrIdle = errors.New("affinity: nobody used the session")
	// ErrAge: the session has lived for MaxLife.
	ErrAge = errors.New("affinity: the session has had its time")
	// ErrClosed: the owner is closed.
	ErrClosed = errors.New("affinity: this instance is stopping")
	// ErrDraining: new sessions go elsewhere.
	ErrDraining = errors.New("affinity: this instance takes no new sessions")
	// ErrCapacity: there are MaxSessions here.
	ErrCapacity = errors.New("affinity: this instance has as many sessions as it can")
)

// NotOwnerError says that the session is another instance's.
type NotOwnerError struct{ Row Row }

func (e *NotOwnerError) Error() string {
	return "affinity: the session is " + e.Row.State.String() + " at instance " + e.Row.Owner.Instance
}
