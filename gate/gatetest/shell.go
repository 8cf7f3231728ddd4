package gatetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/gate"
)

// open makes a gate on a store.
func (f *fixture) open(s gate.Store, o gate.Options) *gate.Gate {
	f.Helper()
	g, err := gate.New(s, o)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(g.Close)
	return g
}

func (f *fixture) acquire(g *gate.Gate, opts ...gate.Option) *gate.Permit {
	f.Helper()
	p, err := g.Acquire(f.Context(), f.key, opts...)
	if err != nil {
		f.Fatal(err)
	}
	return p
}

func (f *fixture) waiting(g *gate.Gate, n int) {
	f.Helper()
	eventually(f.T, fmt.Sprint(n, " wait"), func() bool { return g.Stats().Waiting == n })
}

const long = 5 * time.Minute

func testOrder(f *fixture) { // cases/gate 10
	g := f.open(f.s, gate.Options{Permits: 1})
	p := f.acquire(g)
	const callers = 20
	order := make(chan int, callers)
	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() {
			p, err := g.Acquire(f.Context(), f.key, gate.Wait(long))
			if err != nil {
				f.Errorf("caller %d: %v", n, err)
				return
			}
			order <- n
			if err := p.Release(f.Context()); err != nil {
				f.Errorf("caller %d: %v", n, err)
			}
		})
		f.waiting(g, n+1)
	}
	if err := p.Release(f.Context()); err != nil {
		f.Fatal(err)
	}
	wg.Wait()
	for n := range callers {
		if got := <-order; got != n {
			f.Fatalf("%d came when it was %d's turn", got, n)
		}
	}
	f.counts(1, 1)
}

// testCrash: a holder dies without a word; those who wait get its permit when its lease ends,
// with nobody else calling.
func testCrash(f *fixture) { // cases/gate 1
	dead := f.open(f.can.peer(f.T, f.s), gate.Options{Permits: 2})
	crashed := f.acquire(dead, gate.N(2), gate.Lease(300*time.Millisecond))
	g := f.open(f.s, gate.Options{Permits: 2})
	first := f.acquire(g, gate.Wait(long))
	second := f.acquire(g, gate.Wait(long))
	if first.Fence() <= crashed.Fence() || second.Fence() <= first.Fence() {
		f.Errorf("fences %d, %d, %d", crashed.Fence(), first.Fence(), second.Fence())
	}
	if err := crashed.Release(f.Context()); !errors.Is(err, gate.ErrExpired) {
		f.Errorf("late release: %v", err)
	}
	f.counts(2, 0)
	if s := g.Stats(); s.Reclaimed != 2 || s.Held != 2 {
		f.Errorf("%+v", s)
	}
}

// testGivingUp: waiters give up just as permits come free; none is lost or doubled.
func testGivingUp(f *fixture) { // cases/gate 7
	g := f.open(f.s, gate.Options{Permits: 1})
	var holders atomic.Int64
	var wg sync.WaitGroup
	got := atomic.Int64{}
	for range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(rand.Uint64(), 3))
			for range 60 {
				ctx, cancel := context.WithCancel(f.Context())
				time.AfterFunc(time.Duration(rnd.IntN(1500))*time.Microsecond, cancel)
				p, err := g.Acquire(ctx, f.key, gate.Wait(long))
				if err == nil {
					if n := holders.Add(1); n > 1 {
						f.Errorf("%d hold one permit", n)
					}
					got.Add(1)
					holders.Add(-1)
					if err := p.Release(f.Context()); err != nil {
						f.Error(err)
					}
				} else if !errors.Is(err, context.Canceled) {
					f.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	eventually(f.T, "what was granted to nobody comes back", func() bool {
		return f.do(&gate.Command{Op: gate.OpStatus}).Free == 1
	})
	f.Logf("%d of 480 got it", got.Load())
	f.acquire(g, gate.Wait(long)) // what was just passed on may be on its way
}

func testDoneContext(f *fixture) { // cases/gate 11
	g := f.open(f.s, gate.Options{Permits: 1})
	ctx, cancel := context.WithCancel(f.Context())
	cancel()
	if _, err := g.Acquire(ctx, f.key); !errors.Is(err, context.Canceled) {
		f.Fatal(err)
	}
	f.counts(0, 0) // the store was not even asked
}

// testRaise: a limit that is raised by another process wakes those who wait.
func testRaise(f *fixture) { // cases/gate 3
	g := f.open(f.s, gate.Options{})
	other := f.open(f.can.peer(f.T, f.s), gate.Options{})
	if _, err := other.Set(f.Context(), f.key, 0); err != nil {
		f.Fatal(err)
	}
	got := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := g.Acquire(f.Context(), f.key, gate.Wait(long))
			got <- err
		}()
	}
	f.waiting(g, 3)
	if _, err := other.Set(f.Context(), f.key, 2); err != nil {
		f.Fatal(err)
	}
	for range 2 {
		if err := <-got; err != nil {
			f.Fatal(err)
		}
	}
	f.counts(2, 0)
	f.waiting(g, 1)
	g.Close()
	if err := <-got; !errors.Is(err, gate.ErrClosed) {
		f.Errorf("the last one: %v", err)
	}
}

// testVerdict: all who wait, on all nodes, and all who come get the verdict.
func testVerdict(f *fixture) {
	nodes := []*gate.Gate{f.open(f.s, gate.Options{Permits: 1}), f.open(f.can.peer(f.T, f.s), gate.Options{Permits: 1})}
	p := f.acquire(nodes[0])
	const each = 30
	got := make(chan error, 2*each)
	for _, g := range nodes {
		for range each {
			go func() {
				_, err := g.Acquire(f.Context(), f.key, gate.Wait(long))
				got <- err
			}()
		}
		f.waiting(g, each)
	}
	if err := p.Settle(f.Context(), "taken by 7", time.Minute); err != nil {
		f.Fatal(err)
	}
	for range 2 * each {
		var s *gate.SettledError
		if err := <-got; !errors.As(err, &s) || s.Verdict != "taken by 7" || s.Fence != p.Fence() || s.Left <= 0 || s.Left > time.Minute {
			f.Fatalf("%v, %+v", err, s)
		}
	}
	_, err := nodes[1].Acquire(f.Context(), f.key)
	if !errors.Is(err, gate.ErrSettled) {
		f.Fatal(err)
	}
	if st, err := nodes[1].Status(f.Context(), f.key); err != nil || st.Verdict == nil || st.Verdict.Verdict != "taken by 7" || st.Held != 1 {
		f.Errorf("%+v, %v", st, err)
	}
	if err := p.Release(f.Context()); err != nil {
		f.Error(err)
	}
	if _, err := nodes[1].Reopen(f.Context(), f.key); err != nil {
		f.Fatal(err)
	}
	f.acquire(nodes[1])
	if err := p.Settle(f.Context(), "late", time.Minute); !errors.Is(err, gate.ErrStale) {
		f.Errorf("a settle from before the reopening: %v", err)
	}
}

// deaf is a store whose messages are lost.
type deaf struct {
	gate.Store
	fail bool
}

func (d deaf) Watch(context.Context, string, func()) error {
	if d.fail {
		return gate.ErrUnavailable
	}
	return nil
}

// testUnheard: messages are lost, as while a bus reconnects; waiters notice by themselves.
func testUnheard(f *fixture) { // cases/gate 8
	for _, fail := range []bool{false, true} {
		holder := f.open(f.s, gate.Options{Permits: 1})
		p := f.acquire(holder)
		g := f.open(deaf{f.s, fail}, gate.Options{})
		got := make(chan error, 1)
		go func() {
			p, err := g.Acquire(f.Context(), f.key, gate.Wait(long))
			if err == nil {
				err = p.Release(f.Context())
			}
			got <- err
		}()
		f.waiting(g, 1)
		if err := p.Release(f.Context()); err != nil {
			f.Fatal(err)
		}
		if err := <-got; err != nil {
			f.Fatal(err)
		}
	}
}

// testLostReplies: the shell settles lost answers by asking again, and leaks nothing.
func testLostReplies(f *fixture) { // cases/gate 6
	g := f.open(&lossy{Store: f.s, rnd: rand.New(rand.NewPCG(rand.Uint64(), 4))}, gate.Options{Permits: 3})
	var inside atomic.Int64
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for range 40 {
				err := g.Do(f.Context(), f.key, func(context.Context, *gate.Permit) error {
					if n := inside.Add(1); n > 3 {
						f.Errorf("%d inside", n)
					}
					inside.Add(-1)
					return nil
				}, gate.Wait(long))
				if err != nil && !errors.Is(err, gate.ErrUnknown) {
					f.Error(err)
				}
			}
		})
	}
	wg.Wait()
	eventually(f.T, "all come back", func() bool { return f.do(&gate.Command{Op: gate.OpStatus}).Free == 3 })
}

// testStorm: two nodes, many callers, permits for some at once, crashes and changes of the limit;
// never more hold a permit than the highest limit allows, and none is missing at the end.
func testStorm(f *fixture) {
	nodes := []*gate.Gate{f.open(f.s, gate.Options{}), f.open(f.can.peer(f.T, f.s), gate.Options{})}
	f.set(6)
	var mu sync.Mutex
	var grants []span
	var wg sync.WaitGroup
	for c := range 24 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(rand.Uint64(), uint64(c)))
			g := nodes[c%2]
			for range 15 {
				n := 1 + rnd.IntN(3)
				p, err := g.Acquire(f.Context(), f.key, gate.N(n), gate.Wait(long), gate.Lease(time.Duration(5+rnd.IntN(60))*time.Millisecond))
				if err != nil {
					f.Error(err)
					return
				}
				if rnd.IntN(4) == 0 { // crash
					mu.Lock()
					grants = append(grants, span{int64(p.Fence()), p.Expires().UnixMicro(), n})
					mu.Unlock()
					continue
				}
				if rnd.IntN(3) == 0 {
					time.Sleep(time.Duration(rnd.IntN(2000)) * time.Microsecond) // the work
				}
				if err := p.Release(f.Context()); err != nil && !errors.Is(err, gate.ErrExpired) {
					f.Error(err)
				}
			}
		})
	}
	stop := make(chan struct{})
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			if _, err := nodes[0].Set(f.Context(), f.key, 3+n%4); err != nil {
				f.Error(err)
				return
			}
		}
	}()
	wg.Wait()
	close(stop)
	<-changed
	f.set(6)
	eventually(f.T, "all come back", func() bool {
		r := f.do(&gate.Command{Op: gate.OpStatus})
		return r.Free == 6 && r.Limit == 6
	})
	if over := overlap(grants); over > 6 {
		f.Errorf("%d permits of crashed holders at once, of 6", over)
	}
	f.Logf("%+v, %+v", nodes[0].Stats(), nodes[1].Stats())
}

// span is a permit that nobody gave back: held from its fence, which is a time, to its end.
type span struct {
	from, to int64
	n        int
}

// overlap is the most permits held at one moment.
func overlap(spans []span) (most int) {
	type edge struct {
		at int64
		n  int
	}
	var edges []edge
	for _, s := range spans {
		edges = append(edges, edge{s.from, s.n}, edge{s.to, -s.n})
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return a.n - b.n
	})
	n := 0
	for _, e := range edges {
		n += e.n
		most = max(most, n)
	}
	return most
}
