package memory_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
)

// TestChaos does everything to a few rooms at once: enter and leave, follow and stop following,
// read the log, change, delete and make anew, and at the end close while all goes on. Nobody
// waits for ever, every error is one of those that the contract names, and followers see no gap.
func TestChaos(t *testing.T) {
	rounds := 5
	if os.Getenv("USHER_SOAK") != "" {
		rounds = 200
	}
	dir := t.TempDir()
	for round := range rounds {
		e, err := memory.Open(dir, memory.Options{SegmentBytes: 16 << 10, SnapshotBytes: 32 << 10, NoSync: round%2 == 0})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		known := func(what string, err error) {
			for _, ok := range []error{nil, room.ErrNotFound, room.ErrUnavailable, room.ErrUnknown, room.ErrTrimmed, room.ErrWaiters, context.Canceled} {
				if errors.Is(err, ok) || err == ok {
					return
				}
			}
			t.Errorf("%s: %v", what, err)
		}
		var wg sync.WaitGroup
		worker := func(n int, what func(rng *rand.Rand, id string)) {
			for k := range n {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(round), uint64(k)))
					for ctx.Err() == nil {
						what(rng, fmt.Sprint("room-", rng.IntN(3)))
					}
				})
			}
		}
		worker(8, func(rng *rand.Rand, id string) {
			call, stop := ctx, context.CancelFunc(func() {})
			if rng.IntN(8) == 0 {
				call, stop = context.WithTimeout(ctx, time.Duration(rng.IntN(300))*time.Microsecond)
			}
			defer stop()
			r, err := e.Do(call, id, &room.Command{Op: room.OpEnter, NewID: number(rng.Int()), Rand: rng.Uint64()})
			known("enter", err)
			if err == nil && r.Err == nil && rng.IntN(4) > 0 {
				_, err := e.Do(call, id, &room.Command{Op: room.OpLeave, Ref: r.View.Ref})
				known("leave", err)
			}
		})
		worker(2, func(rng *rand.Rand, id string) {
			c := stormConfig(int64(rng.IntN(30) + 1))
			c.ID = id
			_, err := e.Do(ctx, id, &room.Command{Op: room.OpConfigure, Config: c})
			known("configure", err)
			if rng.IntN(10) == 0 {
				known("delete", e.Delete(ctx, id, rng.IntN(2) == 0))
			}
		})
		worker(4, func(rng *rand.Rand, id string) {
			call, stop := context.WithTimeout(ctx, time.Duration(rng.IntN(5))*time.Millisecond)
			defer stop()
			f := &strict{}
			err := e.Follow(call, id, f)
			if !errors.Is(err, context.DeadlineExceeded) {
				known("follow", err)
			}
			if f.bad != nil {
				t.Error(f.bad)
			}
		})
		worker(1, func(rng *rand.Rand, id string) {
			after := room.Cursor{}
			for range 5 {
				events, next, err := e.Events(ctx, id, after, 100)
				known("events", err)
				for i := 1; i < len(events); i++ {
					if events[i].N != events[i-1].N+1 {
						t.Errorf("event %v follows %v", events[i].N, events[i-1].N)
					}
				}
				after = next
			}
			_, err := e.Rooms(ctx)
			known("rooms", err)
			_, _ = e.Health(), e.Stats()
		})
		time.Sleep(200 * time.Millisecond) // of chaos
		done := make(chan struct{})
		go func() {
			if round%3 == 0 {
				cancel()
				wg.Wait()
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			cancel()
			wg.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(time.Minute):
			panic("somebody waits for ever") // with all stacks
		}
	}
}

// strict notes a gap.
type strict struct {
	m   *room.Mirror
	bad error
}

func (f *strict) Reset(m *room.Mirror) { f.m = m }
func (f *strict) Apply(events []room.Event) {
	for i := range events {
		if f.m == nil || !f.m.Apply(&events[i]) {
			f.bad = fmt.Errorf("event %d.%d came before Reset or after a gap", events[i].Epoch, events[i].N)
		}
	}
}
