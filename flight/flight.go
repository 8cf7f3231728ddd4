package flight

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Load brings the value of one key. It should heed its context: it ends when the load's time is over, or when nobody
// waits any more and the policy is CancelLoad (context.Cause tells which), never because the caller who began it left.
// It carries that caller's values. It may return NotShareable next to a value, and an *Error to name a failure's class.
// A value next to another error is passed on with it, but never remembered.
type Load[V any] func(ctx context.Context) (V, error)

// Group runs one load per key at a time and gives its result to all who asked meanwhile. The zero value is a group
// with default options. A Group must not be copied; all methods may be called side by side.
type Group[K comparable, V any] struct {
	mu     sync.Mutex
	opts   Options[K, V]
	m      *machine[K, V]
	base   time.Time
	timer  *time.Timer // the ticks, for all flights
	ticks  bool        // the timer is set
	rate   *time.Timer // for loads that wait for the budget's rate
	rateAt int64
	filled *sync.Cond                        // a Fill has ended
	idle   *sync.Cond                        // a load has ended
	edges  map[*flight[K, V]][]*flight[K, V] // which load waits for which (ring.go)
	counts counts
	spare  *flight[K, V] // a blank one, for the next load
}

// shell is what the group keeps with a flight besides the machine's part.
type shell[K comparable, V any] struct {
	ctx    *loadContext[K, V]
	load   Load[V]
	val    V
	err    error         // as told to the callers; written before done is closed
	done   chan struct{} // made when somebody must wait
	began  int64         // ns since base; 0: not noted
	alone  bool          // the verdict: not shareable
	early  bool          // Deliver was called
	ringed bool          // an end of an edge (ring.go)
}

// New makes a Group. It panics on options that Validate refuses.
func New[K comparable, V any](opts Options[K, V]) *Group[K, V] {
	if err := opts.Validate(); err != nil {
		panic(err)
	}
	g := &Group[K, V]{opts: opts}
	g.setup()
	return g
}

func (g *Group[K, V]) setup() {
	g.m = newMachine(g.opts)
	g.opts = g.m.opts
	g.m.blank = func() *flight[K, V] {
		if f := g.spare; f != nil {
			g.spare = nil
			return f
		}
		return new(flight[K, V])
	}
	g.base = time.Now().Add(-1) // so that no time is 0
	g.filled, g.idle = sync.NewCond(&g.mu), sync.NewCond(&g.mu)
}

// lock locks, and makes a zero Group ready.
func (g *Group[K, V]) lock() {
	g.mu.Lock()
	if g.m == nil {
		g.setup()
	}
}

func (g *Group[K, V]) now() int64 { return int64(time.Since(g.base)) }

// Do gives the value of key: it joins the load in flight, or starts load. It returns when the value is there, or with
// ctx's error as soon as ctx ends, whatever becomes of the load.
//
// Without a load having run for this caller it returns, at once: a *BusyError (ErrBusy) when a bound is reached, a
// *BackoffError while a failing key is left alone, ErrRecursive, ErrArgs, ErrClosed. Else what the load returned, or
// ErrTimeout, *PanicError, *GoexitError.
//
// If ctx can never be cancelled, a load that this call starts runs in the calling goroutine, and the call cannot
// return before it does. (A Goexit in the load then ends that goroutine, as it should; others get *GoexitError.)
func (g *Group[K, V]) Do(ctx context.Context, key K, load Load[V]) (V, error) {
	var r told[V]
	if err := g.do(ctx, key, &plain, load, &r); err != nil {
		return r.val, err
	}
	if g.opts.Copy != nil && r.err == nil {
		return g.copyOf(&r), nil
	}
	return r.val, r.err
}

// plain is what Do says: nothing more. It is never changed.
var plain = With{}

// told is what a caller takes home from a flight. Flights are used again, so she must not look back.
type told[V any] struct {
	val         V
	err         error
	gen         uint64
	led, shared bool
	superseded  bool
	alone       bool // not shareable
}

// DoWith is Do with more to say, and more to learn.
func (g *Group[K, V]) DoWith(ctx context.Context, key K, w With, load Load[V]) (Result[V], error) {
	var r told[V]
	err := g.do(ctx, key, &w, load, &r)
	if err == nil && w.Fresh && r.superseded && r.err == nil {
		r = told[V]{}
		err = g.do(ctx, key, &w, load, &r)
	}
	if err != nil {
		return Result[V]{}, err
	}
	if r.err == nil && g.opts.Copy != nil {
		r.val = g.copyOf(&r)
	}
	return Result[V]{Value: r.val, Shared: r.shared, Led: r.led, Superseded: r.superseded, Generation: r.gen}, r.err
}

func (g *Group[K, V]) copyOf(r *told[V]) V {
	if !r.shared && g.opts.Fill == nil {
		return r.val
	}
	return g.opts.Copy(r.val)
}

// do puts the result of a flight that is the caller's into r, or answers with an error of the caller's own. It is where
// callers wait, so it is kept shallow and small: a goroutine that does little else fits into its first stack. It
// allocates nothing for who joins and leaves nothing of who goes.
func (g *Group[K, V]) do(ctx context.Context, key K, w *With, load Load[V], r *told[V]) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if above, ok := ctx.Value(contextKey{}).(carrier); ok {
		return g.nested(ctx, key, w, load, r, above)
	}
	v, f, _, err := g.enter(ctx, key, w, load, nil)
	if err != nil {
		return err
	}
	if v == take || v == lead && ctx.Done() == nil {
		g.atOnce(v, f, r)
	} else {
		select {
		case <-f.done:
		case <-ctx.Done():
			if g.leave(f) {
				return ctx.Err()
			}
		}
		g.takeHome(f, r, v != join)
	}
	if r.alone && !r.led {
		return g.loadAlone(ctx, key, *w, load, r)
	}
	return nil
}

// nested is do for a call that a load makes, of whatever group.
func (g *Group[K, V]) nested(ctx context.Context, key K, w *With, load Load[V], r *told[V], above carrier) error {
	v, f, parent, err := g.enter(ctx, key, w, load, above)
	if err != nil {
		return err
	}
	if parent != nil {
		defer g.unring(parent, f)
	}
	if v == take || v == lead && ctx.Done() == nil {
		g.atOnce(v, f, r)
	} else {
		select {
		case <-f.done:
		case <-ctx.Done():
			if g.leave(f) {
				return ctx.Err()
			}
		}
		g.takeHome(f, r, v != join)
	}
	if r.alone && !r.led {
		return g.loadAlone(ctx, key, *w, load, r)
	}
	return nil
}

// loadAlone is for a caller who was let go because what she waited for is not shareable.
func (g *Group[K, V]) loadAlone(ctx context.Context, key K, w With, load Load[V], r *told[V]) error {
	*r = told[V]{}
	w.Alone = true
	return g.do(ctx, key, &w, load, r)
}

// atOnce is for a caller who need not wait: she leads and runs her load herself, or the result is there.
func (g *Group[K, V]) atOnce(v verdict, f *flight[K, V], r *told[V]) {
	if v == lead {
		g.run(f, r)
		return
	}
	g.mu.Lock()
	f.tell(r, false)
	g.mu.Unlock()
}

// takeHome is for a caller who has waited until f was settled.
func (g *Group[K, V]) takeHome(f *flight[K, V], r *told[V], led bool) {
	<-f.done // if she was about to leave, it may be being closed at this moment
	f.tell(r, led)
	if led && g.reusable(f) {
		f.blank()
		if g.mu.TryLock() { // not worth waiting for
			g.spare = f
			g.mu.Unlock()
		}
	}
}

// enter joins or begins a flight. What the caller is to do then depends on the verdict: take its result, run its load
// herself (lead, if her context cannot be cancelled), or wait for it. parent is the load of this group that calls, if
// one does: it must unring when it has what it wants.
func (g *Group[K, V]) enter(ctx context.Context, key K, w *With, load Load[V], above carrier) (v verdict, f, parent *flight[K, V], err error) {
	g.lock()
	var now int64
	if g.m.needsClock() {
		now = g.now()
	}
	g.counts.calls++
	if above != nil {
		var recursive bool
		if parent, recursive = g.loadAbove(above, key); recursive {
			g.mu.Unlock()
			return refused, nil, nil, ErrRecursive
		}
	}
	v, f, memo, err := g.m.ask(key, w, now)
	switch v {
	case refused, backedOff:
		err = g.refusal(v, memo, err, now)
		todo := g.ready()
		g.mu.Unlock()
		g.launch(todo)
		if g.opts.Observer != nil {
			g.opts.Observer.Refused(w.Class, err)
		}
		return v, nil, nil, err
	case take:
		g.counts.shared++
		g.mu.Unlock()
		return v, f, nil, nil
	case join:
		g.counts.shared++
	default:
		f.load = load
		f.ctx = &loadContext[K, V]{values: ctx, g: g, f: f}
		if !g.ticks && g.opts.Timeout > 0 {
			g.startTicks()
		}
	}
	if parent != nil && g.ring(parent, f) {
		g.m.leave(f) // there is another waiter, or it has not begun
		todo := g.ready()
		g.mu.Unlock()
		g.launch(todo)
		return refused, nil, nil, ErrRecursive
	}
	if v == lead && ctx.Done() == nil && len(g.m.ready) == 0 && g.opts.Observer == nil { // the fast path
		g.counts.loads++
		g.mu.Unlock()
		return v, f, parent, nil
	}
	g.proceed(ctx, v, f)
	return v, f, parent, nil
}

// proceed begins f, or makes it ready to be waited for. It is called under the lock and unlocks.
func (g *Group[K, V]) proceed(ctx context.Context, v verdict, f *flight[K, V]) {
	inline := v == lead && ctx.Done() == nil
	if v != join && !inline {
		f.ctx.values = context.WithoutCancel(ctx)
	}
	if v == lead {
		g.begin(f)
	}
	if !inline && f.done == nil {
		f.done = make(chan struct{})
	}
	todo := g.ready()
	g.mu.Unlock()
	g.launch(todo)
	if v == lead {
		g.observeStart(f)
	}
	if v == lead && !inline {
		go g.run(f, nil)
	}
}

// leave takes a caller out of f whose context has ended. It answers false if f has been settled meanwhile.
func (g *Group[K, V]) leave(f *flight[K, V]) bool {
	g.mu.Lock()
	if f.settled {
		g.mu.Unlock()
		return false
	}
	cancel := g.m.leave(f)
	g.counts.left++
	todo := g.ready()
	g.mu.Unlock()
	if cancel {
		f.ctx.end(&causeAbandoned)
	}
	g.launch(todo)
	return true
}

// tell notes the result of f, which is settled, for one of its callers.
func (f *flight[K, V]) tell(r *told[V], led bool) {
	r.val, r.err, r.gen, r.superseded, r.alone = f.val, f.err, f.gen, f.superseded, f.alone
	r.led, r.shared = led, !led || f.early || f.shared
}

// reusable: nobody but its leader holds f, which is settled. It was never joined, nor told before its end, and neither a
// Fill nor a ring of loads looks back at it.
func (g *Group[K, V]) reusable(f *flight[K, V]) bool {
	return !f.early && !f.shared && !f.timedOut && !f.ringed && g.opts.Fill == nil
}

// ready takes what the machine has put aside. It is called under the lock, launch after it.
func (g *Group[K, V]) ready() []*flight[K, V] {
	todo := g.m.ready
	if todo == nil {
		g.setRate()
		return nil
	}
	g.m.ready = nil
	for _, f := range todo {
		if f.state == running {
			g.begin(f)
			continue
		}
		if b, ok := f.err.(*BusyError); ok {
			g.counts.refused[b.Reason] += uint64(f.waiters)
		}
		g.m.settle(f)
	}
	g.setRate()
	return todo
}

// begin counts the start of a load, and notes the time if somebody will ask for it.
func (g *Group[K, V]) begin(f *flight[K, V]) {
	g.counts.loads++
	if g.opts.Observer != nil || g.opts.Timeout < 0 {
		f.began = g.now()
	}
}

func (g *Group[K, V]) launch(todo []*flight[K, V]) {
	for _, f := range todo {
		if f.state == ended { // it will never run; nobody else looks at it
			if g.opts.Observer != nil {
				g.opts.Observer.Refused(shareOf(f), f.err)
			}
			close(f.done)
			continue
		}
		g.observeStart(f)
		go g.run(f, nil)
	}
}

// refusal counts, and makes the error of a key that is left alone.
func (g *Group[K, V]) refusal(v verdict, mm *memo[K], err error, now int64) error {
	if v == backedOff {
		g.counts.backedOff++
		return &BackoffError{Err: mm.err, Class: mm.class, Failures: mm.failures, Wait: time.Duration(mm.until - now)}
	}
	var busy *BusyError
	if errors.As(err, &busy) {
		g.counts.refused[busy.Reason]++
	}
	return err
}
