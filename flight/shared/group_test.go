package shared_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/flight"
	"github.com/ushergo/usher/flight/shared"
)

// flaky is a store that can be away, for one process.
type flaky struct {
	shared.Store
	away  atomic.Bool
	begun atomic.Int64
}

var errAway = errors.New("connection refused")

func (f *flaky) Begin(ctx context.Context, b shared.Begin) (shared.State, error) {
	if f.away.Load() {
		return shared.State{}, errAway
	}
	f.begun.Add(1)
	return f.Store.Begin(ctx, b)
}

func (f *flaky) Renew(ctx context.Context, r shared.Renew) (shared.Renewed, error) {
	if f.away.Load() {
		return shared.Renewed{}, errAway
	}
	return f.Store.Renew(ctx, r)
}

func (f *flaky) Finish(ctx context.Context, r shared.Finish) (shared.Finished, error) {
	if f.away.Load() {
		return shared.Finished{}, errAway
	}
	return f.Store.Finish(ctx, r)
}

// fleet is some processes on one store.
type fleet struct {
	t      *testing.T
	stores []*flaky
	gs     []*shared.Group[string]

	loads, now, most atomic.Int64
}

func newFleet(t *testing.T, n int, opts shared.Options[string]) *fleet {
	f := &fleet{t: t}
	store := memory.NewFlights(nil)
	for range n {
		s := &flaky{Store: store}
		f.stores = append(f.stores, s)
		f.gs = append(f.gs, shared.New(s, "test", opts))
	}
	synctest.Wait() // they watch
	return f
}

func (f *fleet) close() {
	for _, g := range f.gs {
		if err := g.Close(context.Background()); err != nil {
			f.t.Error(err)
		}
	}
}

func (f *fleet) load(v string, d time.Duration) flight.Load[string] {
	return func(ctx context.Context) (string, error) {
		defer f.enter()()
		select {
		case <-time.After(d):
			return v, nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

func (f *fleet) enter() func() {
	f.loads.Add(1)
	n := f.now.Add(1)
	for m := f.most.Load(); n > m && !f.most.CompareAndSwap(m, n); m = f.most.Load() {
	}
	return func() { f.now.Add(-1) }
}

func (f *fleet) want(loads, most int64) {
	f.t.Helper()
	if l, m := f.loads.Load(), f.most.Load(); l != loads || m > most {
		f.t.Errorf("%d loads, %d at once; want %d, at most %d", l, m, loads, most)
	}
}

type answer struct {
	flight.Result[string]
	err  error
	took time.Duration
}

func (f *fleet) ask(ctx context.Context, process int, load flight.Load[string]) <-chan answer {
	c := make(chan answer, 1)
	go func() {
		start := time.Now()
		r, err := f.gs[process].DoWith(ctx, "k", flight.With{}, load)
		c <- answer{r, err, time.Since(start)}
	}()
	return c
}

func (a answer) want(t *testing.T, v string) answer {
	t.Helper()
	if a.err != nil || a.Value != v {
		t.Errorf("got %q, %v; want %q", a.Value, a.err, v)
	}
	return a
}

func cancellable(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx
}

func TestOneLoadForAllProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 20, shared.Options[string]{})
		defer f.close()
		var all []<-chan answer
		for i := range 20 * 50 {
			all = append(all, f.ask(cancellable(t), i%20, f.load("v", 900*time.Millisecond)))
		}
		led := 0
		for _, c := range all {
			a := (<-c).want(t, "v")
			if a.Led {
				led++
			}
			if a.took > time.Second+10*time.Millisecond {
				t.Errorf("took %v: not woken", a.took)
			}
		}
		f.want(1, 1)
		if led != 1 {
			t.Errorf("%d were told that they led", led)
		}
		begun := int64(0)
		for _, s := range f.stores {
			begun += s.begun.Load()
		}
		if begun > 20*2 { // the thousand are twenty outside: each asks, and asks again when woken
			t.Errorf("the store was asked %d times", begun)
		}
		// What is finished is not given to who comes later.
		(<-f.ask(cancellable(t), 3, f.load("w", time.Second))).want(t, "w")
		f.want(2, 1)
	})
}

func TestDeadLeaderHasOneSuccessor(t *testing.T) { // cases/flight 11
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 10, shared.Options[string]{Lease: 3 * time.Second})
		defer f.close()
		// It can neither renew nor publish, and its load does not heed that it is cancelled: a frozen process.
		dead := f.ask(cancellable(t), 0, func(ctx context.Context) (string, error) {
			defer f.enter()()
			time.Sleep(20 * time.Second)
			if context.Cause(ctx) != shared.ErrLeaseLost {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			return "late", nil
		})
		synctest.Wait()
		f.stores[0].away.Store(true)
		var all []<-chan answer
		for i := 1; i < 10; i++ {
			all = append(all, f.ask(cancellable(t), i, f.load("v", time.Second)))
		}
		for _, c := range all {
			if a := (<-c).want(t, "v"); a.took > 4*time.Second+100*time.Millisecond {
				t.Errorf("took %v; want the lease and the load", a.took)
			}
		}
		f.want(2, 2) // the dead one's, and its successor's
		succeeded := uint64(0)
		for _, g := range f.gs {
			succeeded += g.Stats().Succeeded
		}
		if succeeded != 1 {
			t.Errorf("%d succeeded", succeeded)
		}
		f.stores[0].away.Store(false)
		if a := (<-dead).want(t, "late"); !a.Superseded { // who asked it gets its value, marked
			t.Error("not marked as superseded")
		}
	})
}

func TestCutOffLeaderFollowsItsSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, shared.Options[string]{Lease: time.Second})
		defer f.close()
		a := f.ask(cancellable(t), 0, f.load("a", 10*time.Second))
		synctest.Wait()
		f.stores[0].away.Store(true)
		time.Sleep(950 * time.Millisecond) // its load has been cancelled, a tenth of the lease before anybody else may begin
		if f.now.Load() != 0 {
			t.Error("loads on without a lease")
		}
		f.stores[0].away.Store(false)
		b := f.ask(cancellable(t), 1, f.load("b", 3*time.Second))
		x, y := <-a, <-b
		if x.err != nil || x.Value != y.Value {
			t.Errorf("got %q, %v; the other %q, %v", x.Value, x.err, y.Value, y.err)
		}
		f.want(2, 1)
	})
}

func TestLeaderLeavesOthersGoOn(t *testing.T) { // cases/flight 2
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, shared.Options[string]{})
		defer f.close()
		ctx, cancel := context.WithCancel(context.Background())
		a := f.ask(ctx, 0, f.load("a", time.Second))
		synctest.Wait()
		b := f.ask(cancellable(t), 1, f.load("b", time.Second))
		synctest.Wait()
		cancel() // nobody waits in process 0 any more: its load is cancelled, its lead given up
		if err := (<-a).err; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if a := (<-b).want(t, "b"); a.took > time.Second+100*time.Millisecond {
			t.Errorf("took %v: had to wait for the lease", a.took)
		}
		f.want(2, 1)
	})
}

func TestDeafAbandonedLoadKeepsTheLead(t *testing.T) { // cases/flight 4
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, shared.Options[string]{Lease: time.Second})
		defer f.close()
		ctx, cancel := context.WithCancel(context.Background())
		a := f.ask(ctx, 0, func(context.Context) (string, error) {
			defer f.enter()()
			time.Sleep(10 * time.Second)
			return "deaf", nil
		})
		synctest.Wait()
		cancel()
		<-a
		x := (<-f.ask(cancellable(t), 1, f.load("b", time.Second)))
		if x.err != nil || x.took < 9*time.Second {
			t.Errorf("got %q, %v after %v, beside the old load", x.Value, x.err, x.took)
		}
		f.want(1, 1)
	})
}

func TestForgetReachesAllProcesses(t *testing.T) { // cases/flight 8, 9
	for _, all := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 3, shared.Options[string]{})
			defer f.close()
			a := f.ask(cancellable(t), 0, f.load("old", time.Second))
			synctest.Wait()
			b := f.ask(cancellable(t), 1, f.load("x", time.Second))
			synctest.Wait()
			var err error
			if all {
				err = f.gs[2].ForgetAll(context.Background())
			} else {
				err = f.gs[2].Forget(context.Background(), "k")
			}
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			var after []<-chan answer
			for i := range 3 {
				after = append(after, f.ask(cancellable(t), i, f.load("new", time.Second)))
			}
			for _, c := range []<-chan answer{a, b} {
				if x := (<-c).want(t, "old"); !x.Superseded {
					t.Error("not marked")
				}
			}
			for _, c := range after {
				if x := (<-c).want(t, "new"); x.Superseded {
					t.Error("marked")
				}
			}
			f.want(2, 1)
		})
	}
}

func TestFailuresTravelAndBackOff(t *testing.T) { // cases/flight 10
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 5, shared.Options[string]{})
		defer f.close()
		denied := errors.New("no such user")
		fail := func(context.Context) (string, error) {
			defer f.enter()()
			time.Sleep(10 * time.Millisecond)
			return "", &flight.Error{Class: flight.Denied, Err: denied}
		}
		var wg sync.WaitGroup
		start := time.Now()
		for i := range 100 {
			wg.Go(func() {
				for time.Since(start) < 10*time.Second {
					_, err := f.gs[i%5].Do(context.Background(), "k", fail)
					var e *flight.Error
					if !errors.As(err, &e) || e.Class != flight.Denied || !strings.Contains(err.Error(), "no such user") {
						t.Errorf("got %v", err)
					}
					time.Sleep(37 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		f.want(4, 1) // at 0, 1, 3 and 7 s, whoever leads
	})
}

func TestPanicReachesOtherProcesses(t *testing.T) { // cases/flight 6
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, shared.Options[string]{})
		defer f.close()
		a := f.ask(cancellable(t), 0, func(context.Context) (string, error) { time.Sleep(time.Second); panic("boom") })
		synctest.Wait()
		b := f.ask(cancellable(t), 1, f.load("own", 0))
		var p *flight.PanicError
		if x := <-a; !errors.As(x.err, &p) {
			t.Errorf("leader got %v", x.err)
		}
		var r *shared.RemoteError
		if x := <-b; !errors.As(x.err, &r) || !strings.Contains(r.Message, "boom") {
			t.Errorf("follower got %v", x.err)
		}
		(<-f.ask(cancellable(t), 1, f.load("own", 0))).want(t, "own")
	})
}

func TestNotShareableReleasesAllProcesses(t *testing.T) { // cases/flight 16
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4, shared.Options[string]{Local: flight.Options[string, string]{Budget: flight.Budget{Concurrency: 3}}})
		defer f.close()
		var all []<-chan answer
		for i := range 40 {
			all = append(all, f.ask(cancellable(t), i%4, func(ctx context.Context) (string, error) {
				v, _ := f.load(fmt.Sprint(i), time.Second)(ctx)
				return v, flight.NotShareable(0)
			}))
		}
		for i, c := range all {
			if a := (<-c).want(t, fmt.Sprint(i)); a.took > 6*time.Second {
				t.Errorf("took %v", a.took)
			}
		}
		if f.most.Load() > 12 || f.loads.Load() != 40 {
			t.Errorf("%d loads, %d at once", f.loads.Load(), f.most.Load())
		}
	})
}

func TestTooLongValueIsNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, shared.Options[string]{MaxValue: 100})
		defer f.close()
		long := strings.Repeat("x", 200)
		a := f.ask(cancellable(t), 0, f.load(long, time.Second))
		synctest.Wait()
		c := f.ask(cancellable(t), 0, f.load("no", time.Second)) // the same process shares it
		b := f.ask(cancellable(t), 1, f.load("own", time.Second))
		(<-a).want(t, long)
		(<-c).want(t, long)
		(<-b).want(t, "own")
		f.want(2, 1)
	})
}

func TestStoreAwayServesAloneWithinTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, shared.Options[string]{Local: flight.Options[string, string]{Budget: flight.Budget{Concurrency: 1}}})
		defer f.close()
		for _, s := range f.stores {
			s.away.Store(true)
		}
		var all []<-chan answer
		for i := range 30 {
			all = append(all, f.ask(cancellable(t), i%3, f.load("v", time.Second)))
		}
		for _, c := range all {
			(<-c).want(t, "v")
		}
		f.want(3, 3) // one a process
		fail := func(context.Context) (string, error) { return "", errors.New("down") }
		<-f.ask(cancellable(t), 0, fail)
		var b *flight.BackoffError
		if x := <-f.ask(cancellable(t), 0, fail); !errors.As(x.err, &b) {
			t.Errorf("no back-off alone: %v", x.err)
		}
		for _, s := range f.stores {
			s.away.Store(false)
		}
		time.Sleep(2 * time.Second)
		all = nil
		for i := range 3 {
			all = append(all, f.ask(cancellable(t), i, f.load("together", time.Second)))
		}
		for _, c := range all {
			(<-c).want(t, "together")
		}
		f.want(4, 3)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, shared.Options[string]{OnStoreFailure: shared.FailFast})
		defer f.close()
		f.stores[0].away.Store(true)
		if x := <-f.ask(cancellable(t), 0, nil); !errors.Is(x.err, shared.ErrStoreDown) || !errors.Is(x.err, errAway) {
			t.Errorf("got %v", x.err)
		}
	})
}

func TestUnshareableStaysSoWhenTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, shared.Options[string]{})
		defer f.close()
		f.stores[0].away.Store(true)
		own := func(v string) flight.Load[string] {
			return func(ctx context.Context) (string, error) { time.Sleep(time.Second); return v, flight.NotShareable(0) }
		}
		a := f.ask(cancellable(t), 0, own("a"))
		b := f.ask(cancellable(t), 0, own("b"))
		(<-a).want(t, "a")
		(<-b).want(t, "b")
	})
}

func TestMaxAgeIsACallersChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, shared.Options[string]{MaxAge: time.Second})
		defer f.close()
		(<-f.ask(cancellable(t), 0, f.load("v", time.Second))).want(t, "v")
		time.Sleep(900 * time.Millisecond)
		(<-f.ask(cancellable(t), 1, f.load("w", time.Second))).want(t, "v")
		time.Sleep(200 * time.Millisecond)
		(<-f.ask(cancellable(t), 1, f.load("w", time.Second))).want(t, "w")
	})
}

func TestLostMessagesArePolledFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewFlights(nil)
		a := shared.New(store, "test", shared.Options[string]{})
		b := shared.New(mute{store}, "test", shared.Options[string]{Poll: 300 * time.Millisecond})
		synctest.Wait()
		go a.Do(context.Background(), "k", func(context.Context) (string, error) { time.Sleep(time.Second); return "v", nil })
		synctest.Wait()
		start := time.Now()
		v, err := b.Do(context.Background(), "k", nil)
		if v != "v" || err != nil || time.Since(start) > 1300*time.Millisecond {
			t.Errorf("got %q, %v after %v", v, err, time.Since(start))
		}
		a.Close(context.Background())
		b.Close(context.Background())
	})
}

// mute is a store whose messages are lost.
type mute struct{ shared.Store }

func (mute) Watch(ctx context.Context, _ string, _ func(shared.Event)) error {
	<-ctx.Done()
	return nil
}

func TestKeyOfKeepsKeysApart(t *testing.T) { // cases/flight 14
	seen := map[string]flight.Key{}
	parts := []string{"", "a", "b", "1:", ":", "a1:b"}
	for _, a := range parts {
		for _, b := range parts {
			for _, c := range parts {
				for _, d := range parts {
					k := flight.Key{Tenant: a, Principal: b, Space: c, Name: d}
					if o, ok := seen[shared.KeyOf(k)]; ok {
						t.Fatalf("%+v and %+v are both %q", k, o, shared.KeyOf(k))
					}
					seen[shared.KeyOf(k)] = k
				}
			}
		}
	}
}

func TestFillAndCopyInEveryProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		cache := map[string]string{}
		cleared := 0
		f := newFleet(t, 3, shared.Options[string]{
			Local: flight.Options[string, string]{
				Fill: func(k, v string) { mu.Lock(); cache[k] += v; mu.Unlock() },
				Copy: strings.ToUpper,
			},
			OnForget: func(key string, all bool) {
				mu.Lock()
				defer mu.Unlock()
				if key == "k" && !all {
					cleared++
				}
			},
		})
		defer f.close()
		var all []<-chan answer
		for i := range 3 {
			all = append(all, f.ask(cancellable(t), i, f.load("v", time.Second)))
		}
		for _, c := range all {
			(<-c).want(t, "V")
		}
		if cache["k"] != "vvv" { // each its own, in truth
			t.Errorf("filled %q", cache["k"])
		}
		a := f.ask(cancellable(t), 0, f.load("old", time.Second))
		synctest.Wait()
		if err := f.gs[1].Forget(context.Background(), "k"); err != nil {
			t.Fatal(err)
		}
		(<-a).want(t, "OLD")
		synctest.Wait()
		if cache["k"] != "vvv" || cleared != 3 {
			t.Errorf("filled %q with what was forgotten; %d of 3 told", cache["k"], cleared)
		}
	})
}
