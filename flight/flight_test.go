package flight_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/flight"
)

func TestTimeoutTellsAllAndHoldsTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.New(flight.Options[string, string]{Timeout: 16 * time.Second, Budget: flight.Budget{Concurrency: 1}})
		var o origin
		var cause error
		a := ask(cancellable(t), g, "k", flight.With{}, func(ctx context.Context) (string, error) {
			if d, ok := ctx.Deadline(); !ok || time.Until(d) != 16*time.Second {
				t.Errorf("deadline %v, %v", time.Until(d), ok)
			}
			<-ctx.Done()
			cause = context.Cause(ctx)
			if ctx.Err() != context.DeadlineExceeded {
				t.Errorf("ctx error %v", ctx.Err())
			}
			return o.deaf("late", 10*time.Second)(ctx)
		})
		synctest.Wait()
		b := ask(context.Background(), g, "k", flight.With{}, nil)
		x, y := <-a, <-b
		x.fails(t, "leader", flight.ErrTimeout)
		y.fails(t, "follower", flight.ErrTimeout)
		if x.took < 16*time.Second || x.took > 17*time.Second {
			t.Errorf("told after %v", x.took)
		}
		if s := g.Stats(); s.Orphans != 1 || s.Budget != 1 || s.Oldest < 15*time.Second {
			t.Errorf("stats %+v", s)
		}
		c := <-ask(context.Background(), g, "k", flight.With{}, o.load("next", 0))
		c.want(t, "next", "next")
		if c.took < 9*time.Second {
			t.Errorf("started %v after the timeout, beside the old load", c.took)
		}
		if cause != flight.ErrTimeout {
			t.Errorf("cause %v", cause)
		}
		// A timeout is no failure to remember.
		if s := g.Stats(); s.Remembers != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestTimeoutIsNeverEarlyAndHardlyLate(t *testing.T) {
	for _, d := range []time.Duration{time.Microsecond, 3 * time.Millisecond, 5*time.Millisecond + 1, 17 * time.Millisecond, time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			g := flight.New(flight.Options[string, string]{Timeout: d})
			for range 5 {
				time.Sleep(d/3 + 100*time.Microsecond) // at odds with the beat
				other := ask(cancellable(t), g, "other", flight.With{}, (&origin{}).load("", d))
				time.Sleep(d / 7)
				a := <-ask(cancellable(t), g, "k", flight.With{}, func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() })
				a.fails(t, "caller", flight.ErrTimeout)
				if a.took < d || a.took > d+max(d/16+1, 2*time.Millisecond) {
					t.Errorf("a timeout of %v came after %v", d, a.took)
				}
				<-other
			}
		})
	}
}

func TestNobodyWaitsForAnotherForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.New(flight.Options[string, string]{Timeout: time.Second, Budget: flight.Budget{Concurrency: 1}})
		stop := make(chan struct{})
		stuck := ask(context.Background(), g, "k", flight.With{}, func(context.Context) (string, error) { <-stop; return "", nil })
		synctest.Wait()
		(<-ask(context.Background(), g, "other", flight.With{}, nil)).fails(t, "behind the budget", flight.ErrBusy)
		time.Sleep(2 * time.Second)
		(<-ask(context.Background(), g, "k", flight.With{}, nil)).fails(t, "behind the key", flight.ErrBusy)
		close(stop)
		(<-stuck).fails(t, "stuck", flight.ErrTimeout)
		if s := g.Stats(); s.Refused[flight.ReasonWait] != 2 || s.Running != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestStartsPerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.New(flight.Options[string, string]{Budget: flight.Budget{PerSecond: 10, Burst: 2,
			Classes: map[string]flight.Share{"vip": {ReservePerSecond: 5}}}})
		var mu sync.Mutex
		starts := map[string][]time.Duration{}
		begin := time.Now()
		var all []<-chan answer
		for i := range 40 {
			class := []string{"crowd", "vip"}[i/30] // the crowd is there first
			all = append(all, ask(cancellable(t), g, fmt.Sprint(i), flight.With{Class: class}, func(context.Context) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				starts[class] = append(starts[class], time.Since(begin))
				return "", nil
			}))
			synctest.Wait()
		}
		for _, c := range all {
			if a := <-c; a.err != nil {
				t.Error(a.err)
			}
		}
		both := slices.Sorted(slices.Values(slices.Concat(starts["crowd"], starts["vip"])))
		for i, s := range both {
			n := 0
			for _, o := range both[i:] {
				if o < s+time.Second {
					n++
				}
			}
			if n > 13 { // 10 + the bursts: 2 of all, 1 of the reserved
				t.Errorf("%d starts in the second from %v", n, s)
			}
		}
		if last := both[len(both)-1]; last > 6*time.Second {
			t.Errorf("30 starts at 5 a second, the rest being reserved, took %v", last)
		}
		if v := starts["vip"][9]; v > 2*time.Second {
			t.Errorf("10 starts of a class with a reserve of 5 a second took %v", v)
		}
	})
}

func TestRefusalStartsWhatTimeAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.New(flight.Options[string, string]{Budget: flight.Budget{PerSecond: 1, Burst: 1, MaxPending: 1}})
		var o origin
		(<-ask(cancellable(t), g, "first", flight.With{}, o.load("1", 0))).want(t, "first", "1")
		second := ask(cancellable(t), g, "second", flight.With{}, o.load("2", 0))
		synctest.Wait()
		(<-ask(cancellable(t), g, "third", flight.With{}, nil)).fails(t, "third", flight.ErrBusy)
		time.Sleep(time.Second) // at this very moment second may start, and fourth comes: whoever is first, both are served
		fourth := ask(cancellable(t), g, "fourth", flight.With{}, o.load("4", 0))
		(<-second).want(t, "second", "2")
		(<-fourth).want(t, "fourth", "4")
	})
}

func TestReserveIsThereWhenPlacesAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.New(flight.Options[string, string]{Budget: flight.Budget{Concurrency: 2, MaxPending: 1,
			Classes: map[string]flight.Share{"vip": {Reserve: 1}}}})
		var o origin
		var all []<-chan answer
		for _, k := range []string{"runs", "waits"} {
			all = append(all, ask(cancellable(t), g, k, flight.With{}, o.load(k, time.Second)))
			synctest.Wait()
		}
		(<-ask(cancellable(t), g, "refused", flight.With{}, nil)).fails(t, "refused", flight.ErrBusy)
		a := <-ask(cancellable(t), g, "vip", flight.With{Class: "vip"}, o.load("vip", 0))
		a.want(t, "vip", "vip")
		if a.took != 0 {
			t.Errorf("vip took %v", a.took)
		}
		for _, c := range all {
			<-c
		}
	})
}

func TestStormOfOneClassStarvesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.New(flight.Options[string, string]{Budget: flight.Budget{
			Concurrency: 4, MaxPending: 20,
			Classes: map[string]flight.Share{"small": {Reserve: 1, ReservePending: 2}},
			Other:   flight.Share{Max: 2, MaxPending: 8},
		}})
		var o origin
		storm := func(class string, n int) (refused int) {
			for i := range n {
				c := ask(cancellable(t), g, fmt.Sprint(class, i), flight.With{Class: class}, o.load("", time.Hour))
				synctest.Wait()
				select {
				case a := <-c:
					a.fails(t, class, flight.ErrBusy)
					refused++
				default:
				}
			}
			return refused
		}
		if r := storm("a", 50); r != 50-2-8 { // two run, eight wait, one more share stands ready for others
			t.Errorf("a: %d refused", r)
		}
		if r := storm("b", 50); r != 50-1-8 {
			t.Errorf("b: %d refused", r)
		}
		if r := storm("c", 50); r != 50-2 { // what remains of the common places to wait
			t.Errorf("c: %d refused", r)
		}
		if r := storm("small", 10); r != 10-1-2 { // its own
			t.Errorf("small: %d refused", r)
		}
		if s := g.Stats(); s.Running != 4 || s.Pending != 20 {
			t.Errorf("stats %+v", s)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		g.Close(ctx)
		synctest.Wait()
		if s := g.Stats(); s.Running != 0 || s.Pending != 0 || len(s.Classes) != 1 {
			t.Errorf("stats %+v", s) // names of classes that have nothing to do are forgotten
		}
	})
}

func TestFinishPolicyIsJoinedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		filled := ""
		g := flight.New(flight.Options[string, string]{OnLastLeave: flight.FinishLoad, Fill: func(k, v string) { filled = v }})
		var o origin
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		(<-ask(ctx, g, "k", flight.With{}, o.load("v", time.Second))).fails(t, "first", context.DeadlineExceeded)
		(<-ask(cancellable(t), g, "k", flight.With{}, o.load("own", time.Second))).want(t, "second", "v")
		o.want(t, 1, 1)
		if filled != "v" {
			t.Errorf("filled %q", filled)
		}
	})
}

func TestCopyGivesEachHerOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := 0
		var mu sync.Mutex
		g := flight.New(flight.Options[string, []int]{Copy: func(v []int) []int {
			mu.Lock()
			copies++
			mu.Unlock()
			return slices.Clone(v)
		}})
		load := func(context.Context) ([]int, error) { time.Sleep(time.Second); return []int{1, 2, 3}, nil }
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				v, err := g.Do(context.Background(), "k", load)
				if err != nil || len(v) != 3 || v[0] != 1 {
					t.Errorf("got %v, %v", v, err)
				}
				v[0] = i + 10
			})
		}
		wg.Wait()
		if copies != 10 {
			t.Errorf("%d copies", copies)
		}
		g.Do(context.Background(), "k", load)
		if copies != 10 {
			t.Error("a value that one caller holds was copied")
		}
	})
}

func TestDeliverBeforeTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.New(flight.Options[string, string]{Budget: flight.Budget{Concurrency: 1}, Timeout: 2 * time.Second})
		var o origin
		deliver := func(v string, err error) flight.Load[string] {
			return func(ctx context.Context) (string, error) {
				defer o.enter()()
				time.Sleep(time.Second)
				sub, cancel := context.WithCancel(ctx)
				defer cancel()
				if n, ok := flight.Deliver(sub, v, err); n != 2 || !ok {
					t.Errorf("told %d, %v", n, ok)
				}
				if _, ok := flight.Deliver(sub, "twice", nil); ok {
					t.Error("told twice")
				}
				if _, ok := flight.Deliver(sub, 7, nil); ok {
					t.Error("told another type's value")
				}
				time.Sleep(10 * time.Second) // past the timeout, which is over
				if ctx.Err() != nil {
					t.Errorf("cancelled: %v", context.Cause(ctx))
				}
				return "ignored", nil
			}
		}
		a := ask(cancellable(t), g, "k", flight.With{}, deliver("head", nil))
		synctest.Wait()
		b := <-ask(cancellable(t), g, "k", flight.With{}, nil)
		b.want(t, "follower", "head")
		(<-a).want(t, "leader", "head")
		c := <-ask(cancellable(t), g, "k", flight.With{}, nil)
		c.want(t, "who comes before the end", "head")
		if b.took != time.Second || c.took != 0 {
			t.Errorf("took %v and %v", b.took, c.took)
		}
		d := <-ask(cancellable(t), g, "other", flight.With{}, o.load("d", 0))
		if d.took < 9*time.Second || d.took > 11*time.Second {
			// It waited for the budget, longer than the timeout allows.
			d.fails(t, "another", flight.ErrBusy)
		}
		time.Sleep(20 * time.Second)

		a = ask(cancellable(t), g, "k", flight.With{}, deliver("hers", flight.NotShareable(time.Hour)))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		e := ask(ctx, g, "k", flight.With{}, nil)
		(<-a).want(t, "leader", "hers")
		if err := (<-e).err; !errors.Is(err, flight.ErrBusy) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who was let go must wait for the budget, got %v", err)
		}
		if _, ok := flight.Deliver(context.Background(), "x", nil); ok {
			t.Error("delivered outside of a load")
		}
		g.Close(context.Background())
	})
}

// events is an Observer that keeps what it is told.
type events struct {
	mu  sync.Mutex
	log []string
}

func (e *events) add(f string, a ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.log = append(e.log, fmt.Sprintf(f, a...))
}
func (e *events) LoadStarted(class string) { e.add("start %s", class) }
func (e *events) LoadEnded(x flight.LoadEnd) {
	e.add("end %s after %v callers %d orphan %v superseded %v %v failures %d", x.Share, x.Took, x.Callers, x.Orphan, x.Superseded, x.Class, x.Failures)
}
func (e *events) Refused(class string, err error) { e.add("refused %s: %v", class, err) }

func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e events
		g := flight.New(flight.Options[string, string]{Observer: &e, Budget: flight.Budget{Concurrency: 1, MaxPending: 1}})
		var o origin
		w := flight.With{Class: "shop"}
		a := ask(context.Background(), g, "a", w, o.load("v", time.Second))
		synctest.Wait()
		b := ask(cancellable(t), g, "a", w, nil)
		c := ask(cancellable(t), g, "c", w, func(context.Context) (string, error) { return "", errors.New("down") })
		synctest.Wait()
		g.Forget("a")
		<-ask(context.Background(), g, "d", w, nil)
		<-a
		<-b
		<-c
		synctest.Wait()
		<-ask(context.Background(), g, "c", w, nil)
		time.Sleep(100 * time.Millisecond)
		<-ask(cancellable(t), g, "c", w, func(context.Context) (string, error) { return "", errors.New("down") })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		<-ask(ctx, g, "e", w, o.deaf("", 3*time.Second))
		time.Sleep(5 * time.Second)
		want := []string{
			"start shop",
			"refused shop: flight: busy: too many loads wait for the origin's budget (MaxPending)",
			"end shop after 1s callers 2 orphan false superseded true unclassed failures 0",
			"start shop",
			"end shop after 0s callers 1 orphan false superseded false transient failures 0",
			"refused shop: flight: backing off for 100ms after 1 failures (transient): down",
			"start shop",
			"end shop after 0s callers 1 orphan false superseded false transient failures 1",
			"start shop",
			"end shop after 3s callers 0 orphan true superseded false unclassed failures 0",
		}
		synctest.Wait()
		slices.Sort(want) // ends and starts of different loads may be told in either order
		slices.Sort(e.log)
		if !slices.Equal(e.log, want) {
			t.Errorf("got\n%s", strings.Join(e.log, "\n"))
		}
		s := g.Stats()
		if s.Calls != 7 || s.Shared != 1 || s.Loads != 4 || s.BackedOff != 1 || s.RepeatedFailures != 1 || s.Left != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestValidateNamesTheField(t *testing.T) {
	classes := func(s flight.Share) map[string]flight.Share { return map[string]flight.Share{"a": s, "b": s} }
	for field, b := range map[string]flight.Budget{
		"Budget.Concurrency 3": {Concurrency: 3, Classes: classes(flight.Share{Reserve: 2})},
		"Budget.PerSecond 3":   {PerSecond: 3, Classes: classes(flight.Share{ReservePerSecond: 2})},
		"Budget.MaxPending 3":  {MaxPending: 3, Classes: classes(flight.Share{ReservePending: 2})},
		"negative":             {Concurrency: -1},
	} {
		o := flight.Options[string, string]{Budget: b}
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("want an error that names %s, got %v", field, err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("New took it")
				}
			}()
			flight.New(o)
		}()
	}
}

func TestForgetWaitsForAnOlderFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, all := range []bool{false, true} {
			filling, cache := make(chan struct{}), ""
			g := flight.New(flight.Options[string, string]{Fill: func(_, v string) {
				close(filling)
				time.Sleep(time.Second)
				cache = v
			}})
			a := ask(cancellable(t), g, "k", flight.With{}, (&origin{}).load("old", 0))
			<-filling
			if all {
				g.ForgetAll()
			} else {
				g.Forget("k")
			}
			if cache != "old" {
				t.Error("Forget returned while an older value was being filled")
			}
			<-a
		}
	})
}

func TestRememberIsBounded(t *testing.T) {
	g := flight.New(flight.Options[int, int]{Remember: 10})
	for i := range 1000 {
		g.Do(context.Background(), i, func(context.Context) (int, error) { return 0, errors.New("down") })
		if s := g.Stats(); s.Remembers > 10 {
			t.Fatalf("remembers %d keys", s.Remembers)
		}
	}
}

func TestCauseIsThereForWhoNeverWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group[string, string]
		ctx, cancel := context.WithCancel(context.Background())
		cause := make(chan error)
		go g.Do(ctx, "k", func(ctx context.Context) (string, error) {
			time.Sleep(time.Second)
			cause <- context.Cause(ctx) // Done was not called
			return "", nil
		})
		synctest.Wait()
		cancel()
		if c := <-cause; c != flight.ErrAbandoned {
			t.Errorf("cause %v", c)
		}
	})
}

func TestLoadContextIsWellBehaved(t *testing.T) {
	type k struct{}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), k{}, "v"))
	g := flight.New(flight.Options[string, string]{OnLastLeave: flight.FinishLoad})
	var kept, derived context.Context
	var stop context.CancelFunc
	g.Do(ctx, "k", func(ctx context.Context) (string, error) {
		cancel() // of the caller: no concern of the load
		if ctx.Value(k{}) != "v" || ctx.Err() != nil || context.Cause(ctx) != nil {
			t.Errorf("value %v, err %v, cause %v", ctx.Value(k{}), ctx.Err(), context.Cause(ctx))
		}
		kept = ctx
		derived, stop = context.WithCancel(ctx)
		return "", nil
	})
	g.Close(context.Background())
	<-derived.Done() // it ends with the load
	stop()
	if kept.Err() != context.Canceled || fmt.Sprint(kept) != "flight.load" {
		t.Errorf("after the load: %v, %v", kept.Err(), kept)
	}
	<-kept.Done()
	// A load's context that is used after its end belongs to no load.
	if v, err := g.Do(context.WithoutCancel(kept), "k", nil); !errors.Is(err, flight.ErrClosed) {
		t.Errorf("%v, %v", v, err)
	}
}
