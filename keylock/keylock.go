package keylock

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// Options of New. The zero value is a good one.
type Options struct {
	// MaxWaiting is how many may wait for one key; default 64. 1 and more; negative: none may, a held key is ErrFull.
	MaxWaiting int
	// MaxWait is how long one may wait for a key, from its arrival; default 30s. Negative: as long as its context.
	MaxWait time.Duration
	// MaxHold is how long a key may be held, from its grant; default 60s. It ends up to an eighth later, never earlier;
	// a process that stood still is given the time. Negative: forever. Danger: one task that hangs then blocks its key
	// for good.
	MaxHold time.Duration
	// Forced is called after a forced release and before the next caller is granted the key, by a goroutine of its own.
	// It has to make sure that nobody uses again what the late holder was using, and must not wait for that holder: the
	// key is blocked until it returns. Default: nothing.
	Forced func(key string, gen uint64)
	// Observer is told what happens; default: nobody.
	Observer Observer
}

const shards = 64

// Locks are the locks of all keys. Make one with New. It needs no closing: what it runs ends when nothing is held.
type Locks struct {
	opts  Options
	seed  maphash.Seed
	every time.Duration // between two ticks
	limit uint64        // ticks that a hold may last; 0: no limit
	armed atomic.Bool   // a tick will come

	shards [shards]shard
}

type shard struct {
	mu   sync.Mutex
	t    table
	free *waiter
	_    [64]byte // shards are taken by different cores
}

// waiter is what the shell adds to a ticket. It is used again.
type waiter struct {
	ticket
	ready chan struct{} // one element, when the ticket was granted
	next  *waiter
}

// holding is what the shell adds to an entry: it belongs to the present hold.
type holding struct {
	cancel context.CancelCauseFunc
	since  time.Time // with an Observer
}

// New makes locks of which none is held.
func New(opts Options) *Locks {
	switch {
	case opts.MaxWaiting == 0:
		opts.MaxWaiting = 64
	case opts.MaxWaiting < 0:
		opts.MaxWaiting = 0
	}
	if opts.MaxWait == 0 {
		opts.MaxWait = 30 * time.Second
	}
	if opts.MaxHold == 0 {
		opts.MaxHold = time.Minute
	}
	l := &Locks{opts: opts, seed: maphash.MakeSeed(), every: time.Second}
	if opts.MaxHold > 0 {
		l.every = min(max(opts.MaxHold/16, time.Millisecond), time.Second)
		l.limit = uint64((opts.MaxHold + l.every - 1) / l.every)
	}
	for i := range l.shards {
		l.shards[i].t = table{keys: make(map[string]*entry), maxWaiting: opts.MaxWaiting}
	}
	return l
}

// Lock waits for key and holds it until Release. Errors: ErrFull, ErrWait, ErrReentry, or the context's cause; the key is
// then not held. Work under the hold's context:
//
//	hold, err := locks.Lock(ctx, key)
//	if err != nil { … }
//	defer hold.Release()
//	ctx = hold.Context(ctx)
func (l *Locks) Lock(ctx context.Context, key string) (Hold, error) {
	if ctx.Done() != nil && ctx.Err() != nil {
		return Hold{}, l.refused(key, context.Cause(ctx))
	}
	if l.reenters(ctx, key) {
		return Hold{}, l.refused(key, ErrReentry)
	}
	s := l.shard(key)
	s.mu.Lock()
	e, gen, full := s.t.lock(key)
	if gen != 0 {
		e.s = s
		if l.opts.Observer != nil {
			e.own.since = time.Now()
		}
		s.mu.Unlock()
		l.arm()
		if l.opts.Observer != nil {
			l.opts.Observer.Granted(key, 0)
		}
		return Hold{l, e, gen}, nil
	}
	if full {
		s.t.counts.Full++
		s.mu.Unlock()
		return Hold{}, l.refused(key, ErrFull)
	}
	w := s.waiter()
	s.t.wait(e, &w.ticket)
	s.mu.Unlock()
	return l.wait(ctx, s, e, w)
}

func (l *Locks) shard(key string) *shard { return &l.shards[maphash.String(l.seed, key)%shards] }

// wait is Lock for those who have to. MaxWait counts from here.
func (l *Locks) wait(ctx context.Context, s *shard, e *entry, w *waiter) (Hold, error) {
	var began time.Time
	if l.opts.Observer != nil {
		began = time.Now()
	}
	var expired <-chan time.Time
	if l.opts.MaxWait > 0 {
		timer := time.NewTimer(l.opts.MaxWait)
		defer timer.Stop()
		expired = timer.C
	}
	var err error
	select {
	case <-w.ready:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-expired:
		err = ErrWait
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx) // both at once: nobody wants the hold
	}
	s.mu.Lock()
	key := e.key
	if err != nil && w.gen == 0 { // nobody can grant it any more
		s.t.leave(&w.ticket)
		if err == ErrWait {
			s.t.counts.Expired++
		}
		s.recycle(w)
		s.mu.Unlock()
		return Hold{}, l.refused(key, err)
	}
	hold := Hold{l, e, w.gen}
	select { // granted while it gave up
	case <-w.ready:
	default:
	}
	s.recycle(w)
	s.mu.Unlock()
	if err != nil && err != ErrWait {
		_ = hold.Release() // passed on
		return Hold{}, l.refused(key, err)
	}
	if l.opts.Observer != nil {
		l.opts.Observer.Granted(key, time.Since(began))
	}
	return hold, nil
}

func (s *shard) waiter() *waiter {
	w := s.free
	if w == nil {
		w = &waiter{ready: make(chan struct{}, 1)}
		w.ticket.w = w
		return w
	}
	s.free, w.next = w.next, nil
	return w
}

func (s *shard) recycle(w *waiter) {
	w.ticket.e, w.ticket.gen = nil, 0
	w.next, s.free = s.free, w
}

// wake tells the one who was granted. Called with the shard's lock held, so that who gives up meanwhile sees both.
func (l *Locks) wake(next *ticket) {
	if next == nil {
		return
	}
	if l.opts.Observer != nil {
		next.e.own.since = time.Now()
	}
	next.w.ready <- struct{}{}
}

func (l *Locks) refused(key string, err error) error {
	if l.opts.Observer != nil {
		l.opts.Observer.Refused(key, err)
	}
	return err
}

// Do runs f while it holds key. f's context is the hold's. When the hold was ended by force meanwhile, Do returns
// ErrForced joined with f's error, after f has returned.
func (l *Locks) Do(ctx context.Context, key string, f func(context.Context) error) (err error) {
	hold, err := l.Lock(ctx, key)
	if err != nil {
		return err
	}
	defer func() { // also when f panics
		if rerr := hold.Release(); rerr != nil {
			err = joined(rerr, err)
		}
	}()
	return f(hold.Context(ctx))
}

// Consumer makes of a message handler one that holds the message's key while it works. A key of "" needs no lock. Errors of
// the lock come back like the handler's own: whoever delivers has to deliver again.
func Consumer[M any](l *Locks, key func(M) string, handle func(context.Context, M) error) func(context.Context, M) error {
	return func(ctx context.Context, m M) error {
		k := key(m)
		if k == "" {
			return handle(ctx, m)
		}
		return l.Do(ctx, k, func(ctx context.Context) error { return handle(ctx, m) })
	}
}

// Stats are not of one moment: the shards are asked one after the other.
func (l *Locks) Stats() Stats {
	var sum Stats
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		sum.add(s.t.stats())
		s.mu.Unlock()
	}
	return sum
}

// arm makes sure that a tick comes while there is something to look at.
func (l *Locks) arm() {
	if !l.armed.Load() && l.armed.CompareAndSwap(false, true) {
		time.AfterFunc(l.every, l.sweep)
	}
}

// sweep is a tick: it ends holds that last too long and forgets idle keys. The next one begins to count after this one, so
// that time in which the process stood still is one tick, and nobody is forced early.
func (l *Locks) sweep() {
	l.armed.Store(false) // who locks from here on arms it again
	busy := false
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for count := true; ; count = false {
			e, gen := s.t.advance(l.limit, count)
			if e == nil {
				break
			}
			cancel := e.own.cancel
			e.own.cancel = nil
			go l.force(s, e, gen, cancel)
		}
		busy = busy || len(s.t.keys) > 0
		s.mu.Unlock()
	}
	if busy {
		l.arm()
	}
}

func (l *Locks) force(s *shard, e *entry, gen uint64, cancel context.CancelCauseFunc) {
	defer func() {
		s.mu.Lock()
		l.wake(s.t.retired(e))
		s.mu.Unlock()
		l.arm()
	}()
	if cancel != nil {
		cancel(ErrForced)
	}
	if l.opts.Observer != nil {
		l.opts.Observer.Forced(e.key, gen)
	}
	if l.opts.Forced != nil {
		l.opts.Forced(e.key, gen)
	}
}
