package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"regexp"
	"sync"
	"time"
)

// Worker owns resources of one store. Safe for concurrent use.
type Worker struct {
	store Store
	opts  Options
	name  string

	ctx  context.Context // of the loops
	stop context.CancelFunc
	last context.Context // of the last words: ends when Close gives up
	end  context.CancelFunc
	wg   sync.WaitGroup

	slots   chan struct{} // rows released side by side
	wake    chan struct{} // look at desired state and orphans now
	collect chan struct{} // look for orphans now
	ask     chan struct{} // look at locks now
	hurry   chan struct{} // beat now

	mu      sync.Mutex
	view    *view
	owner   Owner // zero: not joined
	trust   trust
	lapse   *time.Timer
	holds   map[string]*hold // taken, or being taken
	waits   map[string][]*waiter
	before  map[string]uint64 // orphans passed over last time, and their fences
	orphans int               // at the last look
	steady  time.Duration     // since when nothing but gentle moves happened
	closing bool
	leaving chan struct{} // closed when closing
	closed  chan struct{} // closed when Close has ended
	idle    chan struct{} // closed when closing, and all have returned
	linger  chan struct{} // closed when not all have, and rows are released one by one
	written chan struct{} // closed when the last cursors are written
}

// New begins a worker. It joins the store, as soon as that answers, and beats until Close. Errors are those of
// Options.Validate.
func New(store Store, opts Options) (*Worker, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	o := opts.withDefaults()
	w := &Worker{
		store: store, opts: o, name: o.Worker,
		slots: make(chan struct{}, o.Parallel), wake: make(chan struct{}, 1), collect: make(chan struct{}, 1), ask: make(chan struct{}, 1), hurry: make(chan struct{}, 1),
		holds: map[string]*hold{}, waits: map[string][]*waiter{}, before: map[string]uint64{},
		trust: trust{length: o.Lease - o.Margin}, leaving: make(chan struct{}), closed: make(chan struct{}), idle: make(chan struct{}), linger: make(chan struct{}), written: make(chan struct{}),
	}
	if w.name == "" {
		w.name = uniqueName()
	}
	w.view = newView(w.name, o)
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.last, w.end = context.WithCancel(context.Background())
	w.lapse = time.AfterFunc(time.Hour, w.lapsed)
	w.lapse.Stop()
	w.wg.Go(w.beating)
	w.wg.Go(w.observing)
	w.wg.Go(w.reconciling)
	w.wg.Go(func() { w.every(o.Sweep, w.collect, w.gather) })
	w.wg.Go(w.flushing)
	w.wg.Go(w.locking)
	if watcher, ok := store.(Watcher); ok {
		w.wg.Go(func() { w.watching(watcher) })
	}
	return w, nil
}

// Run runs fn for each resource that is this worker's, until ctx ends; then it lets go of all of them, within
// Options.Drain, and returns ctx's error, or what hindered it. At most one Options. A store that does not answer is waited for.
func Run(ctx context.Context, store Store, fn Serve, opts ...Options) error {
	var o Options
	if len(opts) > 0 {
		o = opts[0]
	}
	o.Serve = fn
	w, err := New(store, o)
	if err != nil {
		return err
	}
	<-ctx.Done()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.opts.Drain)
	defer cancel()
	return errors.Join(ctx.Err(), w.Close(last))
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

func uniqueName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	host = notInName.ReplaceAllString(host, "-")
	return host[:min(len(host), 100)] + "-" + rand.Text()[:10]
}

// Name of the worker.
func (w *Worker) Name() string { return w.name }

// Wake makes the worker read desired state now: call it when told of a change.
func (w *Worker) Wake() { kick(w.wake) }

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Stats are figures of one worker.
type Stats struct {
	Owner   Owner // zero: not joined, or dead
	Held    int
	Share   int // what it should hold
	Cap     int
	Orphans int // at the last look
	Workers int // living
	Trusted time.Duration
}

// Stats of the worker.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Stats{
		Owner: w.owner, Held: len(w.holds), Share: w.view.share(), Cap: w.opts.Cap, Orphans: w.orphans,
		Workers: len(w.view.living), Trusted: max(w.trust.until-w.opts.elapsed(), 0),
	}
}

// Held lists what the worker owns now.
func (w *Worker) Held() []Resource {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]Resource, 0, len(w.holds))
	for _, h := range w.holds {
		if h.running {
			r := h.resource()
			r.Cursor = h.cursor
			list = append(list, r)
		}
	}
	return list
}

// every calls f after each period and each kick, until the worker stops.
func (w *Worker) every(period time.Duration, kicked <-chan struct{}, f func(ctx context.Context)) {
	t := time.NewTimer(period)
	defer t.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-kicked:
		case <-t.C:
		}
		f(w.ctx)
		t.Reset(period)
	}
}

// beating joins, and says that this worker lives.
func (w *Worker) beating() {
	token, n := rand.Text(), uint64(0)
	pause := time.Duration(0)
	w.everyNext(&pause, func(ctx context.Context) time.Duration {
		ctx, cancel := context.WithTimeout(ctx, w.opts.Beat)
		defer cancel()
		w.mu.Lock()
		owner, held, closing := w.owner, len(w.holds), w.closing
		w.mu.Unlock()
		if owner == (Owner{}) {
			if closing {
				return w.opts.Beat
			}
			joined, err := w.store.Join(ctx, Join{Worker: w.name, Token: token, Cap: w.opts.Cap})
			switch {
			case err != nil:
				w.opts.Logger.Warn("the store cannot be joined; trying again", "worker", w.name, "err", err)
				return jitter(w.opts.Observe) + w.opts.Observe
			case !joined.OK:
				w.opts.Logger.Warn("a worker of this name lives, or has just died; waiting for its lease", "worker", w.name)
				return w.opts.Observe
			}
			owner, n = joined.Owner, 0
			token = rand.Text()
			w.mu.Lock()
			w.owner, w.view.me = owner, owner
			w.mu.Unlock()
		}
		n++
		started := w.opts.elapsed()
		beat := Beat{Owner: owner, Beat: n, Held: held, Leaving: closing}
		if w.opts.Info != nil {
			if beat.Info = w.opts.Info(); !beatInfo.MatchString(beat.Info) { // no reason to lose a lease
				beat.Info = ""
			}
		}
		ok, err := w.store.Beat(ctx, beat)
		if err == nil && !ok {
			err = fmt.Errorf("%w: others saw no beat for %v and marked this worker dead", ErrLost, w.opts.Lease)
		}
		w.opts.Observer.Beaten(w.opts.elapsed()-started, err)
		switch {
		case errors.Is(err, ErrLost):
			w.died(owner, err)
			return 0
		case err != nil:
			w.opts.Logger.Warn("a beat failed; trying again", "worker", w.name, "err", err)
			return min(w.opts.Beat, w.opts.Lease/20)
		}
		w.beaten(started)
		return max(w.opts.Beat-(w.opts.elapsed()-started), 0)
	})
}

// everyNext calls f, each time after the pause it asked for, or when hurried.
func (w *Worker) everyNext(pause *time.Duration, f func(ctx context.Context) time.Duration) {
	t := time.NewTimer(*pause)
	defer t.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.hurry:
		case <-t.C:
		}
		t.Reset(f(w.ctx))
	}
}

// beaten counts a good beat, and lets go gently of what is more than a share.
func (w *Worker) beaten(started time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.opts.elapsed()
	regained := !w.trust.holds(now)
	w.trust.beaten(started)
	w.lapse.Reset(max(w.trust.until-now, 0))
	if regained {
		w.steady = now
		kick(w.wake) // what was cancelled is found there
		kick(w.ask)
	}
	w.moves(now)
}

// moves gives resources away. Under mu.
func (w *Worker) moves(now time.Duration) {
	if w.closing || w.opts.Serve == nil || now-w.steady < 2*w.opts.Beat {
		return
	}
	share, room := w.view.share(), 0
	for _, o := range w.view.living {
		if o.Worker != w.name && !o.Leaving {
			room += max(min(share, o.Cap)-o.Held, 0)
		}
	}
	var active []*hold
	for _, h := range w.holds {
		if h.running && !h.lock && h.ctx.Err() == nil {
			active = append(active, h)
		}
	}
	for n := min(len(active)-share, room, w.opts.Moves); n > 0; n-- {
		active[n-1].cancel(ErrMoved)
	}
}

// lapsed runs when the last good beat is too long ago: whoever acts, stops.
func (w *Worker) lapsed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if left := w.trust.until - w.opts.elapsed(); left > 0 {
		w.lapse.Reset(left)
		return
	}
	w.cancelAll(fmt.Errorf("%w: no beat was answered for %v", ErrLost, w.trust.length))
}

// cancelAll ends every context. Under mu.
func (w *Worker) cancelAll(cause error) {
	for _, h := range w.holds {
		h.cancel(cause)
	}
}

// died runs when the store says that this generation is dead.
func (w *Worker) died(owner Owner, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opts.Logger.Error("this worker was declared dead; it stops what it did and begins anew", "worker", owner, "err", cause)
	w.trust.until = 0
	w.owner, w.view.me = Owner{}, Owner{}
	w.cancelAll(cause)
}

func (w *Worker) flushing() {
	w.every(w.opts.Flush, nil, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, w.opts.Lease)
		defer cancel()
		if err := w.flush(ctx, w.all()); err != nil && ctx.Err() == nil && !errors.Is(err, ErrLost) {
			w.opts.Logger.Warn("cursors were not written; trying again", "err", err)
		}
	})
}

func (w *Worker) all() []*hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	hs := make([]*hold, 0, len(w.holds))
	for _, h := range w.holds {
		hs = append(hs, h)
	}
	return hs
}

// watching subscribes as often as it must.
func (w *Worker) watching(s Watcher) {
	for w.ctx.Err() == nil {
		err := s.Watch(w.ctx, func() { w.Wake(); kick(w.ask) })
		if err == nil {
			return
		}
		select {
		case <-w.ctx.Done():
		case <-time.After(w.opts.Observe):
		}
	}
}

// jitter is a random part of d.
func jitter(d time.Duration) time.Duration { return mathrand.N(d + 1) }
