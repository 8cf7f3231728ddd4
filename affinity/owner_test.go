package affinity_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/engine/memory"
)

func TestOnlyOneBuilds(t *testing.T) { // cases/affinity 4
	inBubble(t, func(t *testing.T, w *world) {
		var owners []*affinity.Owner[*thing]
		for i := range 20 {
			o := w.owner(fmt.Sprint("i", i), w.dir, nil)
			defer o.Close()
			owners = append(owners, o)
		}
		var wg sync.WaitGroup
		var served, elsewhere atomic.Int32
		for i := range 200 {
			wg.Go(func() {
				_, err := w.visit(owners[i%20], "k")
				var other *affinity.NotOwnerError
				switch {
				case err == nil:
					served.Add(1)
				case errors.As(err, &other) && other.Row.Addr != "":
					elsewhere.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if w.builds.Load() != 1 || served.Load() != 10 || elsewhere.Load() != 190 {
			t.Errorf("%d builds, %d served, %d elsewhere", w.builds.Load(), served.Load(), elsewhere.Load())
		}
	})
}

func TestLostAnswersOfClaims(t *testing.T) { // cases/affinity 4
	inBubble(t, func(t *testing.T, w *world) {
		f := &flaky{Store: w.dir}
		o := w.owner("a", f, nil)
		defer o.Close()
		f.lost.Store(true)
		if _, err := w.visit(o, "k"); !errors.Is(err, affinity.ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
		row, _ := w.dir.Get(t.Context(), "s", "k")
		f.lost.Store(false)
		if th := w.must(o, "k"); th.gen != row.Generation || w.builds.Load() != 1 {
			t.Errorf("generation %d, the lost claim's was %d", th.gen, row.Generation)
		}
		// The clear that was lost leaves a row of our own behind.
		f.away.Store(true)
		o.Retire("k", errors.New("broken"))
		time.Sleep(time.Minute)
		f.away.Store(false)
		w.must(o, "k")
	})
}

// A claim whose answer was lost is repeated later, and has been running since: whoever builds has the time that the row has.
func TestLateRepeatBuildsWithinItsRow(t *testing.T) {
	for _, later := range []time.Duration{20 * time.Second, 50 * time.Second} {
		t.Run(later.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				f := &flaky{Store: w.dir}
				built := false
				o := w.owner("a", f, func(o *affinity.Options[*thing]) {
					build := o.Build
					o.Build = func(ctx context.Context, key string, fence uint64) (*thing, error) {
						row, err := w.dir.Get(ctx, "s", key)
						end, ok := ctx.Deadline()
						if built = true; err != nil || row.Generation != fence || row.Left < 30*time.Second || !ok || time.Until(end) > row.Left {
							t.Errorf("%v to build, and the row has %v; %v", time.Until(end), row.Left, err)
						}
						return build(ctx, key, fence)
					}
				})
				defer o.Close()
				f.lost.Store(true)
				if _, err := w.visit(o, "k"); !errors.Is(err, affinity.ErrUnavailable) {
					t.Fatal(err)
				}
				time.Sleep(later)
				f.lost.Store(false)
				if w.must(o, "k"); !built {
					t.Error("nothing was built")
				}
			})
		})
	}
}

func TestDirectoryAway(t *testing.T) { // cases/affinity 5
	inBubble(t, func(t *testing.T, w *world) {
		f := &flaky{Store: w.dir}
		a, b := w.owner("a", f, nil), w.owner("b", f, nil)
		defer a.Close()
		defer b.Close()
		first := w.must(a, "k")
		f.slow.Store(int64(1900 * time.Millisecond)) // a stall moves nothing
		time.Sleep(20 * time.Second)
		f.slow.Store(0)
		f.away.Store(true)
		for range 60 { // ten minutes
			time.Sleep(10 * time.Second)
			if th := w.must(a, "k"); th != first {
				t.Fatal("another session")
			}
			if err := a.Health(); !errors.Is(err, affinity.ErrUnavailable) {
				t.Fatalf("health says %v", err)
			}
			if _, err := w.visit(b, "k"); !errors.Is(err, affinity.ErrUnavailable) {
				t.Fatalf("b got %v", err)
			}
		}
		f.away.Store(false)
		time.Sleep(6 * time.Second)
		if w.must(a, "k") != first || a.Health() != nil || w.builds.Load() != 1 {
			t.Fatal("it did not recover")
		}
		var other *affinity.NotOwnerError
		if _, err := w.visit(b, "k"); !errors.As(err, &other) || other.Row.Owner.Instance != "a" {
			t.Fatalf("b got %v", err)
		}
	})
}

func TestUnconfirmedOwnerStopsInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		f := &flaky{Store: w.dir}
		a := w.owner("a", f, func(o *affinity.Options[*thing]) {
			o.TTL, o.Margin, o.Every = time.Minute, 10*time.Second, 5*time.Second
		})
		b := w.owner("b", w.dir, nil)
		defer a.Close()
		defer b.Close()
		ended := make(chan error, 1)
		var th *thing
		go func() {
			ended <- a.Use(t.Context(), "k", func(ctx context.Context, s affinity.Session[*thing]) error {
				th = s.Value
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}()
		time.Sleep(7 * time.Second)
		f.away.Store(true)
		began := time.Now()
		if err := <-ended; !errors.Is(err, affinity.ErrUnconfirmed) {
			t.Fatalf("got %v", err)
		}
		if row, _ := w.dir.Get(t.Context(), "s", "k"); row.State != affinity.Ready || row.Left < 5*time.Second {
			t.Errorf("it stopped after %v, and the row has %+v", time.Since(began), row)
		}
		synctest.Wait()
		if !errors.Is(why(th), affinity.ErrUnconfirmed) {
			t.Errorf("closed: %v", why(th))
		}
		time.Sleep(time.Minute)
		if next := w.must(b, "k"); next.gen <= th.gen {
			t.Error("the generation does not grow")
		}
	})
}

func TestEvictedOwnerStops(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b := w.owner("a", w.dir, nil), w.owner("b", w.dir, nil)
		defer a.Close()
		defer b.Close()
		old := w.must(a, "k")
		row, _ := a.Lookup(t.Context(), "k")
		if got, err := w.dir.Clear(t.Context(), affinity.Clear{Space: "s", Key: "k", Owner: row.Owner, Generation: row.Generation}); err != nil || !got.Cleared {
			t.Fatal(got, err)
		}
		w.must(b, "k")
		time.Sleep(6 * time.Second)
		if a.Owns("k") != 0 || !errors.Is(why(old), affinity.ErrLost) {
			t.Errorf("a still has it: %v", why(old))
		}
		if row, _ := b.Lookup(t.Context(), "k"); row.Owner.Instance != "b" {
			t.Errorf("its end took b's row: %+v", row) // cases/affinity 1
		}
		// The store forgets everything: owners hear it and build anew.
		thing := w.must(b, "k")
		w.dir.(*memory.Directory).Forget("s")
		time.Sleep(6 * time.Second)
		if !errors.Is(why(thing), affinity.ErrLost) {
			t.Error("b did not hear it")
		}
		if next := w.must(a, "k"); next.gen <= thing.gen {
			t.Error("the generation does not grow")
		}
	})
}

// stopped stands still like a process under SIGSTOP: its refreshes hang.
func TestStoppedOwnerAsksFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		f := &flaky{Store: w.dir}
		a := w.owner("a", f, func(o *affinity.Options[*thing]) { o.CallTimeout = 10 * time.Minute })
		b := w.owner("b", w.dir, nil)
		defer b.Close()
		old := w.must(a, "k")
		f.slow.Store(int64(5 * time.Minute)) // nothing that it sends arrives, and it does not know
		time.Sleep(time.Minute)
		row, _ := b.Lookup(t.Context(), "k")
		_, _ = w.dir.Clear(t.Context(), affinity.Clear{Space: "s", Key: "k", Owner: row.Owner, Generation: row.Generation})
		w.must(b, "k")
		f.slow.Store(0)
		var other *affinity.NotOwnerError
		if _, err := w.visit(a, "k"); !errors.As(err, &other) || other.Row.Owner.Instance != "b" {
			t.Errorf("it served: %v", err)
		}
		synctest.Wait()
		if !errors.Is(why(old), affinity.ErrLost) {
			t.Errorf("closed: %v", why(old))
		}
		a.Close()
	})
}

// What an owner knew before it stood still counts for nothing: neither that its row had been confirmed a moment ago, nor that
// the directory was away.
func TestOwnerThatStoodStillAsksFirst(t *testing.T) {
	for name, away := range map[string]bool{"confirmed lately": false, "the directory was away": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				f := &flaky{Store: w.dir}
				a, b := w.owner("a", f, nil), w.owner("b", w.dir, nil)
				defer a.Close()
				defer b.Close()
				old := w.must(a, "k")
				if f.away.Store(away); away {
					time.Sleep(20 * time.Second)
					if w.must(a, "k") != old {
						t.Fatal("another session")
					}
				}
				row, _ := b.Lookup(t.Context(), "k")
				_, _ = w.dir.Clear(t.Context(), affinity.Clear{Space: "s", Key: "k", Owner: row.Owner, Generation: row.Generation})
				w.must(b, "k")
				f.away.Store(false)
				a.StandStill(3 * time.Second)
				var other *affinity.NotOwnerError
				if _, err := w.visit(a, "k"); !errors.As(err, &other) || other.Row.Owner.Instance != "b" {
					t.Errorf("it served: %v", err)
				}
				synctest.Wait()
				if !errors.Is(why(old), affinity.ErrLost) {
					t.Errorf("closed: %v", why(old))
				}
			})
		})
	}
}

func TestCapacityAndDrainConcernNewSessions(t *testing.T) { // cases/affinity 12
	inBubble(t, func(t *testing.T, w *world) {
		a := w.owner("a", w.dir, func(o *affinity.Options[*thing]) { o.MaxSessions, o.DrainFor = 2, time.Minute })
		b := w.owner("b", w.dir, nil)
		defer a.Close()
		defer b.Close()
		one := w.must(a, "1")
		w.must(a, "2")
		synctest.Wait() // it has announced itself
		if _, err := w.visit(a, "3"); !errors.Is(err, affinity.ErrCapacity) {
			t.Errorf("got %v", err)
		}
		w.must(b, "4")
		var other *affinity.NotOwnerError
		if _, err := w.visit(a, "4"); !errors.As(err, &other) {
			t.Errorf("at capacity it still knows who has it: %v", err)
		}
		if w.must(a, "1") != one {
			t.Error("another session")
		}
		if ok, err := w.dir.Drain(t.Context(), affinity.Drain{Space: "s", Instance: "a", On: true}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(6 * time.Second)
		a.Retire("2", affinity.ErrIdle)
		if _, err := w.visit(a, "5"); !errors.Is(err, affinity.ErrDraining) || !errors.Is(a.Health(), affinity.ErrDraining) {
			t.Errorf("got %v", err)
		}
		if w.must(a, "1") != one {
			t.Error("a drain ends no session before its deadline")
		}
		time.Sleep(62 * time.Second)
		if !errors.Is(why(one), affinity.ErrDraining) {
			t.Errorf("closed: %v", why(one))
		}
		w.must(b, "1")
		_, _ = w.dir.Drain(t.Context(), affinity.Drain{Space: "s", Instance: "a", On: false})
		time.Sleep(6 * time.Second)
		three := w.must(a, "3")
		if err := a.Close(); err != nil || !errors.Is(why(three), affinity.ErrClosed) {
			t.Error(err, why(three))
		}
		w.must(b, "3") // at once: its row was given back
		if list, _ := w.dir.Instances(t.Context(), "s"); len(list) != 1 {
			t.Errorf("%+v", list)
		}
		if _, err := w.visit(a, "6"); !errors.Is(err, affinity.ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}

func TestFailedBuildGivesTheKeyBack(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		broken := errors.New("the site is down")
		a := w.owner("a", w.dir, func(o *affinity.Options[*thing]) {
			o.BuildFor = 10 * time.Second
			o.Build = func(ctx context.Context, key string, _ uint64) (*thing, error) {
				if key == "slow" {
					<-ctx.Done()
					return nil, context.Cause(ctx)
				}
				return nil, broken
			}
		})
		b := w.owner("b", w.dir, nil)
		defer a.Close()
		defer b.Close()
		if _, err := w.visit(a, "k"); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		w.must(b, "k")
		if _, err := w.visit(a, "slow"); err == nil {
			t.Error("built")
		}
		synctest.Wait()
		w.must(b, "slow")
	})
}

func TestIdleAndAge(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o := w.owner("a", w.dir, func(o *affinity.Options[*thing]) { o.Idle, o.MaxLife = time.Minute, 3*time.Minute })
		defer o.Close()
		th := w.must(o, "k")
		for range 5 {
			time.Sleep(30 * time.Second)
			if w.must(o, "k") != th {
				t.Fatal("ended early")
			}
		}
		time.Sleep(40 * time.Second)
		if !errors.Is(why(th), affinity.ErrAge) {
			t.Errorf("closed: %v", why(th))
		}
		th = w.must(o, "k")
		time.Sleep(70 * time.Second)
		if !errors.Is(why(th), affinity.ErrIdle) {
			t.Errorf("closed: %v", why(th))
		}
		synctest.Wait()
		if row, _ := o.Lookup(t.Context(), "k"); row.State != affinity.None {
			t.Errorf("%+v", row)
		}
	})
}

func TestLaterStartStopsTheEarlier(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.owner("a", w.dir, nil)
		th := w.must(a, "k")
		time.Sleep(time.Second)
		again := w.owner("a", w.dir, nil)
		defer again.Close()
		time.Sleep(6 * time.Second)
		if !errors.Is(why(th), affinity.ErrSuperseded) || !errors.Is(a.Health(), affinity.ErrSuperseded) {
			t.Errorf("closed: %v, health %v", why(th), a.Health())
		}
		w.must(again, "k")
		a.Close()
	})
}
