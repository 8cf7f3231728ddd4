package flight

import "math"

// budget shares out starts of loads: concurrency, starts per second and places to wait, each with a part reserved per
// class and a common rest. Pure; the machine calls it.
type budget[K comparable, V any] struct {
	cfg     Budget
	limited bool // there is anything to decide
	rated   bool

	running       int // loads, of all classes
	commonRunning int // loads that do not run on a reservation
	common        int // Concurrency that nobody reserved
	bucket        bucket

	pending       int
	commonPending int // loads that do not wait on a reservation
	places        int // of MaxPending that nobody reserved

	classes map[string]*class[K, V] // those named, and others while they have something to do
	ring    []*class[K, V]          // with pending loads; the next one to be served first
}

type class[K comparable, V any] struct {
	name    string
	share   Share
	named   bool
	running int
	bucket  bucket
	queue   list[K, V]
	refs    int // flights that point here and neither run nor wait: queued behind their key
}

func (b *budget[K, V]) init(cfg Budget) {
	b.cfg = cfg
	b.limited = cfg.Concurrency > 0 || cfg.PerSecond > 0
	for _, s := range cfg.Classes {
		b.limited = b.limited || s.Max > 0
	}
	b.limited = b.limited || cfg.Other.Max > 0
	b.rated = cfg.PerSecond > 0
	if !b.limited {
		return
	}
	if cfg.Concurrency == 0 {
		b.cfg.Concurrency = math.MaxInt
	}
	b.common, b.places = b.cfg.Concurrency, cfg.MaxPending
	rate, burst := cfg.PerSecond, cfg.Burst
	if burst <= 0 {
		burst = max(1, int(cfg.PerSecond/10))
	}
	b.classes = make(map[string]*class[K, V], len(cfg.Classes))
	for name, s := range cfg.Classes {
		b.common -= s.Reserve
		b.places -= s.ReservePending
		rate -= s.ReservePerSecond
		c := &class[K, V]{name: name, share: s, named: true}
		c.bucket.init(s.ReservePerSecond, 1)
		b.classes[name] = c
	}
	b.bucket.init(rate, burst)
}

// class finds or makes a class. Without limits there are none.
func (b *budget[K, V]) class(name string) *class[K, V] {
	if !b.limited {
		return nil
	}
	c := b.classes[name]
	if c == nil {
		s := b.cfg.Other
		s.Reserve, s.ReservePerSecond, s.ReservePending = 0, 0, 0
		c = &class[K, V]{name: name, share: s}
		b.classes[name] = c
	}
	c.refs++
	return c
}

// unref forgets a class that has nothing left to do, lest a storm of names stays.
func (b *budget[K, V]) unref(c *class[K, V]) {
	c.refs--
	if c.refs == 0 && !c.named {
		delete(b.classes, c.name)
	}
}

// submit lets f start (the caller must start it), or lets it wait, or answers false when there is no place to wait. A
// newcomer never overtakes one of its class; that it overtakes nobody else is machine.submit's concern.
func (b *budget[K, V]) submit(f *flight[K, V], tick uint32, now int64) bool {
	c := f.class
	if c.queue.n == 0 && b.fits(c, now) {
		b.takeShare(c, now)
		f.state = running
		return true
	}
	most := c.share.MaxPending
	if most <= 0 {
		most = b.cfg.MaxPending
	}
	onReserve := c.queue.n < c.share.ReservePending
	if c.queue.n >= most || (!onReserve && b.commonPending >= b.places) {
		b.unref(c)
		return false
	}
	if c.queue.n == 0 {
		b.ring = append(b.ring, c)
	}
	if !onReserve {
		b.commonPending++
	}
	f.state, f.stamp = pending, tick
	c.queue.push(f)
	b.pending++
	return true
}

func (b *budget[K, V]) reserved(c *class[K, V]) bool { return c.running < c.share.Reserve }

// fits: whether a load of c may start now.
func (b *budget[K, V]) fits(c *class[K, V], now int64) bool {
	if c.share.Max > 0 && c.running >= c.share.Max {
		return false
	}
	if !b.reserved(c) && b.commonRunning >= b.common {
		return false
	}
	return !b.rated || c.bucket.ok(now) || b.bucket.ok(now)
}

func (b *budget[K, V]) takeShare(c *class[K, V], now int64) {
	if !b.reserved(c) {
		b.commonRunning++
	}
	c.running++
	b.running++
	if b.rated {
		if c.bucket.ok(now) {
			c.bucket.take(now)
		} else {
			b.bucket.take(now)
		}
	}
}

// release gives back what a load held, at its real end.
func (b *budget[K, V]) release(f *flight[K, V]) {
	c := f.class
	c.running--
	b.running--
	if !b.reserved(c) {
		b.commonRunning--
	}
	b.unref(c)
}

// grant takes the next load that may start out of its queue, classes in turn, or answers nil.
func (b *budget[K, V]) grant(now int64) *flight[K, V] {
	for i, c := range b.ring {
		if !b.fits(c, now) {
			continue
		}
		f := c.queue.head
		b.takeShare(c, now)
		b.dequeue(f)
		copy(b.ring[i:], b.ring[i+1:])
		b.ring[len(b.ring)-1] = nil
		b.ring = b.ring[:len(b.ring)-1]
		if c.queue.n > 0 {
			b.ring = append(b.ring, c)
		}
		return f
	}
	return nil
}

// dequeue takes f out of its class's queue; the ring is the caller's.
func (b *budget[K, V]) dequeue(f *flight[K, V]) {
	c := f.class
	c.queue.remove(f)
	b.pending--
	if c.queue.n >= c.share.ReservePending {
		b.commonPending--
	}
}

// drop takes a pending load out for good.
func (b *budget[K, V]) drop(f *flight[K, V]) {
	c := f.class
	b.dequeue(f)
	if c.queue.n == 0 {
		for i := range b.ring {
			if b.ring[i] == c {
				b.ring = append(b.ring[:i], b.ring[i+1:]...)
				break
			}
		}
	}
	b.unref(c)
}

// waiting is a copy of the ring, for those who drop while they walk.
func (b *budget[K, V]) waiting() []*class[K, V] {
	if len(b.ring) == 0 {
		return nil
	}
	return append([]*class[K, V](nil), b.ring...)
}

// next is when grant may answer differently for want of rate alone, or 0.
func (b *budget[K, V]) next(now int64) int64 {
	if !b.rated || len(b.ring) == 0 {
		return 0
	}
	at := b.bucket.next()
	for _, c := range b.ring {
		at = min(at, c.bucket.next())
	}
	if at <= now || at == math.MaxInt64 {
		return 0
	}
	return at
}

// bucket is a rate with a burst (GCRA). The zero bucket lets nothing through.
type bucket struct {
	interval, slack int64 // ns
	tat             int64 // when the next start would be due at an even pace
}

func (b *bucket) init(perSecond float64, burst int) {
	if perSecond <= 1e-9 {
		return
	}
	b.interval = max(1, int64(1e9/perSecond))
	b.slack = b.interval * int64(burst-1)
}

func (b *bucket) ok(now int64) bool { return b.interval > 0 && b.tat-now <= b.slack }
func (b *bucket) take(now int64)    { b.tat = max(b.tat, now) + b.interval }
func (b *bucket) next() int64 {
	if b.interval == 0 {
		return math.MaxInt64
	}
	return b.tat - b.slack
}
