package lock_test

import (
	"context"
	"sync"
	"testing"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/examples/lock"
	"github.com/ushergo/usher/lease"
)

func TestOneAtATime(t *testing.T) {
	store, err := memory.OpenLeases("", "locks", memory.LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	inside, last, n := 0, uint64(0), 0 // the lock is what keeps them, and -race looks
	var all sync.WaitGroup
	for range 4 {
		w, err := lease.New(store, lease.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = w.Close(context.Background()) }()
		for range 5 {
			all.Go(func() {
				err := lock.Do(t.Context(), w, "nightly report", nil)
				if err == nil {
					t.Error("a name with a blank was taken")
				}
				err = lock.Do(t.Context(), w, "nightly-report", func(_ context.Context, fence uint64) error {
					if inside++; inside != 1 || fence <= last {
						t.Errorf("%d inside, fence %d after %d", inside, fence, last)
					}
					last = fence
					n++
					inside--
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	w, err := lease.New(store, lease.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close(context.Background()) }()
	func() { // a panic that somebody recovers from, as net/http does, must not keep the lock
		defer func() { _ = recover() }()
		_ = lock.Do(t.Context(), w, "nightly-report", func(context.Context, uint64) error { panic("no paper") })
	}()
	if s := w.Stats(); s.Held != 0 {
		t.Errorf("%d locks are held after a panic", s.Held)
	}
	if n != 20 {
		t.Errorf("%d of 20 went in", n)
	}
}
