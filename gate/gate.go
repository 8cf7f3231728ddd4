package gate

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// Gate hands out permits. Safe for concurrent use.
type Gate struct {
	store Store
	opts  Options
	node  uint64
	seed  maphash.Seed
	seq   atomic.Uint64 // who came first
	count counters

	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	shards [64]shard
}

// shard holds the lines and the held permits of some keys.
type shard struct {
	mu    sync.Mutex
	lines map[string]*line
	held  map[ID]hold

	closed bool // no line begins any more
}

type hold struct {
	n     int
	until time.Time
}

// New makes a gate on a store. Errors are those of Options.Validate.
func New(store Store, opts Options) (*Gate, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	g := &Gate{store: store, opts: opts.withDefaults(), node: randomNode(), seed: maphash.MakeSeed()}
	g.ctx, g.stop = context.WithCancel(context.Background())
	for i := range g.shards {
		g.shards[i] = shard{lines: map[string]*line{}, held: map[ID]hold{}}
	}
	return g, nil
}

func randomNode() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])>>12 | 1 // never 0, and exact as a float too
}

// Close sends those who wait away with ErrClosed. Permits stay valid and can be released.
func (g *Gate) Close() {
	g.stop()
	for i := range g.shards { // whoever joined a line before this is counted in wg
		g.shards[i].mu.Lock()
		g.shards[i].closed = true
		g.shards[i].mu.Unlock()
	}
	g.wg.Wait()
}

func (g *Gate) shard(key string) *shard {
	return &g.shards[maphash.String(g.seed, key)%uint64(len(g.shards))]
}

// Acquire takes permits, one unless N says otherwise, or says why not:
//
//   - ErrFull (a *FullError): none came free in time, or too many wait.
//   - ErrSettled (a *SettledError): the key is closed, with its verdict.
//   - ErrNotSet: nobody said how many permits the key has.
//   - ErrExpired, ErrReleased: the id given with As was used up.
//   - ErrUnknown: the answer was lost; the permit, if there is one, ends with its lease. A repeat
//     As the same id settles it.
//   - ErrUnavailable, ErrBadRequest, ErrClosed, and ctx's error. A ctx that is done takes nothing.
//
// Whoever waits on this node is served first come, first served.
func (g *Gate) Acquire(ctx context.Context, key string, opts ...Option) (*Permit, error) {
	start := time.Now()
	p, err := g.acquire(ctx, key, start, opts)
	g.count.acquired(err)
	g.opts.Observer.Acquired(key, time.Since(start), err)
	return p, err
}

func (g *Gate) acquire(ctx context.Context, key string, start time.Time, opts []Option) (*Permit, error) {
	r := request{wait: g.opts.Wait, cmd: Command{
		Op: OpAcquire, N: 1, Lease: g.opts.Lease, Permits: int64(g.opts.Permits), Node: g.node,
	}}
	for _, opt := range opts {
		opt(&r)
	}
	r.cmd.Lease = r.cmd.Lease.Truncate(time.Millisecond)
	r.cmd.Idle = max(g.opts.Idle, 4*r.cmd.Lease)
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	if err := r.cmd.Check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err // cases/gate 11
	}
	if g.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if !r.given {
		rand.Read(r.cmd.ID[:])
	}
	w := &waiter{request: r, seq: g.seq.Add(1), deadline: start.Add(r.wait), done: make(chan outcome, 1)}
	if !g.waits(key) {
		o := g.try(ctx, key, &w.request)
		if !errors.Is(o.err, ErrFull) || r.wait <= 0 {
			return o.permit, o.err
		}
		w.refused = o.err
	}
	if r.wait <= 0 { // others wait, so there is nothing to be had
		return nil, &FullError{Key: key}
	}
	return g.wait(ctx, key, w)
}

// patience is for how long a refused acquire is heard of next.
func patience(left time.Duration) time.Duration {
	return min(left, recheck+recheck/4).Truncate(time.Millisecond)
}

// outcome is what became of an acquire.
type outcome struct {
	permit *Permit
	err    error
	free   int64         // permits that are free after it
	next   time.Duration // until one expires
}

// try asks the store once, and again where the answer was lost.
func (g *Gate) try(ctx context.Context, key string, r *request) outcome {
	for attempt := 1; ; attempt++ {
		start := time.Now()
		res, err := g.do(ctx, key, &r.cmd)
		switch {
		case err == nil && res.Err == nil:
			return outcome{permit: g.grant(key, r.cmd.ID, res, start), free: res.Free, next: res.Next}
		case err == nil && errors.Is(res.Err, ErrFull):
			if res.More { // expired permits are taken back in chunks: there are some yet
				continue
			}
			return outcome{err: &FullError{Key: key, After: res.Next}, free: res.Free, next: res.Next}
		case err == nil && errors.Is(res.Err, ErrSettled):
			return outcome{err: g.settled(key, res)}
		case err == nil:
			return outcome{err: res.Err}
		case errors.Is(err, ErrUnknown) && attempt < 3 && ctx.Err() == nil:
			continue
		}
		if !errors.Is(err, ErrUnknown) {
			return outcome{err: err}
		}
		if !r.given { // nobody can ask for this id again
			g.abandon(key, r.cmd.ID, r.cmd.N)
		}
		if ctx.Err() != nil {
			return outcome{err: ctx.Err()}
		}
		return outcome{err: err}
	}
}

func (g *Gate) settled(key string, res Result) *SettledError {
	left := time.Duration(res.Until)*time.Millisecond - time.Duration(res.At)*time.Microsecond
	return &SettledError{Key: key, Verdict: res.Verdict, Fence: res.Fence, Left: left}
}

// do sends a command and notes what it did to others.
func (g *Gate) do(ctx context.Context, key string, cmd *Command) (Result, error) {
	res, err := g.store.Do(ctx, key, cmd)
	if err != nil {
		return res, err
	}
	if res.Expired > 0 {
		g.opts.Observer.Reclaimed(key, res.Expired)
		g.count.reclaimed.Add(uint64(res.Expired))
	}
	if res.Wake { // our own need not wait for the message
		g.poke(key)
	}
	return res, nil
}

// abandon gives back what may have been granted to nobody.
func (g *Gate) abandon(key string, id ID, n int) {
	go func() { // for releaseTime at most
		if _, err := g.release(g.ctx, key, id, n); err != nil && !errors.Is(err, ErrExpired) {
			g.opts.Logger.Warn("a permit whose answer was lost may stay until its lease ends", "key", key, "err", err)
		}
	}()
}

// releaseTime is how long a release goes on after its caller's context has ended.
const releaseTime = 3 * time.Second

// release is not given up because ctx ends: a permit kept for a lease costs others more than
// one caller's patience.
func (g *Gate) release(ctx context.Context, key string, id ID, n int) (Result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	for {
		res, err := g.do(ctx, key, &Command{Op: OpRelease, ID: id, N: n})
		if err == nil {
			return res, res.Err
		}
		if !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrUnavailable) {
			return res, err
		}
		select {
		case <-ctx.Done():
			return res, err
		case <-time.After(50 * time.Millisecond): // the engine is away: give it a moment
		}
	}
}

// Release gives back the permits of an acquire by its id. Repeating it changes nothing.
// Errors: ErrExpired (nothing was given back: it had ended by itself), ErrUnknown, ErrUnavailable.
// It is tried for up to 3 s even when ctx has ended.
func (g *Gate) Release(ctx context.Context, key string, id ID) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	_, err := g.release(ctx, key, id, g.forget(key, id))
	if errors.Is(err, ErrExpired) {
		g.count.expired.Add(1)
	}
	g.opts.Observer.Released(key, err)
	return err
}

// Extend gives permits that are still held a new lease from now and returns when it ends, by
// the engine's clock, and how long that is from its decision. Errors: ErrExpired, ErrReleased (nothing is revived), ErrUnknown, …
func (g *Gate) Extend(ctx context.Context, key string, id ID, lease time.Duration) (time.Time, time.Duration, error) {
	res, err := g.simple(ctx, key, &Command{Op: OpExtend, ID: id, Lease: lease.Truncate(time.Millisecond)})
	if err != nil {
		return time.Time{}, 0, err
	}
	sh := g.shard(key)
	sh.mu.Lock()
	if h, ok := sh.held[id]; ok {
		h.until = time.Now().Add(res.Left())
		sh.held[id] = h
	}
	sh.mu.Unlock()
	return time.UnixMilli(res.Expires), res.Left(), nil
}

// Settle closes a key with a verdict for ttl: those who wait and those who come get a
// *SettledError at once. Call it after the transaction has committed, even if the permit has
// expired meanwhile. Errors: ErrStale where the key was reopened after that permit's grant.
func (g *Gate) Settle(ctx context.Context, key string, id ID, fence uint64, verdict string, ttl time.Duration) error {
	_, err := g.simple(ctx, key, &Command{Op: OpSettle, ID: id, Fence: fence, Verdict: verdict, TTL: ttl.Truncate(time.Millisecond)})
	return err
}

// Reopen forgets a key's verdict. Permits granted before it cannot settle the key any more; the
// fence returned is greater than theirs.
func (g *Gate) Reopen(ctx context.Context, key string) (fence uint64, err error) {
	res, err := g.simple(ctx, key, &Command{Op: OpReopen})
	return res.Fence, err
}

// Status is how a key stands.
type Status struct {
	At      time.Time
	Set     bool  // it has a limit
	Permits int64 // in all
	Free    int64 // negative while more are held than a lowered limit allows
	Held    int64
	Waiting int // on this node
	Verdict *SettledError
}

// Status tells how a key stands. A key never heard of is not an error: Set is false.
func (g *Gate) Status(ctx context.Context, key string) (Status, error) {
	for {
		res, err := g.simple(ctx, key, &Command{Op: OpStatus})
		if err != nil {
			return Status{}, err
		}
		if !res.More {
			return g.status(key, res), nil
		}
	}
}

// Set says how many permits a key has. A limit that is lowered takes nothing from holders: no
// permit is granted until enough have come back. One that is raised wakes those who wait.
func (g *Gate) Set(ctx context.Context, key string, permits int) (Status, error) {
	res, err := g.simple(ctx, key, &Command{Op: OpSet, Permits: int64(permits)})
	if err != nil {
		return Status{}, err
	}
	return g.status(key, res), nil
}

// Delete forgets a key: its permits, holders and verdict. Fences go on above those drawn.
func (g *Gate) Delete(ctx context.Context, key string) error {
	_, err := g.simple(ctx, key, &Command{Op: OpDelete})
	return err
}

// Health is the store's.
func (g *Gate) Health() error { return g.store.Health() }

func (g *Gate) status(key string, res Result) Status {
	s := Status{At: time.UnixMicro(res.At), Set: res.Set, Permits: res.Limit, Free: res.Free, Held: res.Held()}
	if res.Until > 0 {
		s.Verdict = g.settled(key, res)
	}
	sh := g.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if l := sh.lines[key]; l != nil {
		s.Waiting = l.waiters.Len()
	}
	return s
}

// simple sends a command that is repeated as it is where its answer was lost.
func (g *Gate) simple(ctx context.Context, key string, cmd *Command) (Result, error) {
	if err := CheckKey(key); err != nil {
		return Result{}, err
	}
	if err := cmd.Check(); err != nil {
		return Result{}, err
	}
	for attempt := 1; ; attempt++ {
		res, err := g.do(ctx, key, cmd)
		if err == nil {
			return res, res.Err
		}
		if !errors.Is(err, ErrUnknown) || ctx.Err() != nil || attempt == 3 {
			return Result{}, fmt.Errorf("%s %s: %w", cmd.Op, key, err)
		}
	}
}
