package affinity

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ushergo/usher/keylock"
)

// Owner is one instance's part: its sessions, the lock on each, and its rows in the directory. Make it with Open and end it
// with Close. Its methods may be called by any goroutine.
type Owner[S any] struct {
	store Store
	opts  Options[S]
	id    Identity
	locks *keylock.Locks

	ctx  context.Context
	stop context.CancelCauseFunc
	wg   sync.WaitGroup
	away sync.WaitGroup // clean-ups

	builds sync.WaitGroup // claims and builds under way

	mu       sync.Mutex
	sessions map[string]*session[S]
	tokens   map[string]string // claims whose answer was lost
	building int
	draining bool
	deadline time.Time     // of the drain that was asked for; zero: none
	drainFor time.Duration // as it was asked for
	failing  error         // the directory's last answer
	counts   Stats
	failed   time.Time // when the call began that says so
	ticked   time.Time // this process ran
	awake    time.Time // what was asked before it counts for nothing: this process stood still
}

// Session is what Use lends.
type Session[S any] struct {
	Value      S
	Key        string
	ID         string // as the directory has it
	Generation uint64 // a fence: later sessions of the key have greater ones
}

type session[S any] struct {
	Session[S]
	ctx       context.Context // ends with the session
	cancel    context.CancelCauseFunc
	born      time.Time
	used      time.Time
	busy      int
	confirmed time.Time // when the last good refresh began: its row lives until TTL later
}

// Open makes an owner and announces it. It does not need the directory to answer.
func Open[S any](store Store, opts Options[S]) (*Owner[S], error) {
	if err := opts.defaults(); err != nil {
		return nil, err
	}
	o := &Owner[S]{
		store: store, opts: opts, id: Identity{opts.Instance, opts.Epoch},
		sessions: make(map[string]*session[S]), tokens: make(map[string]string),
	}
	lock := opts.Locks
	lock.Forced = func(key string, gen uint64) {
		o.opts.Logger.Warn("a task held a session for too long; the session is retired", "key", key)
		o.retire(key, 0, keylock.ErrForced)
		if opts.Locks.Forced != nil {
			opts.Locks.Forced(key, gen)
		}
	}
	o.locks = keylock.New(lock)
	o.ctx, o.stop = context.WithCancelCause(context.Background())
	o.ticked = time.Now()
	o.wg.Go(o.refreshLoop)
	o.wg.Go(o.watchLoop)
	return o, nil
}

// Identity is this owner in the directory.
func (o *Owner[S]) Identity() Identity { return o.id }

// Addr is where this owner is reached.
func (o *Owner[S]) Addr() string { return o.opts.Addr }

// Space is the owner's.
func (o *Owner[S]) Space() string { return o.opts.Space }

// Locks are the lock of every entrance to the sessions.
func (o *Owner[S]) Locks() *keylock.Locks { return o.locks }

// Use runs f on the key's session, one caller at a time and in the order of arrival, and builds the session if there is
// none anywhere. f's context ends with the hold and with the session; its cause says why. f must return then.
//
// Errors of its own: *NotOwnerError, ErrUnavailable (nobody could be asked), ErrDraining and ErrCapacity (for new sessions
// alone), ErrClosed, what Build said, and those of keylock.
func (o *Owner[S]) Use(ctx context.Context, key string, f func(ctx context.Context, s Session[S]) error) error {
	if err := CheckKey(o.opts.Space, key); err != nil {
		return err
	}
	return o.locks.Do(ctx, key, func(ctx context.Context) error {
		s, err := o.enter(ctx, key)
		if err != nil {
			return err
		}
		defer o.leave(s)
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })()
		return f(ctx, s.Session)
	})
}

// enter is called by the holder of the key's lock.
func (o *Owner[S]) enter(ctx context.Context, key string) (*session[S], error) {
	for {
		o.mu.Lock()
		s := o.sessions[key]
		if s == nil {
			o.mu.Unlock()
			return o.claim(ctx, key)
		}
		if o.trusts(s, time.Now()) {
			s.busy++
			o.mu.Unlock()
			return s, nil
		}
		o.mu.Unlock()
		// The loop should have confirmed it long ago: this process has stood still, or the directory is slow. Ask.
		o.refresh(context.WithoutCancel(ctx), []*session[S]{s})
		if time.Since(s.confirmedAt(o)) >= o.opts.TTL-o.opts.Margin {
			o.retire(key, s.Generation, ErrUnconfirmed)
		}
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// trusts says whether a session may be used without asking: it was confirmed lately, or the directory is known to be away;
// and this process has not stood still since. Called with mu held.
func (o *Owner[S]) trusts(s *session[S], now time.Time) bool {
	o.notice(now)
	age := now.Sub(s.confirmed)
	return s.confirmed.After(o.awake) && age < 3*o.opts.Every ||
		o.failing != nil && o.failed.After(o.awake) && age < o.opts.TTL-o.opts.Margin
}

// notice finds out whether the process stood still: watchLoop did not tick for a second longer than it should have. In that
// time others may have found this instance dead. Called with mu held.
func (o *Owner[S]) notice(now time.Time) {
	if now.Sub(o.ticked) > o.tick()+time.Second {
		o.awake = now
	}
	if now.After(o.ticked) {
		o.ticked = now
	}
}

// tick is how often watchLoop looks.
func (o *Owner[S]) tick() time.Duration {
	return max(min(o.opts.Every/5, time.Second), time.Millisecond)
}

func (s *session[S]) confirmedAt(o *Owner[S]) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return s.confirmed
}

func (o *Owner[S]) leave(s *session[S]) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.busy--
	s.used = time.Now()
}

// retire ends a session. gen 0: whichever there is.
func (o *Owner[S]) retire(key string, gen uint64, why error) { o.retireIf(key, gen, why, false) }

// retireIf can leave a session alone that somebody has begun to use.
func (o *Owner[S]) retireIf(key string, gen uint64, why error, unused bool) {
	o.mu.Lock()
	s := o.sessions[key]
	if s == nil || gen != 0 && s.Generation != gen || unused && s.busy > 0 {
		o.mu.Unlock()
		return
	}
	delete(o.sessions, key)
	o.ended(why)
	o.away.Add(1) // before Close can think that all are done
	defer o.away.Done()
	o.mu.Unlock()
	s.cancel(why)
	if o.opts.Observer != nil {
		o.opts.Observer.Retired(key, why)
	}
	o.close(s, why)
	if !errors.Is(why, ErrLost) {
		o.release(key, s.Generation)
	}
}

func (o *Owner[S]) close(s *session[S], why error) {
	if o.opts.Close != nil {
		o.away.Go(func() { o.opts.Close(s.Value, why) })
	}
}

// Retire ends a key's session, as a caller does who finds it broken. false: there was none here.
func (o *Owner[S]) Retire(key string, why error) bool {
	o.mu.Lock()
	s := o.sessions[key]
	o.mu.Unlock()
	if s == nil {
		return false
	}
	o.retire(key, s.Generation, why)
	return true
}

// Owns gives the generation of the session that is here; 0: none. It does not ask the directory.
func (o *Owner[S]) Owns(key string) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.sessions[key]; s != nil {
		return s.Generation
	}
	return 0
}

// Ended is closed when the session of that generation ends; nil where it is not here.
func (o *Owner[S]) Ended(key string, gen uint64) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.sessions[key]; s != nil && s.Generation == gen {
		return s.ctx.Done()
	}
	return nil
}

// Lookup reads the key's row in the directory.
func (o *Owner[S]) Lookup(ctx context.Context, key string) (Row, error) {
	ctx, cancel := context.WithTimeout(ctx, o.opts.CallTimeout)
	defer cancel()
	row, err := o.store.Get(ctx, o.opts.Space, key)
	return row, unavailable(err)
}

// Sessions is how many there are here.
func (o *Owner[S]) Sessions() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.sessions)
}

// Health is nil while new sessions can be made; else readiness should say degraded. It is no reason to restart: sessions go
// on, and it mends itself.
func (o *Owner[S]) Health() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.ctx.Err() != nil:
		return context.Cause(o.ctx)
	case o.draining:
		return ErrDraining
	}
	return o.failing
}

// Drain takes no new sessions and waits until those there are have ended, or ctx; it closes what is left.
func (o *Owner[S]) Drain(ctx context.Context) error {
	o.mu.Lock()
	o.draining = true
	o.mu.Unlock()
	o.announce(ctx)
	tick := time.NewTicker(max(min(o.opts.Every/10, 100*time.Millisecond), time.Millisecond))
	defer tick.Stop()
	for o.Sessions() > 0 {
		select {
		case <-ctx.Done():
			n := o.retireAll(ErrDraining)
			return fmt.Errorf("affinity: %d sessions were closed at the end of the drain: %w", n, context.Cause(ctx))
		case <-tick.C:
		}
	}
	return nil
}

func (o *Owner[S]) retireAll(why error) int {
	o.mu.Lock()
	var keys []string
	for key := range o.sessions {
		keys = append(keys, key)
	}
	o.mu.Unlock()
	for _, key := range keys {
		o.retire(key, 0, why)
	}
	return len(keys)
}

// Close ends all sessions, gives their rows back side by side and departs. It waits for Close of each session, and for builds
// that are under way, whose context ends: for BuildFor at most.
func (o *Owner[S]) Close() error {
	o.mu.Lock()
	if errors.Is(context.Cause(o.ctx), ErrClosed) {
		o.mu.Unlock()
		return nil
	}
	o.mu.Unlock()
	o.stop(ErrClosed)
	o.wg.Wait()
	o.retireAll(ErrClosed)
	o.awaitBuilds()
	o.away.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), o.opts.CallTimeout)
	defer cancel()
	_, err := o.store.Announce(ctx, Announce{Space: o.opts.Space, Owner: o.id})
	return unavailable(err)
}

// awaitBuilds waits for those who reserved a place before the owner was stopped; their sessions are retired at once.
func (o *Owner[S]) awaitBuilds() {
	o.mu.Lock() // whoever reserves from here on is refused
	built := make(chan struct{})
	go func() { o.builds.Wait(); close(built) }()
	o.mu.Unlock()
	late := time.NewTimer(o.opts.BuildFor)
	defer late.Stop()
	select {
	case <-built:
	case <-late.C:
		o.opts.Logger.Error("a build goes on though its context has ended; its session will not be closed here", "space", o.opts.Space)
	}
}

// Attach runs f beside those who use the session, without its lock: for sockets and streams that only watch. A session is
// built, under the lock, where there is none. f's context ends with the session. Errors are those of Use.
func (o *Owner[S]) Attach(ctx context.Context, key string, f func(ctx context.Context, s Session[S]) error) error {
	if err := CheckKey(o.opts.Space, key); err != nil {
		return err
	}
	var s *session[S]
	if err := o.locks.Do(ctx, key, func(ctx context.Context) (err error) {
		s, err = o.enter(ctx, key)
		return err
	}); err != nil {
		if s != nil {
			o.leave(s)
		}
		return err
	}
	defer o.leave(s)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })()
	return f(ctx, s.Session)
}
