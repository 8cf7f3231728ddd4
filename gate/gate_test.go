package gate_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/gate"
)

// open makes a gate in memory, on the bubble's clock.
func open(t *testing.T, o gate.Options) *gate.Gate {
	t.Helper()
	s, err := memory.OpenGates("", memory.GateOptions{Now: func() int64 { return time.Now().UnixMicro() }})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gate.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func TestDoReleasesWhateverHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := open(t, gate.Options{Permits: 1, Lease: 10 * time.Second})
		free := func(what string) {
			t.Helper()
			if st, err := g.Status(t.Context(), "k"); err != nil || st.Free != 1 {
				t.Errorf("after %s: %+v, %v", what, st, err)
			}
		}
		boom := errors.New("boom")
		var fence uint64
		err := g.Do(t.Context(), "k", func(_ context.Context, p *gate.Permit) error {
			fence = p.Fence()
			return boom
		})
		if !errors.Is(err, boom) || fence == 0 { // cases/gate 12
			t.Error(err, fence)
		}
		free("an error")

		func() {
			defer func() {
				if recover() != "panic" {
					t.Error("the panic did not come through")
				}
			}()
			_ = g.Do(t.Context(), "k", func(context.Context, *gate.Permit) error { panic("panic") })
		}()
		free("a panic")

		ctx, cancel := context.WithCancel(t.Context())
		err = g.Do(ctx, "k", func(ctx context.Context, _ *gate.Permit) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		free("a cancelled context")

		start := time.Now()
		err = g.Do(t.Context(), "k", func(ctx context.Context, p *gate.Permit) error {
			<-ctx.Done() // shortly before the lease is over
			if took := time.Since(start); took != 9*time.Second || !errors.Is(context.Cause(ctx), gate.ErrExpired) {
				t.Errorf("ended after %v: %v", took, context.Cause(ctx))
			}
			return context.Cause(ctx)
		})
		if !errors.Is(err, gate.ErrExpired) {
			t.Error(err)
		}
		free("a lease that ended")

		start = time.Now()
		_ = g.Do(t.Context(), "k", func(ctx context.Context, p *gate.Permit) error {
			time.Sleep(5 * time.Second)
			if err := p.Extend(ctx, 20*time.Second); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			if took := time.Since(start); took != 24*time.Second {
				t.Errorf("extended, and ended after %v", took)
			}
			time.Sleep(5 * time.Second)
			return nil
		})
		if s := g.Stats(); s.Expired != 1 || s.Held != 0 || s.Granted != 5 {
			t.Errorf("%+v", s)
		}
		free("a lease that was over")
	})
}

func TestWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := open(t, gate.Options{Permits: 1, MaxWaiting: 3, Lease: time.Minute})
		if _, err := g.Acquire(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var full *gate.FullError
		if _, err := g.Acquire(t.Context(), "k"); !errors.As(err, &full) || full.Crowded || full.After < 59*time.Second {
			t.Errorf("%v, %+v", err, full)
		}
		if took := time.Since(start); took != gate.DefaultWait {
			t.Errorf("waited %v", took)
		}
		if _, err := g.Acquire(t.Context(), "k", gate.Wait(0)); !errors.Is(err, gate.ErrFull) || time.Since(start) != gate.DefaultWait {
			t.Errorf("no wait: %v after %v", err, time.Since(start))
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if _, err := g.Acquire(t.Context(), "k", gate.Wait(time.Second)); !errors.Is(err, gate.ErrFull) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if _, err := g.Acquire(t.Context(), "k", gate.Wait(time.Second)); !errors.As(err, &full) || !full.Crowded {
			t.Errorf("the fourth: %v", err)
		}
		if _, err := g.Acquire(t.Context(), "other"); err != nil {
			t.Errorf("another key: %v", err)
		}
		wg.Wait()
		if st, _ := g.Status(t.Context(), "k"); st.Waiting != 0 || st.Held != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// A crashed holder's permit goes to the first who waits, at the moment its lease is over.
func TestWaiterIsWokenByExpiry(t *testing.T) { // cases/gate 1
	synctest.Test(t, func(t *testing.T) {
		g := open(t, gate.Options{Permits: 1, Lease: 7 * time.Second})
		if _, err := g.Acquire(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := g.Acquire(t.Context(), "k", gate.Wait(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 7*time.Second || took > 7*time.Second+10*time.Millisecond {
			t.Errorf("came after %v", took)
		}
	})
}

// One who wants many permits stands first until she gets them, and those behind come after.
func TestManyPermitsAreNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := open(t, gate.Options{Permits: 3})
		var held []*gate.Permit
		for range 3 {
			p, err := g.Acquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, p)
		}
		order := make(chan string, 2)
		go func() {
			if _, err := g.Acquire(t.Context(), "k", gate.N(3), gate.Wait(time.Minute)); err == nil {
				order <- "three"
			}
		}()
		synctest.Wait()
		go func() {
			if _, err := g.Acquire(t.Context(), "k", gate.Wait(time.Hour), gate.Lease(time.Hour)); err == nil {
				order <- "one"
			}
		}()
		synctest.Wait()
		for _, p := range held {
			if err := p.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
		}
		if got := <-order; got != "three" {
			t.Errorf("%s came first", got)
		}
		if got := <-order; got != "one" { // when the three's lease is over
			t.Error(got)
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	for _, tc := range []struct {
		o    gate.Options
		name string
	}{
		{gate.Options{Permits: -1}, "permits"},
		{gate.Options{Lease: -time.Second}, "lease"},
		{gate.Options{Lease: 48 * time.Hour}, "lease"},
	} {
		if _, err := gate.New(nil, tc.o); !errors.Is(err, gate.ErrBadRequest) || !strings.Contains(err.Error(), tc.name) {
			t.Errorf("%+v: %v", tc.o, err)
		}
	}
	for _, s := range []string{"", "xyz", strings.Repeat("g", 32), strings.Repeat("0", 31)} {
		if _, err := gate.ParseID(s); !errors.Is(err, gate.ErrBadRequest) {
			t.Errorf("%q: %v", s, err)
		}
	}
	id, err := gate.ParseID("000102030405060708090a0b0c0d0e0F")
	if err != nil || id.String() != "000102030405060708090a0b0c0d0e0f" {
		t.Error(id, err)
	}
}
