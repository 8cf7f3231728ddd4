package gate

import (
	"fmt"
	"log/slog"
	"time"
)

// Options of New. The zero value works for keys that Set was called for.
type Options struct {
	// Permits is how many permits a key has that nobody has set: it is made by its first acquire.
	// Default 0: such a key is refused with ErrNotSet. Choose about what the database works on at
	// once, 4 to 20; it is not how many seats are left.
	Permits int
	// Lease is how long a permit is held unless extended; default 30 s, at least 1 ms, at most
	// MaxLease. Longer than the longest transaction; a crashed holder blocks for that long.
	Lease time.Duration
	// Wait is how long an acquire waits for a permit; default 100 ms. Negative: not at all.
	Wait time.Duration
	// MaxWaiting bounds who waits for one key on this node; default 10,000. Beyond it an acquire
	// is refused at once with ErrFull. Negative: nobody waits.
	MaxWaiting int
	// Idle is how long a key that Permits made is kept after its last acquire; default 24 h, at
	// least four leases. Keys that were Set stay until Delete.
	Idle time.Duration

	Logger   *slog.Logger // default: discards
	Observer Observer     // default: sees nothing
}

// Defaults of Options.
const (
	DefaultLease      = 30 * time.Second
	DefaultWait       = 100 * time.Millisecond
	DefaultMaxWaiting = 10_000
	DefaultIdle       = 24 * time.Hour
)

// Validate names the field that is out of bounds and its mend, wrapping ErrBadRequest.
func (o Options) Validate() error {
	if o.Permits < 0 || o.Permits > MaxLimit {
		return fmt.Errorf("%w: permits is %d, must be 0 to %d", ErrBadRequest, o.Permits, MaxLimit)
	}
	if o.Lease != 0 && (o.Lease < time.Millisecond || o.Lease > MaxLease) {
		return fmt.Errorf("%w: lease is %v, must be 1ms to %v", ErrBadRequest, o.Lease, MaxLease)
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = DefaultMaxWaiting
	}
	if o.Idle <= 0 {
		o.Idle = DefaultIdle
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	return o
}

// Observer sees what a gate does, for metrics and traces. Its methods are called from many
// goroutines and must not block. Keys are as many as there are rows: do not make them labels.
type Observer interface {
	// Acquired is called when an acquire was answered; waited is from call to answer.
	Acquired(key string, waited time.Duration, err error)
	// Released is called when a permit was given back; err is ErrExpired where it had expired
	// while it was held.
	Released(key string, err error)
	// Reclaimed is called when n permits of crashed or late holders were taken back.
	Reclaimed(key string, n int)
}

type noObserver struct{}

func (noObserver) Acquired(string, time.Duration, error) {}
func (noObserver) Released(string, error)                {}
func (noObserver) Reclaimed(string, int)                 {}

// An Option changes one acquire.
type Option func(*request)

type request struct {
	cmd   Command
	wait  time.Duration
	given bool // the caller chose the id
}

// Wait is how long this acquire waits at most; 0: not at all.
func Wait(d time.Duration) Option { return func(r *request) { r.wait = d } }

// Lease is how long this acquire's permits are held unless extended.
func Lease(d time.Duration) Option { return func(r *request) { r.cmd.Lease = d } }

// N asks for n permits at once: all or none. One id and one fence name them together.
func N(n int) Option { return func(r *request) { r.cmd.N = n } }

// As names the permit, so that the acquire can be repeated: a repeat with the same id returns
// the same permit and extends nothing. Choose ids at random and never for two acquires.
func As(id ID) Option { return func(r *request) { r.cmd.ID, r.given = id, true } }

// Permits is, for this acquire, what Options.Permits is for all.
func Permits(n int) Option { return func(r *request) { r.cmd.Permits = int64(n) } }
