package flight_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/flight"
)

// origin is what loads ask: it counts them and knows how many run at once.
type origin struct {
	now, most, loads atomic.Int64
}

func (o *origin) load(v string, d time.Duration) flight.Load[string] {
	return func(ctx context.Context) (string, error) {
		defer o.enter()()
		select {
		case <-time.After(d):
			return v, nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// deaf is a load that ignores its context.
func (o *origin) deaf(v string, d time.Duration) flight.Load[string] {
	return func(context.Context) (string, error) {
		defer o.enter()()
		time.Sleep(d)
		return v, nil
	}
}

func (o *origin) enter() func() {
	o.loads.Add(1)
	n := o.now.Add(1)
	for m := o.most.Load(); n > m && !o.most.CompareAndSwap(m, n); m = o.most.Load() {
	}
	return func() { o.now.Add(-1) }
}

func (o *origin) want(t *testing.T, loads, most int64) {
	t.Helper()
	if l, m := o.loads.Load(), o.most.Load(); l != loads || m > most {
		t.Errorf("%d loads, %d at once; want %d, at most %d", l, m, loads, most)
	}
}

type answer struct {
	flight.Result[string]
	err  error
	took time.Duration
}

// ask calls in a goroutine of its own.
func ask(ctx context.Context, g *flight.Group[string, string], key string, w flight.With, load flight.Load[string]) <-chan answer {
	c := make(chan answer, 1)
	go func() {
		start := time.Now()
		r, err := g.DoWith(ctx, key, w, load)
		c <- answer{r, err, time.Since(start)}
	}()
	return c
}

func (a answer) want(t *testing.T, who, v string) {
	t.Helper()
	if a.err != nil || a.Value != v {
		t.Errorf("%s got %q, %v; want %q", who, a.Value, a.err, v)
	}
}

func (a answer) fails(t *testing.T, who string, want error) {
	t.Helper()
	if !errors.Is(a.err, want) {
		t.Errorf("%s got %q, %v; want error %v", who, a.Value, a.err, want)
	}
}

// cancellable is a context that is never in fact cancelled but makes loads run detached.
func cancellable(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx
}

func TestForgetThenThirdCaller(t *testing.T) { // cases/flight 1
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group[string, string]
		var o origin
		ctx := cancellable(t)
		a := ask(ctx, &g, "k", flight.With{}, o.load("old", 10*time.Second))
		synctest.Wait()
		g.Forget("k")
		b := ask(ctx, &g, "k", flight.With{}, o.load("new", 10*time.Second))
		time.Sleep(11 * time.Second) // the old one has ended; the new one runs
		c := ask(ctx, &g, "k", flight.With{}, o.load("third", time.Second))
		(<-a).want(t, "before Forget", "old")
		(<-b).want(t, "after Forget", "new")
		(<-c).want(t, "third caller", "new")
		o.want(t, 2, 1)
	})
}

func TestLeaderLeavesFollowersStay(t *testing.T) { // cases/flight 2
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group[string, string]
		var o origin
		ctx, cancel := context.WithCancel(context.Background())
		lead := ask(ctx, &g, "k", flight.With{}, o.load("v", time.Second))
		synctest.Wait()
		var rest []<-chan answer
		for range 20 {
			rest = append(rest, ask(cancellable(t), &g, "k", flight.With{}, o.load("own", time.Second)))
		}
		synctest.Wait()
		cancel()
		(<-lead).fails(t, "leader", context.Canceled)
		for _, c := range rest {
			(<-c).want(t, "follower", "v")
		}
		o.want(t, 1, 1)
	})
}

func TestWaiterLeavesOnHerOwnDeadline(t *testing.T) { // cases/flight 3
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group[string, string]
		var o origin
		stuck := ask(context.Background(), &g, "k", flight.With{}, o.deaf("v", time.Minute))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		a := <-ask(ctx, &g, "k", flight.With{}, o.load("own", 0))
		a.fails(t, "waiter", context.DeadlineExceeded)
		if late := a.took - 50*time.Millisecond; late < 0 || late > 5*time.Millisecond {
			t.Errorf("left %v after her deadline", late)
		}
		<-stuck
	})
}

func TestAbandonedDeafLoadKeepsItsKey(t *testing.T) { // cases/flight 4
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group[string, string]
		var o origin
		for range 10 {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			(<-ask(ctx, &g, "k", flight.With{}, o.deaf("v", 20*time.Second))).fails(t, "caller", context.DeadlineExceeded)
			cancel()
		}
		o.want(t, 1, 1)
		if s := g.Stats(); s.Orphans != 1 || s.Waiters != 0 || s.Queued != 0 {
			t.Errorf("stats %+v", s)
		}
		(<-ask(cancellable(t), &g, "k", flight.With{}, o.load("fresh", 0))).want(t, "next caller", "fresh")
		o.want(t, 2, 1)
	})
}

func TestHealthyCallerAfterCancelledFlight(t *testing.T) { // cases/flight 5
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group[string, string]
		var o origin
		ctx, cancel := context.WithCancel(context.Background())
		first := ask(ctx, &g, "k", flight.With{}, func(ctx context.Context) (string, error) {
			defer o.enter()()
			<-ctx.Done()
			if context.Cause(ctx) != flight.ErrAbandoned {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			time.Sleep(3 * time.Second) // cleaning up
			return "late", nil
		})
		synctest.Wait()
		cancel()
		<-first
		synctest.Wait()
		a := <-ask(cancellable(t), &g, "k", flight.With{}, o.load("next", time.Second))
		a.want(t, "healthy caller", "next")
		if a.took != 4*time.Second {
			t.Errorf("took %v, want the 3 s of the old load's end and 1 s of her own", a.took)
		}
		o.want(t, 2, 1)
	})
}

func TestPanicAndGoexitReachEverybody(t *testing.T) { // cases/flight 6
	for _, inline := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var g flight.Group[string, string]
			ctx := cancellable(t)
			if inline {
				ctx = context.Background()
			}
			crash := func(how func()) (leader, follower answer) {
				a := ask(ctx, &g, "k", flight.With{}, func(context.Context) (string, error) {
					time.Sleep(time.Second)
					how()
					return "unreachable", nil
				})
				synctest.Wait()
				b := ask(cancellable(t), &g, "k", flight.With{}, nil)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				select {
				case leader = <-a:
				default: // her goroutine has exited
				}
				return leader, <-b
			}
			boom := errors.New("boom")
			a, b := crash(func() { panic(boom) })
			for _, x := range []answer{a, b} {
				var p *flight.PanicError
				if !errors.As(x.err, &p) || !errors.Is(x.err, boom) || !strings.Contains(string(p.Stack), "case_test.go") {
					t.Errorf("panic gave %v", x.err)
				}
			}
			a, b = crash(runtime.Goexit)
			var e *flight.GoexitError
			if !errors.As(b.err, &e) || !strings.Contains(string(e.Stack), "case_test.go") {
				t.Errorf("Goexit gave %q, %v", b.Value, b.err)
			}
			if !inline && !errors.As(a.err, &e) {
				t.Errorf("Goexit gave the leader %q, %v", a.Value, a.err)
			}
			(<-ask(ctx, &g, "k", flight.With{}, (&origin{}).load("fine", 0))).want(t, "next caller", "fine")
		})
	}
}

func TestFinishedFlightIsNeverJoined(t *testing.T) { // cases/flight 7
	var g flight.Group[int, int64]
	var loads, returned atomic.Int64
	var wg sync.WaitGroup
	for w := range 8 {
		ctx := context.Background()
		if w%2 == 0 {
			ctx = cancellable(t)
		}
		wg.Go(func() {
			for range 2000 {
				old := returned.Load() // somebody has had the answer of this load already
				v, err := g.Do(ctx, 1, func(context.Context) (int64, error) { runtime.Gosched(); return loads.Add(1), nil })
				if err != nil || v <= old {
					t.Errorf("load %d had been answered, got %d, %v", old, v, err)
					return
				}
				for r := returned.Load(); v > r && !returned.CompareAndSwap(r, v); r = returned.Load() {
				}
			}
		})
	}
	wg.Wait()
}

func TestLateLoadDoesNotOverwrite(t *testing.T) { // cases/flight 8
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		cache := map[string]string{}
		g := flight.New(flight.Options[string, string]{Fill: func(k, v string) {
			mu.Lock()
			defer mu.Unlock()
			cache[k] = v
		}})
		var o origin
		var version atomic.Int64
		load := func(ctx context.Context) (string, error) {
			v := []string{"old", "new"}[min(1, version.Load())]
			return o.load(v, 20*time.Millisecond)(ctx)
		}
		before := ask(cancellable(t), g, "k", flight.With{}, load)
		synctest.Wait()
		version.Add(1)
		g.Forget("k")
		a := <-before
		a.want(t, "who asked before", "old")
		if !a.Superseded {
			t.Error("the late value is not marked")
		}
		synctest.Wait()
		mu.Lock()
		if cache["k"] != "" {
			t.Errorf("the late load filled the cache with %q", cache["k"])
		}
		mu.Unlock()
		(<-ask(cancellable(t), g, "k", flight.With{}, load)).want(t, "who asks after", "new")
		if cache["k"] != "new" {
			t.Errorf("cache has %q", cache["k"])
		}

		// A key that is invalidated every 5 ms under a load of 20 ms still answers.
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
					g.Forget("k")
				}
			}
		}()
		time.Sleep(7 * time.Millisecond)
		for _, w := range []flight.With{{}, {Fresh: true}} {
			n := o.loads.Load()
			a := <-ask(cancellable(t), g, "k", w, load)
			a.want(t, "under invalidations", "new")
			if !a.Superseded {
				t.Error("not marked")
			}
			most := int64(1)
			if w.Fresh {
				most = 2
			}
			if d := o.loads.Load() - n; d != most || a.took > time.Duration(most+1)*20*time.Millisecond {
				t.Errorf("Fresh %v: %d loads, %v", w.Fresh, d, a.took)
			}
		}
		close(stop)
	})
}

func TestForgetAllMeetsFirstLoads(t *testing.T) { // cases/flight 9
	synctest.Test(t, func(t *testing.T) {
		filled := make(chan string, 100)
		g := flight.New(flight.Options[string, string]{Fill: func(k, v string) { filled <- k + "=" + v }})
		var o origin
		keys := []string{"a", "b", "c", "d", "e"}
		var old, young []<-chan answer
		for _, k := range keys { // none of them has ever been loaded: there is no version to bump but the epoch
			old = append(old, ask(cancellable(t), g, k, flight.With{}, o.load("old", time.Second)))
		}
		synctest.Wait()
		g.ForgetAll()
		for _, k := range keys {
			young = append(young, ask(cancellable(t), g, k, flight.With{}, o.load("new", time.Second)))
		}
		for i := range keys {
			a := <-old[i]
			a.want(t, "before", "old")
			if !a.Superseded {
				t.Error("not marked")
			}
			(<-young[i]).want(t, "after", "new")
		}
		close(filled)
		for f := range filled {
			if !strings.HasSuffix(f, "=new") {
				t.Errorf("filled %s", f)
			}
		}
	})
}

func TestFailingKeyBacksOff(t *testing.T) { // cases/flight 10
	down := errors.New("origin down")
	for _, tc := range []struct {
		err   error
		loads int64 // within 10 s
	}{
		{down, 7}, // at 0, .1, .3, .7, 1.5, 3.1, 6.3 s
		{&flight.Error{Class: flight.Throttled, Err: down}, 4},             // 0, 1, 3, 7
		{&flight.Error{Class: flight.Denied, Err: down}, 4},                // the same
		{&flight.Error{Class: flight.NotFound, Err: down}, 6},              // 0, .25, .75, 1.75, 3.75, 7.75
		{&flight.Error{Class: flight.Permanent, Err: down}, 1},             // 0
		{&flight.Error{Class: flight.Throttled, After: 4e9, Err: down}, 3}, // 0, 4, 8
		{context.DeadlineExceeded, 200},                                    // never remembered: a load each 50 ms
	} {
		synctest.Test(t, func(t *testing.T) {
			var g flight.Group[string, string]
			var loads atomic.Int64
			var wg sync.WaitGroup
			start := time.Now()
			for range 100 {
				wg.Go(func() {
					for time.Since(start) < 10*time.Second {
						_, err := g.Do(context.Background(), "k", func(context.Context) (string, error) {
							loads.Add(1)
							time.Sleep(time.Nanosecond)
							return "", tc.err
						})
						if !errors.Is(err, tc.err) {
							t.Errorf("got %v", err)
						}
						time.Sleep(50*time.Millisecond - time.Since(start)%(50*time.Millisecond))
					}
				})
			}
			wg.Wait()
			if n := loads.Load(); n != tc.loads {
				t.Errorf("%v: %d loads in 10 s, want %d", tc.err, n, tc.loads)
			}
		})
	}
}

// cases/flight 11 needs more than one process: TestDeadLeaderHasOneSuccessor in flight/shared.

func TestManyKeysAtOnceAreBounded(t *testing.T) { // cases/flight 12
	synctest.Test(t, func(t *testing.T) {
		g := flight.New(flight.Options[string, string]{Budget: flight.Budget{Concurrency: 4, MaxPending: 16}})
		var o origin
		var all []<-chan answer
		for i := range 100 {
			key := string(rune('A' + i))
			for range 10 { // the budget counts loads, not callers
				all = append(all, ask(cancellable(t), g, key, flight.With{}, o.deaf(key, time.Second)))
			}
			synctest.Wait()
		}
		if n := runtime.NumGoroutine(); n > 4+20*10+50 {
			t.Errorf("%d goroutines", n)
		}
		if s := g.Stats(); s.Running != 4 || s.Pending != 16 || s.Budget != 4 {
			t.Errorf("stats %+v", s)
		}
		ok, busy := 0, 0
		for _, c := range all {
			switch a := <-c; {
			case a.err == nil:
				ok++
			case errors.Is(a.err, flight.ErrBusy) && a.took == 0:
				busy++
			default:
				t.Errorf("%v after %v", a.err, a.took)
			}
		}
		if ok != 200 || busy != 800 {
			t.Errorf("%d served, %d refused", ok, busy)
		}
		o.want(t, 20, 4)

		// The budget comes back at the real end, not when the callers leave.
		var stuck []<-chan answer
		for i := range 4 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			stuck = append(stuck, ask(ctx, g, string(rune('A'+i)), flight.With{}, o.deaf("", 10*time.Second)))
		}
		for _, c := range stuck {
			<-c
		}
		a := <-ask(cancellable(t), g, "Z", flight.With{}, o.deaf("z", 0))
		a.want(t, "next", "z")
		if a.took < 9*time.Second {
			t.Errorf("started after %v, beside loads that had not returned", a.took)
		}
		synctest.Wait()
		if s := g.Stats(); s.Budget != 0 || s.Running != 0 || s.Pending != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

type note struct{}

func TestRecursionIsAnError(t *testing.T) { // cases/flight 13
	for _, ctx := range []context.Context{context.Background(), cancellable(t)} {
		var g flight.Group[string, string]
		var do func(ctx context.Context, key string, rest ...string) (string, error)
		do = func(ctx context.Context, key string, rest ...string) (string, error) {
			return g.Do(ctx, key, func(ctx context.Context) (string, error) {
				if len(rest) == 0 {
					return key, nil
				}
				ctx, cancel := context.WithCancel(context.WithValue(ctx, note{}, key)) // seen through derived contexts
				defer cancel()
				return do(ctx, rest[0], rest[1:]...)
			})
		}
		if _, err := do(ctx, "a", "a"); !errors.Is(err, flight.ErrRecursive) {
			t.Errorf("a in a: %v", err)
		}
		if _, err := do(ctx, "a", "b", "c", "a"); !errors.Is(err, flight.ErrRecursive) {
			t.Errorf("a in c in b in a: %v", err)
		}
		if v, err := do(ctx, "a", "b", "c"); v != "c" || err != nil {
			t.Errorf("a, b, c: %v, %v", v, err)
		}
	}
	// Two loads that wait for each other.
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group[string, string]
		ctx := cancellable(t)
		cross := func(own, other string) <-chan answer {
			return ask(ctx, &g, own, flight.With{}, func(ctx context.Context) (string, error) {
				time.Sleep(time.Second)
				v, err := g.Do(ctx, other, func(context.Context) (string, error) { return "own " + other, nil })
				if errors.Is(err, flight.ErrRecursive) {
					return "without " + other, nil
				}
				return v, err
			})
		}
		a, b := cross("a", "b"), cross("b", "a")
		x, y := <-a, <-b
		if x.err != nil || y.err != nil || x.took > 2*time.Second || x.Value != y.Value || !strings.HasPrefix(x.Value, "without") {
			t.Errorf("got %+v and %+v", x, y)
		}
	})
	// The next generation of its own key, after a Forget.
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group[string, string]
		a := <-ask(cancellable(t), &g, "a", flight.With{}, func(ctx context.Context) (string, error) {
			g.Forget("a")
			return g.Do(ctx, "a", nil)
		})
		a.fails(t, "a in a after Forget", flight.ErrRecursive)
	})
}

func TestPrincipalsDoNotMix(t *testing.T) { // cases/flight 14
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group[flight.Key, string]
		ctx := cancellable(t)
		got := make(chan [2]string, 4)
		for _, k := range []flight.Key{
			{Principal: "ann", Name: "inbox"}, {Principal: "bob", Name: "inbox"},
			{Tenant: "a:b", Name: "c"}, {Tenant: "a", Name: "b:c"},
		} {
			go func() {
				v, _ := g.Do(ctx, k, func(context.Context) (string, error) {
					time.Sleep(time.Second)
					return k.Tenant + "/" + k.Principal, nil
				})
				got <- [2]string{k.Tenant + "/" + k.Principal, v}
			}()
		}
		for range 4 {
			if p := <-got; p[0] != p[1] {
				t.Errorf("%s got the answer of %s", p[0], p[1])
			}
		}
	})
}

func TestOtherArgumentsAreRefused(t *testing.T) { // cases/flight 15
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group[string, string]
		var o origin
		a := ask(cancellable(t), &g, "k", flight.With{Args: "page=1"}, o.load("one", time.Second))
		synctest.Wait()
		(<-ask(cancellable(t), &g, "k", flight.With{Args: "page=2"}, o.load("two", 0))).fails(t, "page 2", flight.ErrArgs)
		(<-ask(cancellable(t), &g, "k", flight.With{}, o.load("none", 0))).fails(t, "no args", flight.ErrArgs)
		b := ask(cancellable(t), &g, "k", flight.With{Args: "page=1"}, o.load("two", 0))
		(<-a).want(t, "leader", "one")
		(<-b).want(t, "same args", "one")
		(<-ask(cancellable(t), &g, "k", flight.With{Args: "page=2"}, o.load("two", 0))).want(t, "later", "two")
	})
}

func TestNotShareableReleasesCallers(t *testing.T) { // cases/flight 16
	synctest.Test(t, func(t *testing.T) {
		g := flight.New(flight.Options[string, string]{
			NotShareableFor: 5 * time.Second,
			Budget:          flight.Budget{Concurrency: 10, MaxPending: 90},
		})
		var o origin
		own := func(v string) flight.Load[string] {
			return func(ctx context.Context) (string, error) {
				v, _ := o.load(v, time.Second)(ctx)
				return v, flight.NotShareable(0)
			}
		}
		round := func(n int, most time.Duration) {
			t.Helper()
			var all []<-chan answer
			for i := range n {
				all = append(all, ask(cancellable(t), g, "k", flight.With{}, own(string(rune('A'+i)))))
			}
			for i, c := range all {
				a := <-c
				a.want(t, "caller", string(rune('A'+i))) // her own
				if a.took > most {
					t.Errorf("took %v, want at most %v", a.took, most)
				}
			}
		}
		round(51, 6*time.Second) // one load, then fifty in waves of ten
		if n := o.loads.Load(); n < 51 || n > 52 || o.most.Load() > 10 {
			t.Errorf("%d loads, %d at once", n, o.most.Load())
		}
		round(10, time.Second) // remembered: nobody waits for anybody
		time.Sleep(6 * time.Second)
		n := o.loads.Load()
		a := ask(cancellable(t), g, "k", flight.With{}, o.load("shared again", time.Second))
		synctest.Wait()
		b := ask(cancellable(t), g, "k", flight.With{}, o.load("x", time.Second))
		(<-a).want(t, "after a while", "shared again")
		(<-b).want(t, "after a while", "shared again")
		if o.loads.Load() != n+1 {
			t.Error("not forgotten")
		}
	})
}

func TestCloseWaits(t *testing.T) { // cases/flight 17
	synctest.Test(t, func(t *testing.T) {
		g := flight.New(flight.Options[string, string]{Budget: flight.Budget{Concurrency: 2}})
		var o origin
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		left := ask(ctx, g, "left", flight.With{}, o.deaf("", 5*time.Second))
		stays := ask(cancellable(t), g, "stays", flight.With{}, o.load("v", 3*time.Second))
		synctest.Wait()
		pending := ask(cancellable(t), g, "pending", flight.With{}, o.load("", 0))
		<-left
		start := time.Now()
		short, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		var ce *flight.CloseError
		if err := g.Close(short); !errors.As(err, &ce) || ce.Running != 2 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close gave %v", err)
		}
		(<-pending).fails(t, "who had not begun", flight.ErrClosed)
		(<-ask(cancellable(t), g, "new", flight.With{}, nil)).fails(t, "who comes later", flight.ErrClosed)
		(<-stays).fails(t, "cancelled when Close gave up", context.Canceled)
		if err := g.Close(context.Background()); err != nil || time.Since(start) < 4*time.Second {
			t.Errorf("Close gave %v after %v, before the deaf load returned", err, time.Since(start))
		}
		if o.now.Load() != 0 {
			t.Error("loads run on after Close")
		}
	})
}

func TestWaitersAreCapped(t *testing.T) { // cases/flight 18
	synctest.Test(t, func(t *testing.T) {
		g := flight.New(flight.Options[string, string]{MaxWaitersPerKey: 5, MaxWaiters: 8})
		var o origin
		lead := ask(context.Background(), g, "k", flight.With{}, o.deaf("v", time.Second))
		synctest.Wait()
		var in []<-chan answer
		for range 4 {
			in = append(in, ask(cancellable(t), g, "k", flight.With{}, nil))
		}
		synctest.Wait()
		for range 10_000 {
			_, err := g.Do(context.Background(), "k", nil)
			var b *flight.BusyError
			if !errors.As(err, &b) || b.Reason != flight.ReasonKeyWaiters {
				t.Fatalf("got %v", err)
			}
		}
		other := ask(cancellable(t), g, "other", flight.With{}, o.load("o", time.Second))
		synctest.Wait()
		for range 2 {
			in = append(in, ask(cancellable(t), g, "other", flight.With{}, nil))
		}
		synctest.Wait()
		_, err := g.Do(context.Background(), "third", nil)
		var b *flight.BusyError
		if !errors.As(err, &b) || b.Reason != flight.ReasonWaiters {
			t.Errorf("over all: %v", err)
		}
		<-lead
		<-other
		for _, c := range in {
			if a := <-c; a.err != nil {
				t.Error(a.err)
			}
		}
		if s := g.Stats(); s.Waiters != 0 || s.Refused[flight.ReasonKeyWaiters] != 10_000 {
			t.Errorf("stats %+v", s)
		}
	})
}
