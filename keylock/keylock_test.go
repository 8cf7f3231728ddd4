package keylock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/keylock"
)

func lock(t *testing.T, l *keylock.Locks, key string) keylock.Hold {
	t.Helper()
	h, err := l.Lock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestReentryIsAnError(t *testing.T) { // cases/affinity 13
	l := keylock.New(keylock.Options{})
	err := l.Do(t.Context(), "a", func(ctx context.Context) error {
		inner := l.Do(ctx, "b", func(ctx context.Context) error { // another key is another matter
			return l.Do(ctx, "a", func(context.Context) error { return nil })
		})
		if !errors.Is(inner, keylock.ErrReentry) {
			t.Errorf("got %v", inner)
		}
		// Another Locks knows nothing of it.
		return keylock.New(keylock.Options{}).Do(ctx, "a", func(context.Context) error { return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	var kept context.Context
	_ = l.Do(t.Context(), "a", func(ctx context.Context) error { kept = context.WithoutCancel(ctx); return nil })
	if err := l.Do(kept, "a", func(context.Context) error { return nil }); err != nil {
		t.Errorf("the hold is over, so this is no re-entry: %v", err)
	}
}

func TestCancelledWaiterStartsNobody(t *testing.T) { // cases/affinity 14
	synctest.Test(t, func(t *testing.T) {
		l := keylock.New(keylock.Options{})
		holder := lock(t, l, "a")
		ctx, cancel := context.WithCancel(t.Context())
		var order []int
		var errs [3]error
		var wg sync.WaitGroup
		for i := range 3 {
			c := t.Context()
			if i == 1 {
				c = ctx
			}
			wg.Go(func() {
				h, err := l.Lock(c, "a")
				if errs[i] = err; err == nil {
					order = append(order, i)
					_ = h.Release()
				}
			})
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		if len(order) != 0 || !errors.Is(errs[1], context.Canceled) {
			t.Fatalf("somebody started while the holder runs: %v, %v", order, errs)
		}
		if s := l.Stats(); s.Waiting != 2 || s.Held != 1 {
			t.Errorf("%+v", s)
		}
		_ = holder.Release()
		wg.Wait()
		if fmt.Sprint(order) != "[0 2]" {
			t.Errorf("order %v", order)
		}
	})
}

func TestRefusedCallsLeaveNothing(t *testing.T) { // cases/affinity 15
	synctest.Test(t, func(t *testing.T) {
		l := keylock.New(keylock.Options{MaxWaiting: 1, MaxWait: time.Second})
		h := lock(t, l, "a")
		waited := make(chan error, 1)
		go func() { _, err := l.Lock(t.Context(), "a"); waited <- err }()
		synctest.Wait()
		if _, err := l.Lock(t.Context(), "a"); !errors.Is(err, keylock.ErrFull) {
			t.Errorf("got %v", err)
		}
		began := time.Now()
		if err := <-waited; !errors.Is(err, keylock.ErrWait) || time.Since(began) != time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		ended, cancel := context.WithCancelCause(t.Context())
		why := errors.New("gone home")
		cancel(why)
		if _, err := l.Lock(ended, "b"); err != why {
			t.Errorf("got %v", err)
		}
		if err := l.Do(h.Context(t.Context()), "a", nil); !errors.Is(err, keylock.ErrReentry) {
			t.Errorf("got %v", err)
		}
		if err := h.Release(); err != nil {
			t.Error(err)
		}
		for range 10 {
			if err := l.Do(t.Context(), "a", func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		func() {
			defer func() { _ = recover() }()
			_ = l.Do(t.Context(), "a", func(context.Context) error { panic("no") })
		}()
		if s := l.Stats(); s.Held != 0 || s.Waiting != 0 || s.Full != 1 || s.Expired != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestKeysUsedOnceAreForgotten(t *testing.T) { // cases/affinity 16
	n := 1_000_000
	if testing.Short() {
		n = 100_000
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	synctest.Test(t, func(t *testing.T) {
		l := keylock.New(keylock.Options{})
		before := heap()
		holds := make([]keylock.Hold, n) // all at once, the worst there is
		for i := range holds {
			holds[i], _ = l.Lock(t.Context(), fmt.Sprint("key", i))
		}
		if s := l.Stats(); s.Held != n {
			t.Fatalf("%+v", s)
		}
		for _, h := range holds {
			_ = h.Release()
		}
		holds = nil
		time.Sleep(5 * time.Second) // of the bubble's time: ticks
		synctest.Wait()
		if s := l.Stats(); s.Keys != 0 {
			t.Errorf("%+v", s)
		}
		if after := heap(); after > before+1<<20 {
			t.Errorf("%d KB are kept", (after-before)>>10)
		}
		runtime.KeepAlive(l)
	})
}

func TestLateAndDoubleReleaseChangeNothing(t *testing.T) { // cases/affinity 17
	synctest.Test(t, func(t *testing.T) {
		l := keylock.New(keylock.Options{MaxHold: 10 * time.Second})
		first := lock(t, l, "a")
		if err := first.Release(); err != nil {
			t.Fatal(err)
		}
		second := lock(t, l, "a")
		if err := first.Release(); !errors.Is(err, keylock.ErrReleased) {
			t.Errorf("got %v", err)
		}
		if s := l.Stats(); s.Held != 1 {
			t.Errorf("%+v", s)
		}
		time.Sleep(12 * time.Second)
		third := lock(t, l, "a")
		if first.Generation() >= second.Generation() || second.Generation() >= third.Generation() {
			t.Error("generations do not grow")
		}
		if err := second.Release(); !errors.Is(err, keylock.ErrForced) {
			t.Errorf("got %v", err)
		}
		if err := second.Release(); !errors.Is(err, keylock.ErrReleased) {
			t.Errorf("got %v", err)
		}
		if err := third.Release(); err != nil {
			t.Error(err)
		}
		if err := (keylock.Hold{}).Release(); !errors.Is(err, keylock.ErrReleased) {
			t.Errorf("got %v", err)
		}
	})
}

func TestForcedRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var retired atomic.Uint64
		clean := make(chan struct{})
		l := keylock.New(keylock.Options{MaxHold: 16 * time.Second, MaxWait: time.Hour, Forced: func(key string, gen uint64) {
			if key != "a" {
				return
			}
			retired.Store(gen)
			<-clean
		}})
		time.Sleep(100 * time.Second) // what was before counts for nothing
		h := lock(t, l, "a")
		ctx := h.Context(t.Context())
		other := lock(t, l, "b")
		began := time.Now()
		<-ctx.Done()
		if d := time.Since(began); d < 16*time.Second || d > 18*time.Second {
			t.Errorf("forced after %v", d)
		}
		if context.Cause(ctx) != keylock.ErrForced {
			t.Errorf("cause %v", context.Cause(ctx))
		}
		if err := other.Release(); !errors.Is(err, keylock.ErrForced) { // told once
			_ = err
		}
		granted := make(chan keylock.Hold)
		go func() {
			h, err := l.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			granted <- h
		}()
		synctest.Wait()
		select {
		case <-granted:
			t.Fatal("granted before the clean-up was over")
		default:
		}
		if retired.Load() != h.Generation() || l.Stats().Late < 1 {
			t.Errorf("retired %d, %+v", retired.Load(), l.Stats())
		}
		close(clean)
		next := <-granted
		if err := h.Release(); !errors.Is(err, keylock.ErrForced) || l.Stats().Late != 0 {
			t.Errorf("got %v, %+v", err, l.Stats())
		}
		if err := next.Release(); err != nil {
			t.Error(err)
		}
		err := l.Do(t.Context(), "c", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if !errors.Is(err, keylock.ErrForced) {
			t.Errorf("got %v", err)
		}
	})
}

func TestCancelRacesWithGrant(t *testing.T) { // cases/affinity 18
	l := keylock.New(keylock.Options{MaxWaiting: 100})
	var inside atomic.Int32
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				ctx, cancel := context.WithCancel(t.Context())
				if (i+k)%2 == 0 {
					go cancel()
				}
				h, err := l.Lock(ctx, "a")
				if err == nil {
					if inside.Add(1) != 1 {
						t.Error("two are inside")
					}
					inside.Add(-1)
					if err := h.Release(); err != nil {
						t.Error(err)
					}
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if s := l.Stats(); s.Held != 0 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
	if err := l.Do(t.Context(), "a", func(context.Context) error { return nil }); err != nil {
		t.Error("the key is wedged:", err)
	}
}

func TestConsumerSharesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := keylock.New(keylock.Options{})
		h := lock(t, l, "a")
		handled := make(chan string, 3)
		consume := keylock.Consumer(l, func(m string) string { return m }, func(_ context.Context, m string) error { handled <- m; return nil })
		go func() { _ = consume(t.Context(), "a") }()
		_ = consume(t.Context(), "")
		_ = consume(t.Context(), "b")
		synctest.Wait()
		if <-handled != "" || <-handled != "b" || len(handled) != 0 {
			t.Error("the message was handled beside the holder")
		}
		_ = h.Release()
		if <-handled != "a" {
			t.Error("not handled")
		}
	})
}

func TestLockAllocatesNothing(t *testing.T) {
	l := keylock.New(keylock.Options{})
	ctx := context.Background()
	if n := testing.AllocsPerRun(1000, func() {
		h, _ := l.Lock(ctx, "a")
		_ = h.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkUncontended(b *testing.B) {
	l := keylock.New(keylock.Options{})
	ctx := context.Background()
	for b.Loop() {
		h, _ := l.Lock(ctx, "a")
		_ = h.Release()
	}
}
