package leasetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/lease"
)

// cut is a store that a worker may be cut off from.
type cut struct {
	lease.Store
	off atomic.Bool
}

func (c *cut) err() error {
	if c.off.Load() {
		return fmt.Errorf("%w: cut off", lease.ErrUnavailable)
	}
	return nil
}

func (c *cut) Workers(ctx context.Context) ([]lease.WorkerRow, error) {
	if err := c.err(); err != nil {
		return nil, err
	}
	return c.Store.Workers(ctx)
}

func (c *cut) Beat(ctx context.Context, b lease.Beat) (bool, error) {
	if err := c.err(); err != nil {
		return false, err
	}
	return c.Store.Beat(ctx, b)
}

func (c *cut) Take(ctx context.Context, t lease.Take) (lease.Taken, error) {
	if err := c.err(); err != nil {
		return lease.Taken{}, err
	}
	return c.Store.Take(ctx, t)
}

func (c *cut) Flush(ctx context.Context, cs []lease.Cursor) ([]bool, error) {
	if err := c.err(); err != nil {
		return nil, err
	}
	return c.Store.Flush(ctx, cs)
}

// ledger is what is written to: it refuses a fence smaller than it has seen.
type ledger struct {
	mu      sync.Mutex
	fence   map[string]uint64
	who     map[string]lease.Owner // of that fence
	refused int
	wrong   []string
}

func (l *ledger) write(r lease.Resource) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch last := l.fence[r.ID]; {
	case r.Fence < last:
		l.refused++
		return false
	case r.Fence == last && l.who[r.ID] != r.Owner:
		l.wrong = append(l.wrong, fmt.Sprintf("%s: %v and %v under fence %d", r.ID, l.who[r.ID], r.Owner, r.Fence))
		return false
	}
	l.fence[r.ID], l.who[r.ID] = r.Fence, r.Owner
	return true
}

type fleet struct {
	f       *fixture
	ledger  *ledger
	opts    lease.Options
	mu      sync.Mutex
	workers []*lease.Worker
	stores  []*cut
	running map[string]int
}

// fast are options for tests: beats as often as a busy machine can.
func (f *fixture) fast() lease.Options {
	d := time.Duration(max(f.Pace, 1))
	return lease.Options{Lease: d * 3 * time.Second, Beat: d * 300 * time.Millisecond, Observe: d * 100 * time.Millisecond,
		Desired: d * 500 * time.Millisecond, Sweep: d * 2 * time.Second, Flush: d * 500 * time.Millisecond, Retry: 10 * time.Millisecond, Moves: 16}
}

func (f *fixture) fleet(n int, opts lease.Options) *fleet {
	fl := &fleet{f: f, opts: opts, ledger: &ledger{fence: map[string]uint64{}, who: map[string]lease.Owner{}}, running: map[string]int{}}
	for range n {
		fl.add()
	}
	f.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, w := range fl.workers {
			_ = w.Close(ctx)
		}
	})
	return fl
}

func (fl *fleet) add() int {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	i := len(fl.workers)
	store := []lease.Store{fl.f.Store, fl.f.Peer}[i%2]
	c := &cut{Store: store}
	o := fl.opts
	o.Worker = fmt.Sprint("w", i)
	o.Serve = fl.serve
	w, err := lease.New(c, o)
	fl.f.ok(err)
	fl.workers, fl.stores = append(fl.workers, w), append(fl.stores, c)
	return i
}

// serve writes until it is told to stop, or refused.
func (fl *fleet) serve(ctx context.Context, r lease.Resource) error {
	fl.count(r.ID, 1)
	defer fl.count(r.ID, -1)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		if fl.ledger.write(r) {
			r.SetCursor(fmt.Sprintf("%d.%d", r.Fence, n))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (fl *fleet) count(id string, d int) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.running[id] += d; fl.running[id] == 0 {
		delete(fl.running, id)
	}
}

// owned is how many resources somebody works on.
func (fl *fleet) owned() int { fl.mu.Lock(); defer fl.mu.Unlock(); return len(fl.running) }

func (fl *fleet) held(i int) int { return fl.workers[i].Stats().Held }

func (fl *fleet) check() {
	fl.f.Helper()
	fl.ledger.mu.Lock()
	defer fl.ledger.mu.Unlock()
	for _, w := range fl.ledger.wrong {
		fl.f.Error(w)
	}
}

// testFleet: workers are cut off, come back, join and leave, while calls fail and answers are lost.
func testFleet(f *fixture) {
	if testing.Short() {
		f.Skip("takes some leases")
	}
	n, k, slack := 48, 10, 0 // divided by 3 and by 4; how many are stopped, and how many deleted; beyond a share
	if f.Pace > 1 {          // the last one moves after many beats
		n, k, slack = 24, 5, 1
	}
	for i := range n {
		f.start(fmt.Sprintf("r%02d", i))
	}
	fl := f.fleet(3, f.fast())
	f.eventually("all are owned", func() bool { return fl.owned() == n })
	f.eventually("each has a share", func() bool { return max(fl.held(0), fl.held(1), fl.held(2)) <= n/3 })
	stop := func() {}
	if f.Hurt != nil {
		stop = f.Hurt(f.T)
	}
	gen := fl.workers[0].Stats().Owner
	fl.stores[0].off.Store(true)
	f.eventually("the one that was cut off lets go, and the others have its part", func() bool { return fl.held(1)+fl.held(2) >= n })
	fl.stores[0].off.Store(false)
	f.eventually("it comes back as another generation", func() bool {
		o := fl.workers[0].Stats().Owner
		return o != gen && o != (lease.Owner{})
	})
	stop()
	fl.add()
	f.eventually("a fourth one gets its share, gently", func() bool {
		most := 0
		for i := range 4 {
			most = max(most, fl.held(i))
		}
		return most <= n/4+slack && fl.owned() == n
	})
	f.ok(fl.workers[1].Close(f.Context()))
	f.eventually("all are owned after one left", func() bool { return fl.owned() == n && fl.held(0)+fl.held(2)+fl.held(3) == n })
	for i := range k {
		_, err := f.Store.Put(f.Context(), lease.Put{ID: fmt.Sprintf("r%02d", i), Desired: lease.Stopped})
		f.ok(err)
		_, err = f.Peer.Delete(f.Context(), fmt.Sprintf("r%02d", k+i))
		f.ok(err)
	}
	f.eventually("stopped and deleted ones are let go of", func() bool { return fl.owned() == n-2*k })
	for i := range k {
		f.start(fmt.Sprintf("r%02d", i))
	}
	f.eventually("started ones are owned", func() bool { return fl.owned() == n-k })
	for _, w := range fl.workers {
		f.ok(w.Close(f.Context()))
	}
	fl.check()
	for i := 2 * k; i < n; i++ {
		id := fmt.Sprintf("r%02d", i)
		r := f.get(id)
		var fence, step uint64
		if _, err := fmt.Sscanf(r.Cursor, "%d.%d", &fence, &step); err != nil || fence > r.Fence {
			f.Errorf("%s: cursor %q, fence %d", id, r.Cursor, r.Fence)
		}
	}
	f.Logf("%d writes under an old fence were refused", fl.ledger.refused)
}

// testHandover: cases/lease 17. Whoever leaves gives all back in one write, but for what hangs.
func testHandover(f *fixture) {
	n := 120 / max(f.Pace, 1)
	for i := range n {
		f.start(fmt.Sprintf("r%03d", i))
	}
	fl := f.fleet(1, lease.Options{Observe: time.Duration(max(f.Pace, 1)) * 50 * time.Millisecond, Desired: time.Second, Beat: time.Second, Lease: 20 * time.Second})
	f.eventually("all are owned", func() bool { return fl.owned() == n })
	fl.add()
	f.eventually("two workers", func() bool { return fl.workers[1].Stats().Workers == 2 })
	began := time.Now()
	f.ok(fl.workers[0].Close(f.Context()))
	closed := time.Since(began)
	f.eventually("the other has all", func() bool { return fl.held(1) == n && fl.owned() == n })
	f.Logf("%d resources: let go of in %v, taken after %v", n, closed.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	fl.check()
}

// testLocks: cases/lease 2, 3, 4, 5, 12.
func testLocks(f *fixture) {
	o := lease.Options{Observe: time.Duration(max(f.Pace, 1)) * 30 * time.Millisecond, Beat: time.Second}
	var ws []*lease.Worker
	for i := range 2 {
		w, err := lease.New([]lease.Store{f.Store, f.Peer}[i], o)
		f.ok(err)
		defer func() { f.ok(w.Close(context.Background())) }()
		ws = append(ws, w)
	}
	var inside, total atomic.Int32
	var last atomic.Uint64
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for range 2 {
				l, err := ws[i%2].Acquire(f.Context(), "door")
				if err != nil {
					f.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					f.Error("two inside")
				}
				if fence := l.Fence(); last.Swap(fence) >= fence {
					f.Error("a fence that does not grow")
				}
				inside.Add(-1)
				total.Add(1)
				if err := l.Release(f.Context()); err != nil {
					f.Error(err)
				}
				if err := l.Context().Err(); err == nil {
					f.Error("the context of a released lock lives")
				}
			}
		})
	}
	wg.Wait()
	if total.Load() != 40 {
		f.Errorf("%d went in", total.Load())
	}
	l, err := ws[0].Acquire(f.Context(), "door")
	f.ok(err)
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan error)
	go func() { _, err := ws[1].Acquire(ctx, "door"); done <- err }()
	cancel()
	if err := <-done; err != context.Canceled {
		f.Errorf("a cancelled wait: %v", err)
	}
	f.ok(l.Release(f.Context()))
	var locks []*lease.Lock
	for i := range 3 {
		l, err := ws[1].Acquire(f.Context(), fmt.Sprint("door", i))
		f.ok(err)
		locks = append(locks, l)
	}
	for _, l := range locks {
		f.ok(l.Release(f.Context()))
		f.ok(l.Release(f.Context()))
	}
}
