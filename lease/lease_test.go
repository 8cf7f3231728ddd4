package lease_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/lease"
)

// The shell under fake time: what takes 20 s takes nothing, and times are exact.

// link is one worker's way to the store, which a test cuts, slows and counts.
type link struct {
	lease.Store
	off   atomic.Bool
	slow  atomic.Int64 // ns
	lose  atomic.Bool  // the next answer
	beats atomic.Int64
	calls atomic.Int64
	puts  atomic.Int64 // cursors written
}

func (l *link) go_(ctx context.Context) error {
	l.calls.Add(1)
	if d := time.Duration(l.slow.Load()); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", lease.ErrUnknown, ctx.Err())
		}
	}
	if l.off.Load() {
		return fmt.Errorf("%w: cut", lease.ErrUnavailable)
	}
	return nil
}

func (l *link) Workers(ctx context.Context) ([]lease.WorkerRow, error) {
	if err := l.go_(ctx); err != nil {
		return nil, err
	}
	return l.Store.Workers(ctx)
}

func (l *link) Beat(ctx context.Context, b lease.Beat) (bool, error) {
	if err := l.go_(ctx); err != nil {
		return false, err
	}
	l.beats.Add(1)
	return l.Store.Beat(ctx, b)
}

func (l *link) Take(ctx context.Context, t lease.Take) (lease.Taken, error) {
	if err := l.go_(ctx); err != nil {
		return lease.Taken{}, err
	}
	got, err := l.Store.Take(ctx, t)
	if l.lose.CompareAndSwap(true, false) {
		return lease.Taken{}, lease.ErrUnknown
	}
	return got, err
}

func (l *link) Flush(ctx context.Context, cs []lease.Cursor) ([]bool, error) {
	if err := l.go_(ctx); err != nil {
		return nil, err
	}
	l.puts.Add(int64(len(cs)))
	return l.Store.Flush(ctx, cs)
}

func (l *link) Owned(ctx context.Context, o lease.Owner) ([]lease.Brief, error) {
	if err := l.go_(ctx); err != nil {
		return nil, err
	}
	return l.Store.Owned(ctx, o)
}

func (l *link) Orphans(ctx context.Context, living []lease.Owner, n int) ([]lease.Brief, error) {
	if err := l.go_(ctx); err != nil {
		return nil, err
	}
	return l.Store.Orphans(ctx, living, n)
}

func (l *link) Get(ctx context.Context, ids []string) ([]lease.Row, error) {
	if err := l.go_(ctx); err != nil {
		return nil, err
	}
	return l.Store.Get(ctx, ids)
}

func (l *link) Leave(ctx context.Context, o lease.Owner) error {
	if err := l.go_(ctx); err != nil {
		return err
	}
	return l.Store.Leave(ctx, o)
}

// span is one run of a function.
type span struct {
	id       string
	owner    lease.Owner
	fence    uint64
	from, to time.Time // to: its context ended
	cause    error
	cursor   string
	spec     string
}

type house struct {
	*testing.T
	store *memory.Leases
	mu    sync.Mutex
	live  map[string]*span
	spans []*span
}

func newHouse(t *testing.T, now func() int64) *house {
	t.Helper()
	if now == nil {
		now = func() int64 { return time.Now().UnixMicro() }
	}
	s, err := memory.OpenLeases("", "test", memory.LeaseOptions{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &house{T: t, store: s, live: map[string]*span{}}
}

func (h *house) put(n int) {
	h.Helper()
	for i := range n {
		if _, err := h.store.Put(h.Context(), lease.Put{ID: fmt.Sprintf("r%04d", i), Desired: lease.Started}); err != nil {
			h.Fatal(err)
		}
	}
}

// serve notes from when to when it ran, and beside whom.
func (h *house) serve(ctx context.Context, r lease.Resource) error {
	h.mu.Lock()
	s := &span{id: r.ID, owner: r.Owner, fence: r.Fence, from: time.Now(), cursor: r.Cursor, spec: string(r.Spec)}
	if other := h.live[r.ID]; other != nil {
		h.Errorf("%s: %v began while %v acted", r.ID, r.Owner, other.owner)
	}
	h.live[r.ID] = s
	h.spans = append(h.spans, s)
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	defer h.mu.Unlock()
	s.to, s.cause = time.Now(), context.Cause(ctx)
	delete(h.live, r.ID)
	return s.cause
}

func (h *house) running() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := map[string]int{}
	for _, s := range h.live {
		n[s.owner.Worker]++
	}
	return n
}

func (h *house) worker(name string, o lease.Options) (*lease.Worker, *link) {
	h.Helper()
	l := &link{Store: h.store}
	o.Worker = name
	if o.Serve == nil {
		o.Serve = h.serve
	}
	w, err := lease.New(l, o)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = w.Close(ctx)
	})
	return w, l
}

func inTime(t *testing.T, f func(h *house)) {
	synctest.Test(t, func(t *testing.T) { f(newHouse(t, nil)) })
}

func TestTakeOverAfterACrash(t *testing.T) { // the bar: crash to new owner within lease + 2 s
	inTime(t, func(h *house) {
		rounds := 20
		if testing.Short() {
			rounds = 4
		}
		h.put(120)
		_, a := h.worker("a", lease.Options{})
		h.worker("b", lease.Options{})
		h.worker("c", lease.Options{})
		time.Sleep(5 * time.Minute)
		if got, want := h.running(), (map[string]int{"a": 40, "b": 40, "c": 40}); !maps.Equal(got, want) {
			h.Fatalf("shares: %v", got)
		}
		for range rounds { // the crash comes at any moment between two beats
			time.Sleep(rand.N(5 * time.Second))
			crash := time.Now()
			a.off.Store(true)
			h.mu.Lock()
			h.spans = nil
			h.mu.Unlock()
			time.Sleep(lease.DefaultLease + 2*time.Second)
			h.mu.Lock()
			if len(h.live) != 120 {
				h.Errorf("after lease + 2 s %d of 120 have an owner", len(h.live))
			}
			for _, s := range h.spans {
				if d := s.from.Sub(crash); d < lease.DefaultLease-5*time.Second {
					h.Errorf("%s taken %v after the crash: early", s.id, d)
				}
			}
			h.mu.Unlock()
			a.off.Store(false)
			time.Sleep(3 * time.Minute)
			if got := h.running(); got["a"] != 40 {
				h.Fatalf("it does not get its share back: %v", got)
			}
		}
	})
}

func TestSkewedAndSteppingClocks(t *testing.T) { // cases/lease 6, 11
	synctest.Test(t, func(t *testing.T) {
		var step atomic.Int64
		h := newHouse(t, func() int64 { return time.Now().UnixMicro() + step.Load() })
		h.put(40)
		var links []*link
		for i := range 5 {
			start, ahead, rate := time.Now(), rand.N(20*time.Minute), 0.97+0.06*rand.Float64()
			_, l := h.worker(fmt.Sprint("w", i), lease.WithClock(lease.Options{}, func() time.Duration {
				return ahead + time.Duration(rate*float64(time.Since(start)))
			}))
			links = append(links, l)
		}
		for range 60 {
			time.Sleep(rand.N(40 * time.Second))
			step.Store(int64(rand.N(20*time.Minute)-10*time.Minute) / 1000) // the store's clock, by minutes
			l := links[rand.IntN(len(links))]
			switch rand.IntN(3) {
			case 0:
				l.off.Store(!l.off.Load())
			case 1:
				l.slow.Store(int64(rand.N(6 * time.Second)))
			case 2:
				l.lose.Store(true)
			}
		}
		for _, l := range links {
			l.off.Store(false)
			l.slow.Store(0)
		}
		time.Sleep(5 * time.Minute)
		n, last := 0, map[string]*span{}
		for _, k := range h.running() {
			n += k
		}
		if n != 40 {
			t.Errorf("%d of 40 have an owner", n)
		}
		for _, s := range h.spans { // in the order they began; serve has looked for overlaps
			if l := last[s.id]; l != nil && s.owner != l.owner && s.fence <= l.fence {
				t.Errorf("%s: %v has fence %d after %d of %v", s.id, s.owner, s.fence, l.fence, l.owner)
			}
			last[s.id] = s
		}
		t.Logf("%d runs of 40 resources", len(h.spans))
	})
}

func TestHealthyWorkersKeepWhatTheyHave(t *testing.T) { // cases/lease 2, 10, 15, 16
	inTime(t, func(h *house) {
		h.put(30)
		var links []*link
		for _, name := range []string{"a", "b", "c"} {
			_, l := h.worker(name, lease.Options{})
			links = append(links, l)
		}
		time.Sleep(3 * time.Minute)
		h.mu.Lock()
		h.spans = nil
		h.mu.Unlock()
		for range 10 {
			for _, l := range links { // slow for everybody
				l.slow.Store(int64(2 * time.Second))
			}
			time.Sleep(15 * time.Second)
			for _, l := range links {
				l.slow.Store(0)
			}
			links[0].off.Store(true) // away for a beat or two
			time.Sleep(8 * time.Second)
			links[0].off.Store(false)
			time.Sleep(10 * time.Second)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.spans) != 0 {
			h.Errorf("%d resources changed hands, or were begun again", len(h.spans))
		}
	})
}

func TestStoreAwayForLong(t *testing.T) { // everybody stops in time, nobody is declared dead, and it goes on
	inTime(t, func(h *house) {
		h.put(20)
		_, a := h.worker("a", lease.Options{})
		_, b := h.worker("b", lease.Options{})
		time.Sleep(3 * time.Minute)
		before := h.running()
		away := time.Now()
		a.off.Store(true)
		b.off.Store(true)
		time.Sleep(5 * time.Minute)
		if n := h.running(); len(n) != 0 {
			h.Errorf("still running: %v", n)
		}
		for _, s := range h.spans {
			if d := s.to.Sub(away); !s.to.Before(away) && (d > 18*time.Second || !errors.Is(s.cause, lease.ErrLost)) {
				h.Errorf("%s ended after %v by %v", s.id, d, s.cause)
			}
		}
		n := len(h.spans)
		a.off.Store(false)
		b.off.Store(false)
		time.Sleep(time.Minute)
		if after := h.running(); !maps.Equal(before, after) {
			h.Errorf("before %v, after %v", before, after)
		}
		for _, s := range h.spans[n:] {
			for _, o := range h.spans[:n] {
				if o.id == s.id && o.to.After(away) && (o.owner != s.owner || o.fence != s.fence) {
					h.Errorf("%s went from %v to %v without need", s.id, o.owner, s.owner)
				}
			}
		}
	})
}

func TestBeatsDoNotGrowWithResources(t *testing.T) { // the bar: 2,000 on 3 workers, 1 beat/s in all
	inTime(t, func(h *house) {
		h.put(2000)
		var links []*link
		for _, name := range []string{"a", "b", "c"} {
			_, l := h.worker(name, lease.Options{})
			links = append(links, l)
		}
		time.Sleep(4 * time.Minute)
		if got := h.running(); got["a"]+got["b"]+got["c"] != 2000 || max(got["a"], got["b"], got["c"]) > 667 {
			h.Errorf("shares: %v", got)
		}
		count := func() (beats, calls int64) {
			for _, l := range links {
				beats, calls = beats+l.beats.Load(), calls+l.calls.Load()
			}
			return beats, calls
		}
		b0, c0 := count()
		time.Sleep(4 * time.Minute)
		b1, c1 := count()
		h.Logf("%.2f beats/s, %.2f calls/s in all", float64(b1-b0)/240, float64(c1-c0)/240)
		if b1-b0 > 240 {
			h.Errorf("%d beats in 240 s", b1-b0)
		}
	})
}

func TestFunctions(t *testing.T) {
	inTime(t, func(h *house) {
		h.put(4)
		var mu sync.Mutex
		runs := map[string][]uint64{}
		h.worker("a", lease.Options{Serve: func(ctx context.Context, r lease.Resource) error {
			mu.Lock()
			runs[r.ID] = append(runs[r.ID], r.Fence)
			n := len(runs[r.ID])
			mu.Unlock()
			switch {
			case r.ID == "r0000" && n < 4:
				return errors.New("not today")
			case r.ID == "r0001" && n < 4:
				panic("nor tomorrow")
			case r.ID == "r0002":
				return nil // finished
			}
			<-ctx.Done()
			return nil
		}})
		time.Sleep(2 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		for id, n := range map[string]int{"r0000": 4, "r0001": 4, "r0002": 1, "r0003": 1} {
			fences := runs[id]
			if len(fences) != n || len(slices.Compact(fences)) != 1 {
				h.Errorf("%s ran under %v, want %d runs under one fence", id, runs[id], n)
			}
		}
		rows, err := h.store.Get(h.Context(), []string{"r0002"})
		if err != nil || rows[0].Desired != lease.Stopped || rows[0].Owner != (lease.Owner{}) {
			h.Errorf("finished: %+v %v", rows, err)
		}
	})
}

func TestChangesAndCursors(t *testing.T) {
	inTime(t, func(h *house) {
		h.put(2)
		w, l := h.worker("a", lease.Options{Serve: func(ctx context.Context, r lease.Resource) error {
			for n := 0; ctx.Err() == nil; n++ {
				r.SetCursor(fmt.Sprint(string(r.Spec), n))
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
			h.mu.Lock()
			h.spans = append(h.spans, &span{id: r.ID, fence: r.Fence, cause: context.Cause(ctx), cursor: r.Cursor, spec: string(r.Spec)})
			h.mu.Unlock()
			return nil
		}})
		time.Sleep(5 * time.Second)
		before := l.puts.Load()
		time.Sleep(100 * time.Second)
		if n := l.puts.Load() - before; n > 202 || n < 190 {
			h.Errorf("%d cursors written for 2 resources in 100 s", n)
		}
		put := func(p lease.Put) {
			if _, err := h.store.Put(h.Context(), p); err != nil {
				h.Fatal(err)
			}
			w.Wake() // a link does not watch
		}
		put(lease.Put{ID: "r0000", Desired: lease.Started, Spec: []byte("new")})
		time.Sleep(2 * time.Second)
		put(lease.Put{ID: "r0000", Desired: lease.Stopped, Spec: []byte("new")})
		if _, err := h.store.Delete(h.Context(), "r0001"); err != nil {
			h.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.spans) != 3 {
			for _, s := range h.spans {
				h.Logf("%s %q %q: %v", s.id, s.spec, s.cursor, s.cause)
			}
			h.Fatalf("%d runs, want 3", len(h.spans))
		}
		causes := map[string]string{}
		for _, s := range h.spans {
			causes[s.spec+s.id] = fmt.Sprint(errors.Is(s.cause, lease.ErrChanged), errors.Is(s.cause, lease.ErrStopped), errors.Is(s.cause, lease.ErrDeleted) || errors.Is(s.cause, lease.ErrLost))
			if s.spec == "new" && (s.cursor == "" || s.fence != h.spans[0].fence) {
				h.Errorf("the changed one begins at %q under %d, was under %d", s.cursor, s.fence, h.spans[0].fence)
			}
		}
		want := map[string]string{"r0000": "true false false", "newr0000": "false true false", "r0001": "false false true"} // a flush may be the first to see that a row is gone
		if !maps.Equal(causes, want) {
			h.Errorf("causes: %v", causes)
		}
	})
}

func TestCloseWithOneThatHangs(t *testing.T) { // all but it go to others at once
	inTime(t, func(h *house) {
		h.put(700)
		hang := make(chan struct{})
		w, _ := h.worker("a", lease.Options{Serve: func(ctx context.Context, r lease.Resource) error {
			<-ctx.Done()
			if r.ID == "r0007" {
				<-hang
			}
			return nil
		}})
		time.Sleep(time.Minute)
		if n := w.Stats().Held; n != 700 {
			h.Fatalf("%d held", n)
		}
		h.worker("b", lease.Options{})
		time.Sleep(3 * time.Second)
		ctx, cancel := context.WithTimeout(h.Context(), 25*time.Second)
		defer cancel()
		done := make(chan error)
		go func() { done <- w.Close(ctx) }()
		time.Sleep(2 * time.Second)
		if n := h.running()["b"]; n != 699 {
			h.Errorf("after 2 s b has %d, want 699", n)
		}
		if err := <-done; err == nil || !errors.Is(err, context.DeadlineExceeded) {
			h.Errorf("Close: %v", err)
		}
		time.Sleep(lease.DefaultLease + 2*time.Second)
		if n := h.running()["b"]; n != 700 {
			h.Errorf("after the lease b has %d, want 700", n)
		}
		close(hang)
	})
}

func TestSameNameAgain(t *testing.T) { // a crashed worker of a fixed name waits for its predecessor's lease
	inTime(t, func(h *house) {
		h.put(3)
		old, l := h.worker("a", lease.Options{})
		time.Sleep(time.Minute)
		l.off.Store(true)
		crash := time.Now()
		h.worker("a", lease.Options{})
		time.Sleep(lease.DefaultLease + 5*time.Second)
		if n := len(h.running()); n != 1 {
			h.Error("not taken over by the second of that name")
		}
		for _, s := range h.spans[3:] {
			if d := s.from.Sub(crash); d < 13*time.Second {
				h.Errorf("taken after %v", d)
			}
		}
		_ = old
	})
}

func TestLockWaitersAreCheap(t *testing.T) { // cases/lease 3, 4, 12
	inTime(t, func(h *house) {
		a, _ := h.worker("a", lease.Options{Serve: nil})
		_ = a.Close(h.Context())
		l := &link{Store: h.store}
		w, err := lease.New(l, lease.Options{})
		if err != nil {
			h.Fatal(err)
		}
		defer func() { _ = w.Close(context.Background()) }()
		first, err := w.Acquire(h.Context(), "door")
		if err != nil {
			h.Fatal(err)
		}
		ctx, cancel := context.WithCancel(h.Context())
		var gone sync.WaitGroup
		for range 1000 {
			gone.Go(func() {
				if _, err := w.Acquire(ctx, "door"); !errors.Is(err, context.Canceled) {
					h.Errorf("got %v", err)
				}
			})
		}
		time.Sleep(time.Second)
		before := l.calls.Load()
		time.Sleep(time.Minute)
		if n := l.calls.Load() - before; n > 200 {
			h.Errorf("1,000 waiters made %d calls in a minute", n)
		}
		start := time.Now()
		cancel()
		gone.Wait()
		if d := time.Since(start); d > 100*time.Millisecond {
			h.Errorf("cancelled after %v", d)
		}
		if err := first.Release(h.Context()); err != nil {
			h.Error(err)
		}
		if again, err := w.Acquire(h.Context(), "door"); err != nil || again.Fence() <= first.Fence() {
			h.Error(again, err)
		} else if err := again.Release(h.Context()); err != nil {
			h.Error(err)
		}
		if d := time.Since(start); d > time.Second {
			h.Errorf("a free lock took %v", d)
		}
	})
}
