package flight_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/flight"
)

// TestStress does everything at once, on real threads: the schedules of the twin come one step at a time. What must hold
// is what can be seen from outside: an answer belongs to the key that was asked for and to a load that was running
// after the question, no key is loaded twice at once, the budget is kept, and in the end nothing is left.
func TestStress(t *testing.T) {
	for _, o := range []flight.Options[string, string]{
		{Backoff: flight.Backoff{Off: true}},
		{Backoff: flight.Backoff{Transient: flight.Steps{First: time.Microsecond, Max: 50 * time.Microsecond}}, OnLastLeave: flight.FinishLoad,
			Budget: flight.Budget{Concurrency: 3, MaxPending: 4, Classes: map[string]flight.Share{"a": {Reserve: 1}}}},
		{Timeout: 16 * time.Millisecond, Budget: flight.Budget{PerSecond: 1e6}, MaxWaitersPerKey: 5, Fill: func(string, string) {}},
	} {
		g := flight.New(o)
		var clock, now, most atomic.Int64
		var running [4]atomic.Int64
		var wg sync.WaitGroup
		for w := range 8 {
			rnd := rand.New(rand.NewPCG(rand.Uint64(), uint64(w)))
			wg.Go(func() {
				for range 600 {
					k := rnd.IntN(len(running))
					key := fmt.Sprint("key", k)
					ctx := context.Background()
					if rnd.IntN(3) > 0 {
						c, cancel := context.WithTimeout(ctx, time.Duration(rnd.IntN(300))*time.Microsecond)
						defer cancel()
						ctx = c
					}
					how, spin := rnd.IntN(20), rnd.IntN(30)
					asked := clock.Add(1)
					r, err := g.DoWith(ctx, key, flight.With{Class: []string{"a", "b"}[k%2], Fresh: how == 3, Alone: how == 4}, func(ctx context.Context) (string, error) {
						if how != 4 { // alone: it may run beside others
							if n := running[k].Add(1); n > 1 {
								t.Errorf("%s is loaded %d times at once", key, n)
							}
							defer running[k].Add(-1)
						}
						n := now.Add(1)
						defer now.Add(-1)
						for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
						}
						for range spin {
							if ctx.Err() != nil {
								break
							}
							time.Sleep(time.Microsecond)
						}
						v := fmt.Sprintf("%s %d", key, clock.Add(1))
						switch how {
						case 5:
							return "", errors.New("down")
						case 6:
							panic("told to")
						case 7:
							flight.Deliver(ctx, v, nil)
						case 8:
							_, err := g.Do(ctx, key, nil)
							if !errors.Is(err, flight.ErrRecursive) && ctx.Err() == nil && !errors.Is(err, flight.ErrBusy) {
								t.Errorf("asked for itself, got %v", err)
							}
						}
						return v, ctx.Err()
					})
					if err == nil {
						var of string
						var ended int64
						if fmt.Sscan(r.Value, &of, &ended); of != key {
							t.Errorf("asked for %s, got %q", key, r.Value)
						} else if how != 7 && !r.Shared && ended < asked {
							t.Errorf("asked at %d, got %q, which nobody else had", asked, r.Value)
						}
					}
					if how == 9 {
						g.Forget(key)
					} else if how == 10 && rnd.IntN(5) == 0 {
						g.ForgetAll()
					}
				}
			})
		}
		wg.Wait()
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
		s := g.Stats()
		if s.Waiters+s.Running+s.Queued+s.Pending+s.Orphans+s.Budget != 0 {
			t.Errorf("left behind: %+v", s)
		}
		if c := o.Budget.Concurrency; c > 0 && most.Load() > int64(c) {
			t.Errorf("%d loads at once under a budget of %d", most.Load(), c)
		}
	}
}
