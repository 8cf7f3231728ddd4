package shared_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/flight"
	"github.com/ushergo/usher/flight/shared"
)

// TestStress runs four processes on real threads, with callers who leave, loads that fail, panic or are not shareable,
// Forgets, and a store that one process loses now and then.
func TestStress(t *testing.T) {
	store := memory.NewFlights(nil)
	var gs []*shared.Group[string]
	var stores []*flaky
	for range 4 {
		s := &flaky{Store: store}
		stores = append(stores, s)
		gs = append(gs, shared.New(s, "stress", shared.Options[string]{
			Lease: 50 * time.Millisecond, Poll: 5 * time.Millisecond,
			Local: flight.Options[string, string]{NotShareableFor: time.Millisecond, Backoff: flight.Backoff{
				Transient: flight.Steps{First: time.Millisecond, Max: 2 * time.Millisecond}}},
		}))
	}
	var answered atomic.Int64
	var wg sync.WaitGroup
	for w := range 8 {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), uint64(w)))
		wg.Go(func() {
			for range 150 {
				i := rnd.IntN(len(gs))
				key := fmt.Sprint("key", rnd.IntN(3))
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rnd.IntN(20))*time.Millisecond)
				how, spin := rnd.IntN(15), time.Duration(rnd.IntN(2000))*time.Microsecond
				if how == 0 {
					stores[0].away.Store(rnd.IntN(2) == 0)
				}
				v, err := gs[i].Do(ctx, key, func(ctx context.Context) (string, error) {
					select {
					case <-time.After(spin):
					case <-ctx.Done():
						return "", ctx.Err()
					}
					switch how {
					case 1:
						return "", errors.New("down")
					case 2:
						panic("told to")
					case 3:
						return key + " alone", flight.NotShareable(0)
					}
					return key + " v", nil
				})
				cancel()
				if err == nil {
					answered.Add(1)
					if !strings.HasPrefix(v, key+" ") {
						t.Errorf("asked for %s, got %q", key, v)
					}
				}
				if how == 4 {
					gs[i].Forget(context.Background(), key)
				} else if how == 5 && rnd.IntN(4) == 0 {
					gs[i].ForgetAll(context.Background())
				}
			}
		})
	}
	wg.Wait()
	for _, g := range gs {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := g.Close(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		if s := g.Stats(); s.Callers.Running+s.Callers.Waiters+s.Origin.Running+s.Origin.Budget != 0 {
			t.Errorf("left behind: %+v", s)
		}
	}
	if answered.Load() < 100 {
		t.Errorf("only %d of 1,200 calls got a value", answered.Load())
	}
}
