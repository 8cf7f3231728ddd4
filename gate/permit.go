package gate

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Permit is a right to try, until its lease ends. Safe for concurrent use.
type Permit struct {
	gate  *Gate
	key   string
	id    ID
	n     int
	fence uint64
	again bool

	mu      sync.Mutex
	expires time.Time // by the engine's clock, for showing
	until   time.Time // by our own monotonic clock, for trusting
	lease   time.Duration
	work    map[*worker]struct{}
}

// grant makes the permit that the store's answer gives; start is when it was asked.
func (g *Gate) grant(key string, id ID, res Result, start time.Time) *Permit {
	left := res.Left()
	p := &Permit{
		gate: g, key: key, id: id, n: res.N, fence: res.Fence, again: res.Again,
		expires: time.UnixMilli(res.Expires), until: start.Add(left), lease: left,
	}
	sh := g.shard(key)
	sh.mu.Lock()
	sh.held[id] = hold{p.n, p.until}
	sh.mu.Unlock()
	return p
}

// forget takes a permit off the node's list, and returns how many it stood for.
func (g *Gate) forget(key string, id ID) int {
	sh := g.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := sh.held[id].n
	delete(sh.held, id)
	return n
}

// Key is what the permit is for.
func (p *Permit) Key() string { return p.key }

// ID names the permit.
func (p *Permit) ID() ID { return p.id }

// N is how many permits it stands for.
func (p *Permit) N() int { return p.n }

// Fence is greater than that of every earlier grant of the key. Where the key has one permit,
// let the database refuse a write with a smaller fence than the row has seen; where it has more, it is an audit number.
func (p *Permit) Fence() uint64 { return p.fence }

// Again reports whether an earlier acquire with the same id was granted it.
func (p *Permit) Again() bool { return p.again }

// Expires is when the permit ends by the engine's clock. Trust Context, which goes by this
// process's own.
func (p *Permit) Expires() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.expires
}

// Release gives the permit back. Errors: ErrExpired where it ended by itself before: somebody
// else may have been at work meanwhile. Repeating it changes nothing. It is tried for up to
// 3 s even when ctx has ended.
func (p *Permit) Release(ctx context.Context) error { return p.gate.Release(ctx, p.key, p.id) }

// Extend gives a permit that is still held a new lease from now. Errors: ErrExpired (nothing
// is revived), ErrReleased, ErrUnknown, …
func (p *Permit) Extend(ctx context.Context, lease time.Duration) error {
	start := time.Now()
	expires, left, err := p.gate.Extend(ctx, p.key, p.id, lease)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expires, p.until, p.lease = expires, start.Add(left), left
	for w := range p.work {
		w.timer.Reset(time.Until(p.trusted()))
	}
	return nil
}

// Settle closes the permit's key with a verdict of at most 1 KB for ttl, at most 60 s. Call it
// after the transaction has committed: all who wait get the verdict at once and leave the
// database alone. Errors: ErrStale where the key was reopened since.
func (p *Permit) Settle(ctx context.Context, verdict string, ttl time.Duration) error {
	return p.gate.Settle(ctx, p.key, p.id, p.fence, verdict, ttl)
}

// trusted is until when work may go on: a tenth of the lease, at most a second, before the
// lease ends, so that it has stopped when another begins. Called with mu held.
func (p *Permit) trusted() time.Time { return p.until.Add(-min(p.lease/10, time.Second)) }

type worker struct{ timer *time.Timer }

// Context is for the work done under the permit: it ends shortly before the permit does, with
// cause ErrExpired, and later when Extend succeeds meanwhile. Call cancel when done.
func (p *Permit) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &worker{time.AfterFunc(time.Until(p.trusted()), func() { cancel(ErrExpired) })}
	if p.work == nil {
		p.work = map[*worker]struct{}{}
	}
	p.work[w] = struct{}{}
	return ctx, func() {
		w.timer.Stop()
		cancel(context.Canceled)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.work, w)
	}
}

// Do acquires, works and releases, whatever happens: an error, a panic, a context that ends.
// The work's context ends shortly before the permit does. The error is the acquire's or the work's own; a
// permit that expired meanwhile is counted and told to the Observer, for the work may have committed.
func (g *Gate) Do(ctx context.Context, key string, work func(context.Context, *Permit) error, opts ...Option) error {
	p, err := g.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	defer func() { _ = p.Release(ctx) }()
	wctx, cancel := p.Context(ctx)
	defer cancel()
	return work(wctx, p)
}

// counters are a gate's totals.
type counters struct{ granted, full, settled, failed, expired, reclaimed atomic.Uint64 }

func (c *counters) acquired(err error) {
	switch {
	case err == nil:
		c.granted.Add(1)
	case isFull(err):
		c.full.Add(1)
	case isSettled(err):
		c.settled.Add(1)
	default:
		c.failed.Add(1)
	}
}

// Stats are figures of one node's gate.
type Stats struct {
	Held      int    // permits that were granted here, not released here, and whose lease runs
	Waiting   int    // acquires
	Granted   uint64 // acquires, by what was answered
	Full      uint64
	Settled   uint64
	Failed    uint64 // any other error
	Expired   uint64 // releases that came too late
	Reclaimed uint64 // permits taken back from crashed or late holders
}

// Stats looks at every permit held here: call it for a scrape, not for a request.
func (g *Gate) Stats() Stats {
	s := Stats{
		Granted: g.count.granted.Load(), Full: g.count.full.Load(), Settled: g.count.settled.Load(),
		Failed: g.count.failed.Load(), Expired: g.count.expired.Load(), Reclaimed: g.count.reclaimed.Load(),
	}
	now := time.Now()
	for i := range g.shards {
		sh := &g.shards[i]
		sh.mu.Lock()
		for id, h := range sh.held {
			if !h.until.After(now) {
				delete(sh.held, id)
				continue
			}
			s.Held += h.n
		}
		for _, l := range sh.lines {
			s.Waiting += l.waiters.Len()
		}
		sh.mu.Unlock()
	}
	return s
}
