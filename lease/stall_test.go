package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/lease"
)

// A store whose connection is a black hole for a while, and whose requests come late.

// stalled is a way to the store on which one call after the other can be made to hang, or to be done late.
type stalled struct {
	lease.Store
	mu   sync.Mutex
	hang map[string]int // so many calls of that name never come back by themselves
	late atomic.Int64   // ns: the next Release is answered with ErrUnknown, and done so much later
}

func (s *stalled) at(ctx context.Context, op string) error {
	s.mu.Lock()
	n := s.hang[op]
	if n > 0 {
		s.hang[op]--
	}
	s.mu.Unlock()
	if n > 0 {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", lease.ErrUnknown, ctx.Err())
	}
	return nil
}

func (s *stalled) set(op string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hang == nil {
		s.hang = map[string]int{}
	}
	s.hang[op] = n
}

func (s *stalled) Orphans(ctx context.Context, living []lease.Owner, n int) ([]lease.Brief, error) {
	if err := s.at(ctx, "Orphans"); err != nil {
		return nil, err
	}
	return s.Store.Orphans(ctx, living, n)
}

func (s *stalled) Forget(ctx context.Context, o lease.Owner) error {
	if err := s.at(ctx, "Forget"); err != nil {
		return err
	}
	return s.Store.Forget(ctx, o)
}

func (s *stalled) Get(ctx context.Context, ids []string) ([]lease.Row, error) {
	if err := s.at(ctx, "Get"); err != nil {
		return nil, err
	}
	return s.Store.Get(ctx, ids)
}

func (s *stalled) Put(ctx context.Context, p lease.Put) (lease.Row, error) {
	if err := s.at(ctx, "Put"); err != nil {
		return lease.Row{}, err
	}
	return s.Store.Put(ctx, p)
}

func (s *stalled) Release(ctx context.Context, r lease.Release) (bool, error) {
	if err := s.at(ctx, "Release"); err != nil {
		return false, err
	}
	if d := s.late.Swap(0); d > 0 {
		time.AfterFunc(time.Duration(d), func() { _, _ = s.Store.Release(context.Background(), r) })
		return false, lease.ErrUnknown
	}
	return s.Store.Release(ctx, r)
}

func (h *house) stalled(name string, o lease.Options) (*lease.Worker, *stalled) {
	h.Helper()
	s := &stalled{Store: h.store}
	o.Worker = name
	w, err := lease.New(s, o)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = w.Close(ctx)
	})
	return w, s
}

// A request to release that comes late must not hit the same row again, after its worker has gone on with it.
func TestLateRelease(t *testing.T) {
	inTime(t, func(h *house) {
		h.put(1)
		w, s := h.stalled("a", lease.Options{Serve: h.serve, Desired: time.Minute})
		time.Sleep(10 * time.Second)
		h.stalled("b", lease.Options{Serve: h.serve, Desired: 500 * time.Millisecond})
		time.Sleep(time.Minute)
		s.late.Store(int64(5 * time.Second))
		for _, d := range []lease.Desired{lease.Stopped, lease.Started} {
			if _, err := h.store.Put(h.Context(), lease.Put{ID: "r0000", Desired: d}); err != nil {
				h.Fatal(err)
			}
			w.Wake()
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute) // the late request comes; serve looks for two at once
		if n := h.running(); len(n) != 1 {
			h.Errorf("running: %v", n)
		}
	})
}

// One call that hangs, as in a connection that is a black hole, keeps nobody from taking over.
func TestCallsThatHang(t *testing.T) {
	inTime(t, func(h *house) {
		h.put(10)
		_, dies := h.worker("a", lease.Options{})
		time.Sleep(time.Minute)
		_, s := h.stalled("b", lease.Options{Serve: h.serve})
		time.Sleep(time.Minute)
		if n := h.running()["b"]; n != 5 {
			h.Fatalf("b has %d of 10", n)
		}
		s.set("Orphans", 1)
		s.set("Forget", 1)
		time.Sleep(5 * time.Minute)
		dies.off.Store(true)
		time.Sleep(20 * time.Minute) // until a's row is forgotten
		if n := h.running()["b"]; n != 10 {
			h.Errorf("b has %d of 10 long after a died", n)
		}
		h.put(12)
		_, dies = h.worker("c", lease.Options{})
		time.Sleep(2 * time.Minute)
		if n := h.running(); n["c"] != 6 || n["b"] != 6 {
			h.Fatalf("shares: %v", n)
		}
		dies.off.Store(true)
		time.Sleep(time.Minute)
		if n := h.running()["b"]; n != 12 {
			h.Errorf("b has %d of 12 after the removal of a row has hung", n)
		}
	})
}

func TestLocksWhenCallsHang(t *testing.T) {
	inTime(t, func(h *house) {
		w, s := h.stalled("a", lease.Options{})
		for _, op := range []string{"Get", "Put"} {
			s.set(op, 1)
			ctx, cancel := context.WithTimeout(h.Context(), time.Minute)
			l, err := w.Acquire(ctx, "door-"+op)
			cancel()
			if err != nil {
				h.Errorf("after a %s that hangs: %v", op, err)
				continue
			}
			if err := l.Release(h.Context()); err != nil {
				h.Error(err)
			}
		}
	})
}

// Whoever holds one lock and waits for another hears at once that the worker is closed, or Close would wait for its release.
func TestCloseFreesWhoWaits(t *testing.T) {
	inTime(t, func(h *house) {
		other, _ := h.stalled("other", lease.Options{})
		theirs, err := other.Acquire(h.Context(), "theirs")
		if err != nil {
			h.Fatal(err)
		}
		w, _ := h.stalled("w", lease.Options{})
		mine, err := w.Acquire(h.Context(), "mine")
		if err != nil {
			h.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := w.Acquire(context.Background(), "theirs")
			done <- errors.Join(err, mine.Release(context.Background()))
		}()
		time.Sleep(5 * time.Second)
		ctx, cancel := context.WithTimeout(h.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if err := w.Close(ctx); err != nil {
			h.Errorf("Close: %v", err)
		}
		if d := time.Since(start); d > 2*time.Second {
			h.Errorf("Close took %v", d)
		}
		if err := <-done; !errors.Is(err, lease.ErrLeaving) {
			h.Errorf("who waited was told %v", err)
		}
		if err := theirs.Release(h.Context()); err != nil {
			h.Error(err)
		}
	})
}

// Close keeps to its context, the second one too, and also where the store does not answer.
func TestCloseKeepsItsTime(t *testing.T) {
	inTime(t, func(h *house) {
		h.put(40)
		hang := make(chan struct{})
		w, s := h.stalled("a", lease.Options{Lease: 10 * time.Minute, Serve: func(ctx context.Context, r lease.Resource) error {
			<-ctx.Done()
			if r.ID == "r0000" {
				<-hang
			}
			return nil
		}})
		time.Sleep(20 * time.Minute)
		if n := w.Stats().Held; n != 40 {
			h.Fatalf("%d held", n)
		}
		s.set("Release", 1000)
		ctx, cancel := context.WithTimeout(h.Context(), 25*time.Second)
		defer cancel()
		done := make(chan error, 1)
		start := time.Now()
		go func() { done <- w.Close(ctx) }()
		time.Sleep(time.Second)
		short, cancel2 := context.WithTimeout(h.Context(), time.Second)
		defer cancel2()
		if err := w.Close(short); !errors.Is(err, context.DeadlineExceeded) {
			h.Errorf("the second Close: %v", err)
		}
		if d := time.Since(start); d > 3*time.Second {
			h.Errorf("the second Close took %v", d)
		}
		time.Sleep(5 * time.Second)
		close(hang) // all have returned, but no row can be released
		<-done
		if d := time.Since(start); d > 26*time.Second {
			h.Errorf("Close took %v, its context 25 s", d)
		}
	})
}
