package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/lease"
)

// fakeStore is a space whose engine runs no goroutine of its own, for use with fake time.
func fakeStore(t *testing.T) *memory.Leases {
	t.Helper()
	s, err := memory.OpenLeases("", "test", memory.LeaseOptions{Now: func() int64 { return time.Now().UnixMicro() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func put(t *testing.T, s lease.Store, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if _, err := s.Put(t.Context(), lease.Put{ID: id, Desired: lease.Started, URL: "ws://" + id}); err != nil {
			t.Fatal(err)
		}
	}
}

func names(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("r-%05d", i)
	}
	return ids
}

func TestRunOwnsEveryStartedResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakeStore(t)
		put(t, s, names(10)...)
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		runs := map[string]uint64{}
		done := make(chan error)
		go func() {
			done <- lease.Run(ctx, s, func(ctx context.Context, r lease.Resource) error {
				mu.Lock()
				runs[r.ID] = r.Fence
				mu.Unlock()
				r.SetCursor("at-" + r.ID)
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		time.Sleep(5 * time.Second)
		mu.Lock()
		if len(runs) != 10 {
			t.Errorf("%d run, want 10", len(runs))
		}
		mu.Unlock()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		rows, err := s.Get(t.Context(), names(10))
		if err != nil {
			t.Fatal(err)
		}
		ws, _ := s.Workers(t.Context())
		if len(ws) != 1 || !ws[0].Dead {
			t.Errorf("workers: %+v", ws)
		}
		for _, r := range rows {
			if r.Cursor != "at-"+r.ID {
				t.Errorf("%s: cursor %q", r.ID, r.Cursor)
			}
		}
	})
}
