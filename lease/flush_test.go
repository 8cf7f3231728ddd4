package lease_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/lease"
)

// late is a store of which the first cursor arrives late, and its answer later still.
type late struct {
	lease.Store
	writes atomic.Int32
}

func (l *late) Flush(ctx context.Context, cs []lease.Cursor) ([]bool, error) {
	if l.writes.Add(1) > 1 {
		return l.Store.Flush(ctx, cs)
	}
	time.Sleep(500 * time.Millisecond)
	ok, err := l.Store.Flush(ctx, cs)
	time.Sleep(5 * time.Second)
	return ok, err
}

// A cursor that is written while an older one is on its way stays: they do not overtake each other.
func TestCursorsDoNotOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := memory.OpenLeases("", "x", memory.LeaseOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		ctx := t.Context()
		if _, err := store.Put(ctx, lease.Put{ID: "r", Desired: lease.Started}); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		l := &late{Store: store}
		w, err := lease.New(l, lease.Options{Lease: time.Minute, Flush: time.Second, Serve: func(_ context.Context, r lease.Resource) error {
			r.SetCursor("1")
			for l.writes.Load() == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(100 * time.Millisecond) // "1" is on its way
			r.SetCursor("end")
			err := r.Flush(context.Background())
			time.Sleep(time.Second) // it arrives
			done <- err
			return err
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		rows, _, err := store.List(ctx, "", 10)
		if err != nil || len(rows) != 1 || rows[0].Cursor != "end" || rows[0].Desired != lease.Stopped {
			t.Errorf("%+v, %v", rows, err)
		}
		if err := w.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}
