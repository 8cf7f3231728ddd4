package shared

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/flight"
)

// Group shares loads with the other processes that use the same store and space. All methods may be called side by side.
// It must be closed.
type Group[V any] struct {
	store Store
	space string
	opts  Options[V]

	// callers joins the callers of this process: its loads are journeys, which lead, follow or go alone. origin runs
	// the real loads, under the budget.
	callers *flight.Group[string, got[V]]
	origin  *flight.Group[string, V]

	stop context.CancelFunc // of the watcher
	over chan struct{}

	mu      sync.Mutex
	waits   map[string][]chan struct{} // followers, by key
	downTo  time.Time                  // the store is not asked until then
	downErr error

	led, followed, succeeded, alone, lost atomic.Uint64
}

// got is what a journey brings.
type got[V any] struct {
	val        V
	superseded bool
	loaded     bool // here
}

// New makes a Group on a store. It panics on Local options that flight.New refuses.
func New[V any](store Store, space string, opts Options[V]) *Group[V] {
	opts = opts.withDefaults()
	if err := opts.Local.Validate(); err != nil {
		panic(err)
	}
	g := &Group[V]{store: store, space: space, opts: opts, waits: make(map[string][]chan struct{}), over: make(chan struct{})}
	l := opts.Local
	outer := flight.Options[string, got[V]]{
		// A journey may see one leader die and then load for itself.
		Timeout:          2*l.Timeout + 2*opts.Lease,
		MaxWaiters:       l.MaxWaiters,
		MaxWaitersPerKey: l.MaxWaitersPerKey,
		MaxFlights:       l.MaxFlights,
		OnLastLeave:      l.OnLastLeave,
		Backoff:          flight.Backoff{Off: true}, // the store's, or origin's
		NotShareableFor:  l.NotShareableFor,
		Remember:         l.Remember,
	}
	if l.Timeout < 0 {
		outer.Timeout = -1
	}
	if dup := l.Copy; dup != nil {
		outer.Copy = func(v got[V]) got[V] { return got[V]{dup(v.val), v.superseded, v.loaded} }
	}
	if fill := l.Fill; fill != nil {
		outer.Fill = func(k string, v got[V]) {
			if !v.superseded {
				fill(k, v.val)
			}
		}
	}
	l.Fill, l.Copy = nil, nil
	l.OnLastLeave = flight.CancelLoad
	g.callers, g.origin = flight.New(outer), flight.New(l)
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	go g.watch(ctx)
	return g
}

// KeyOf writes a flight.Key so that no two keys are written alike.
func KeyOf(k flight.Key) string {
	return fmt.Sprintf("%d:%s%d:%s%d:%s%s", len(k.Tenant), k.Tenant, len(k.Principal), k.Principal, len(k.Space), k.Space, k.Name)
}

// Do is flight.Group.Do for all processes: it gives the value that a load brings which runs in one of them, or was begun
// by this call. Besides that method's errors it returns *flight.Error with a *RemoteError for a failure elsewhere, and
// ErrStoreDown.
func (g *Group[V]) Do(ctx context.Context, key string, load flight.Load[V]) (V, error) {
	r, err := g.DoWith(ctx, key, flight.With{}, load)
	return r.Value, err
}

// DoWith is Do with more to say, and more to learn. Result.Led says that this process loaded, for this caller;
// Result.Generation is of this process.
func (g *Group[V]) DoWith(ctx context.Context, key string, w flight.With, load flight.Load[V]) (flight.Result[V], error) {
	fresh := w.Fresh
	w.Fresh = false
	for {
		r, err := g.callers.DoWith(ctx, key, w, func(ctx context.Context) (got[V], error) { return g.journey(ctx, key, w, load) })
		r.Superseded = r.Superseded || r.Value.superseded
		if err == nil && r.Superseded && fresh {
			fresh = false // once
			continue
		}
		return flight.Result[V]{
			Value: r.Value.val, Shared: r.Shared, Led: r.Led && r.Value.loaded, Superseded: r.Superseded, Generation: r.Generation,
		}, err
	}
}

// Forget parts what any process loads under key now from all who call from now on. An error leaves it unknown whether
// the other processes have been told; repeat it.
func (g *Group[V]) Forget(ctx context.Context, key string) error {
	err := g.store.Forget(ctx, g.space, key)
	g.origin.Forget(key)
	g.callers.Forget(key)
	return err
}

// ForgetAll is Forget for every key of the space.
func (g *Group[V]) ForgetAll(ctx context.Context) error {
	err := g.store.ForgetAll(ctx, g.space)
	g.origin.ForgetAll()
	g.callers.ForgetAll()
	return err
}

// Close refuses further calls and waits for what runs; see flight.Group.Close.
func (g *Group[V]) Close(ctx context.Context) error {
	err := g.callers.Close(ctx)
	if e := g.origin.Close(ctx); err == nil {
		err = e
	}
	g.stop()
	<-g.over
	return err
}

// Stats is a snapshot. Counters only grow.
type Stats struct {
	Callers flight.Stats // waiters and journeys of this process
	Origin  flight.Stats // its loads at the origin, and its budget

	Led       uint64 // leads of this process
	Followed  uint64 // journeys that followed another's lead
	Succeeded uint64 // leads taken over from one that had died or given up
	Alone     uint64 // journeys without the store's help: it was down, or the key is not shareable
	Lost      uint64 // leads that could not be renewed, or were not the leading one any more when they ended
}

// Stats takes a snapshot.
func (g *Group[V]) Stats() Stats {
	return Stats{
		Callers: g.callers.Stats(), Origin: g.origin.Stats(),
		Led: g.led.Load(), Followed: g.followed.Load(), Succeeded: g.succeeded.Load(), Alone: g.alone.Load(), Lost: g.lost.Load(),
	}
}

// journey brings the value of key to this process. ctx ends when nobody here waits any more.
func (g *Group[V]) journey(ctx context.Context, key string, w flight.With, load flight.Load[V]) (got[V], error) {
	if w.Alone {
		return g.goAlone(ctx, key, w, load, true)
	}
	b := Begin{Space: g.space, Key: key, Token: rand.Text(), Lease: g.opts.Lease, MaxAge: g.opts.MaxAge}
	for {
		woken, done := g.listen(key) // before asking, so that no event falls between
		asked := time.Now()
		st, err := g.begin(ctx, b)
		if err != nil {
			done()
			if ctx.Err() != nil {
				return got[V]{}, ctx.Err()
			}
			if g.opts.OnStoreFailure == FailFast {
				return got[V]{}, fmt.Errorf("%w: %w", ErrStoreDown, err)
			}
			return g.goAlone(ctx, key, w, load, false)
		}
		switch st.Kind {
		case Lead:
			done()
			if b.After != 0 {
				g.succeeded.Add(1)
			}
			v, again, err := g.lead(ctx, key, w, st, asked, load)
			if !again {
				return v, err
			}
			b.Token, b.After = rand.Text(), st.Fence // follow whoever has taken over
		case Follow:
			if b.After == 0 {
				g.followed.Add(1)
			}
			b.After = st.After
			err := g.wait(ctx, woken, min(g.opts.Poll, st.Left+time.Millisecond))
			done()
			if err != nil {
				return got[V]{}, err
			}
		case Done:
			done()
			return g.arrive(ctx, key, w, st, load)
		case Held:
			done()
			return got[V]{}, &flight.BackoffError{
				Err: remote(st.Result), Class: st.Result.Class, Failures: st.Failures, Wait: st.Left,
			}
		default: // Alone
			done()
			return g.goAlone(ctx, key, w, load, true)
		}
	}
}

func remote(r Result) error {
	return &flight.Error{Class: r.Class, Err: &RemoteError{r.Message}}
}

// arrive takes home what another process brought.
func (g *Group[V]) arrive(ctx context.Context, key string, w flight.With, st State, load flight.Load[V]) (got[V], error) {
	switch st.Result.Status {
	case Loaded:
		v, err := g.opts.Decode(st.Result.Value)
		if err != nil {
			return got[V]{}, fmt.Errorf("flight: decode the value of another process: %w", err)
		}
		return got[V]{v, st.Result.Superseded, false}, nil
	case Failed:
		return got[V]{}, remote(st.Result)
	}
	return g.goAlone(ctx, key, w, load, true)
}

// goAlone loads within the local budget. own: the key is not shareable, each caller loads for herself.
func (g *Group[V]) goAlone(ctx context.Context, key string, w flight.With, load flight.Load[V], own bool) (got[V], error) {
	g.alone.Add(1)
	w.Alone = own
	r, alone, err := g.load(ctx, key, w, load)
	if alone != nil {
		err = alone // the callers who wait here must not have it either
	}
	return got[V]{r.Value, r.Superseded, r.Led}, err
}

// begin asks the store, unless it has just not answered.
func (g *Group[V]) begin(ctx context.Context, b Begin) (State, error) {
	g.mu.Lock()
	down := g.downErr
	if down != nil && time.Now().After(g.downTo) {
		g.downTo, down = time.Now().Add(time.Second), nil // one tries
	}
	g.mu.Unlock()
	if down != nil {
		return State{}, down
	}
	ask, cancel := context.WithTimeout(ctx, g.opts.StoreTimeout)
	defer cancel()
	st, err := g.store.Begin(ask, b)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case err == nil:
		g.downErr = nil
	case ctx.Err() == nil:
		g.downErr, g.downTo = err, time.Now().Add(time.Second)
	}
	return st, err
}

// listen makes a channel that is closed at the next event of key.
func (g *Group[V]) listen(key string) (<-chan struct{}, func()) {
	c := make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits[key] = append(g.waits[key], c)
	return c, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		for i, o := range g.waits[key] {
			if o == c {
				g.waits[key] = append(g.waits[key][:i:i], g.waits[key][i+1:]...)
				break
			}
		}
		if len(g.waits[key]) == 0 {
			delete(g.waits, key)
		}
	}
}

func (g *Group[V]) wait(ctx context.Context, woken <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(max(d, time.Millisecond))
	defer t.Stop()
	select {
	case <-woken:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// watch hears what happens in the space until the group is closed.
func (g *Group[V]) watch(ctx context.Context) {
	defer close(g.over)
	g.store.Watch(ctx, g.space, func(e Event) { //nolint:errcheck // polling remains
		switch e.What {
		case Ended:
			g.wake(e.Key)
		case Forgotten:
			g.callers.Forget(e.Key)
			g.forgotten(e.Key, false)
			g.wake(e.Key)
		case AllGone, Missed:
			g.callers.ForgetAll()
			g.forgotten("", true)
			g.wakeAll()
		}
	})
}

func (g *Group[V]) forgotten(key string, all bool) {
	if g.opts.OnForget != nil {
		g.opts.OnForget(key, all)
	}
}

func (g *Group[V]) wake(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.waits[key] {
		close(c)
	}
	delete(g.waits, key)
}

func (g *Group[V]) wakeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, cs := range g.waits {
		for _, c := range cs {
			close(c)
		}
		delete(g.waits, key)
	}
}

// message is a failure as it travels: its text, of bounded length.
func message(err error) string {
	s := strings.ToValidUTF8(err.Error(), "?")
	if len(s) > 1024 {
		s = strings.ToValidUTF8(s[:1024], "")
	}
	return s
}

// classOf is the class of a failure, and whether it is one that others should be told at all.
func (g *Group[V]) classOf(err error) (c flight.Class, tell bool) {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, flight.ErrTimeout),
		errors.Is(err, flight.ErrAbandoned), errors.Is(err, ErrLeaseLost),
		errors.Is(err, flight.ErrBusy), errors.Is(err, flight.ErrClosed), errors.Is(err, flight.ErrRecursive):
		return flight.Unclassed, false // it says something of this process
	}
	var p *flight.PanicError
	var x *flight.GoexitError
	if errors.As(err, &p) || errors.As(err, &x) {
		return flight.Unclassed, true
	}
	return g.opts.Local.Classify(err), true
}
