package affinity_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/engine/memory"
)

// flaky is a directory whose answers can be lost, and that can be away.
type flaky struct {
	affinity.Store
	away atomic.Bool // nothing arrives
	lost atomic.Bool // it is obeyed, and the answer is lost
	slow atomic.Int64
}

var errCut = errors.New("connection cut")

func through[T any](ctx context.Context, f *flaky, call func() (T, error)) (T, error) {
	var none T
	if d := time.Duration(f.slow.Load()); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
	if f.away.Load() {
		return none, errCut
	}
	got, err := call()
	if f.lost.Load() {
		return none, errCut
	}
	return got, err
}

func (f *flaky) Claim(ctx context.Context, c affinity.Claim) (affinity.Claimed, error) {
	return through(ctx, f, func() (affinity.Claimed, error) { return f.Store.Claim(ctx, c) })
}

func (f *flaky) Refresh(ctx context.Context, r affinity.Refresh) (affinity.Refreshed, error) {
	return through(ctx, f, func() (affinity.Refreshed, error) { return f.Store.Refresh(ctx, r) })
}

func (f *flaky) Clear(ctx context.Context, c affinity.Clear) (affinity.Cleared, error) {
	return through(ctx, f, func() (affinity.Cleared, error) { return f.Store.Clear(ctx, c) })
}

func (f *flaky) Announce(ctx context.Context, a affinity.Announce) (affinity.Announced, error) {
	return through(ctx, f, func() (affinity.Announced, error) { return f.Store.Announce(ctx, a) })
}

func (f *flaky) Get(ctx context.Context, space, key string) (affinity.Row, error) {
	return through(ctx, f, func() (affinity.Row, error) { return f.Store.Get(ctx, space, key) })
}

// thing is a session; it must be used by one at a time, and not after it was closed.
type thing struct {
	gen    uint64
	inside atomic.Int32
	closed atomic.Pointer[error]
}

// world is a directory and what was built.
type world struct {
	t      *testing.T
	dir    affinity.Store
	builds atomic.Int32
	mu     sync.Mutex
	things []*thing
}

func (w *world) owner(id string, store affinity.Store, change func(*affinity.Options[*thing])) *affinity.Owner[*thing] {
	w.t.Helper()
	opts := affinity.Options[*thing]{
		Space: "s", Instance: id, Addr: id + ":80", Epoch: uint64(time.Now().UnixMicro()),
		Build: func(_ context.Context, _ string, fence uint64) (*thing, error) {
			w.builds.Add(1)
			th := &thing{gen: fence}
			w.mu.Lock()
			w.things = append(w.things, th)
			w.mu.Unlock()
			return th, nil
		},
		Close: func(th *thing, why error) {
			if !th.closed.CompareAndSwap(nil, &why) {
				w.t.Error("closed twice")
			}
		},
	}
	if change != nil {
		change(&opts)
	}
	o, err := affinity.Open(store, opts)
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

// visit uses a session and says which.
func (w *world) visit(o *affinity.Owner[*thing], key string) (*thing, error) {
	var got *thing
	err := o.Use(w.t.Context(), key, func(ctx context.Context, s affinity.Session[*thing]) error {
		got = s.Value
		if s.Value.inside.Add(1) != 1 {
			w.t.Error("two callers use one session")
		}
		if s.Value.closed.Load() != nil {
			w.t.Error("a closed session is used")
		}
		if s.Value.gen != s.Generation || s.Key != key || s.ID == "" {
			w.t.Errorf("%+v", s)
		}
		s.Value.inside.Add(-1)
		return nil
	})
	return got, err
}

func (w *world) must(o *affinity.Owner[*thing], key string) *thing {
	w.t.Helper()
	th, err := w.visit(o, key)
	if err != nil {
		w.t.Fatal(err)
	}
	return th
}

func inBubble(t *testing.T, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) { f(t, &world{t: t, dir: memory.NewDirectory(nil)}) })
}

func why(th *thing) error {
	if p := th.closed.Load(); p != nil {
		return *p
	}
	return nil
}
