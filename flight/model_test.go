package flight_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/flight"
)

// world drives one group and its twin through one random schedule.
type world struct {
	t   *testing.T
	rnd *rand.Rand
	g   *flight.Group[string, int]
	tw  *twin

	mu      sync.Mutex
	callers []*caller
	running map[int]*run // by the caller whose function it is
	fills   []int
	trace   []string
}

type caller struct {
	tcaller
	cancel context.CancelFunc // nil: cannot be cancelled
	got    *result
}

type run struct {
	ctx context.Context
	cmd chan string
}

var errOrigin = errors.New("origin")

// load is caller c's function: it does as it is told through cmd.
func (w *world) load(c *caller) flight.Load[int] {
	return func(ctx context.Context) (int, error) {
		r := &run{ctx, make(chan string)}
		w.mu.Lock()
		if w.running[c.id] != nil {
			w.t.Errorf("the function of caller %d runs twice at once", c.id)
		}
		w.running[c.id] = r
		w.mu.Unlock()
		defer func() {
			w.mu.Lock()
			delete(w.running, c.id)
			w.mu.Unlock()
		}()
		var done <-chan struct{}
		if c.heeds {
			done = ctx.Done()
		}
		for {
			select {
			case <-done:
				return 0, ctx.Err()
			case how := <-r.cmd:
				v, err := c.id, error(nil)
				early := strings.CutPrefix
				how, isEarly := early(how, "deliver ")
				switch how {
				case "fail":
					err = errOrigin
				case "alone":
					err = flight.NotShareable(0)
				case "panic":
					panic("told to")
				}
				if !isEarly {
					return v, err
				}
				flight.Deliver(ctx, v, err)
			}
		}
	}
}

func (w *world) call() {
	c := &caller{tcaller: tcaller{
		id: len(w.callers) + 1, key: string(rune('a' + w.rnd.IntN(3))), class: []string{"x", "x", "y", "z"}[w.rnd.IntN(4)], heeds: w.rnd.IntN(2) == 0,
	}}
	ctx := context.Background()
	if w.rnd.IntN(4) > 0 {
		ctx, c.cancel = context.WithCancel(ctx)
	}
	w.callers = append(w.callers, c)
	w.note("call %d key %s class %s heeds %v cancellable %v", c.id, c.key, c.class, c.heeds, c.cancel != nil)
	w.tw.call(&c.tcaller, false)
	go func() {
		r, err := w.g.DoWith(ctx, c.key, flight.With{Class: c.class}, w.load(c))
		got := &result{load: r.Value, what: "value", superseded: r.Superseded}
		var p *flight.PanicError
		var b *flight.BackoffError
		switch {
		case err == nil:
		case errors.Is(err, flight.ErrBusy):
			got = &result{what: "busy"}
		case errors.As(err, &b):
			got = &result{what: "backoff"}
		case errors.As(err, &p):
			got = &result{what: "panic"}
		case errors.Is(err, errOrigin):
			got = &result{what: "fail"}
		case errors.Is(err, context.Canceled):
			got = &result{what: "left"}
		default:
			got = &result{what: err.Error()}
		}
		w.mu.Lock()
		c.got = got
		w.mu.Unlock()
	}()
}

func (w *world) note(f string, args ...any) { w.trace = append(w.trace, fmt.Sprintf(f, args...)) }

// pick is a random running load, of the twin.
func (w *world) pick() *tload {
	var ls []*tload
	for _, l := range w.tw.loads {
		if l.state == "running" {
			ls = append(ls, l)
		}
	}
	if len(ls) == 0 {
		return nil
	}
	return ls[w.rnd.IntN(len(ls))]
}

func (w *world) step(hows []string) {
	switch n := w.rnd.IntN(20); {
	case n < 8:
		w.call()
	case n < 11:
		c := w.callers[w.rnd.IntN(len(w.callers))]
		if c.cancel != nil && c.in != nil {
			w.note("cancel %d", c.id)
			c.cancel()
			w.tw.leave(&c.tcaller)
		}
	case n < 16:
		if l := w.pick(); l != nil {
			how := hows[w.rnd.IntN(len(hows))]
			w.note("end %d %s", l.leader, how)
			w.running[l.leader].cmd <- how
			w.tw.end(l, how)
		}
	case n == 16:
		if l := w.pick(); l != nil {
			how := hows[w.rnd.IntN(len(hows)-1)] // no panic
			w.note("deliver %d %s", l.leader, how)
			w.running[l.leader].cmd <- "deliver " + how
			w.tw.deliver(l, how)
		}
	case n == 17:
		key := string(rune('a' + w.rnd.IntN(3)))
		w.note("forget %s", key)
		w.g.Forget(key)
		w.tw.forget(key)
	case n == 18 && w.rnd.IntN(3) == 0:
		w.note("forget all")
		w.g.ForgetAll()
		w.tw.forgetAll()
	default:
		d := time.Duration(w.rnd.IntN(300)) * time.Millisecond
		if w.rnd.IntN(5) == 0 {
			d = 11 * time.Second
		}
		w.note("sleep %v", d)
		time.Sleep(d)
		w.tw.now += d
	}
}

// compare answers what is wrong, or nothing.
func (w *world) compare() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.callers {
		want := "waits"
		if c.res != nil {
			r := *c.res
			if r.what != "value" {
				r.load, r.superseded = 0, false
			}
			want = fmt.Sprintf("%+v", r)
		}
		got := "waits"
		if c.got != nil {
			got = fmt.Sprintf("%+v", *c.got)
		}
		if c.got == nil && c.cancel == nil && w.running[c.id] != nil {
			continue // told early, but her own goroutine runs the load
		}
		if got != want {
			return fmt.Sprintf("caller %d: %s, want %s", c.id, got, want)
		}
	}
	var want, got []int
	for _, l := range w.tw.loads {
		if l.state == "running" {
			want = append(want, l.leader)
		}
	}
	for id := range w.running {
		got = append(got, id)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Sprintf("running %v, want %v", got, want)
	}
	a, b := slices.Clone(w.fills), slices.Clone(w.tw.fills)
	slices.Sort(a)
	slices.Sort(b)
	if !slices.Equal(a, b) {
		return fmt.Sprintf("filled %v, want %v", a, b)
	}
	s := w.g.Stats()
	st := func(state string) int { return w.tw.count(func(l *tload) bool { return l.state == state }) }
	waiters, orphans := 0, 0
	for _, l := range w.tw.loads {
		waiters += len(l.callers)
		if l.state == "running" && l.left {
			orphans++
		}
	}
	if s.Running != st("running") || s.Pending != st("pending") || s.Queued != st("queued") || s.Waiters != waiters || s.Orphans != orphans {
		return fmt.Sprintf("stats %+v; want running %d pending %d queued %d waiters %d orphans %d", s,
			st("running"), st("pending"), st("queued"), waiters, orphans)
	}
	return ""
}

func TestAgainstTwin(t *testing.T) {
	variants := []struct {
		name string
		tw   twin
		hows []string // the last is panic
	}{
		// Those whom an unshareable value lets go come back in any order: without a budget that does not show.
		{"no budget", twin{maxPending: 1024}, []string{"value", "value", "fail", "alone", "panic"}},
		{"finish", twin{maxPending: 1024, finish: true, maxPerKey: 3}, []string{"value", "fail", "panic"}},
		{"finish, unshareable", twin{maxPending: 1024, finish: true}, []string{"value", "alone", "fail", "panic"}},
		{"budget", twin{conc: 3, maxPending: 2, maxFlights: 6, maxPerKey: 4, reserve: map[string]int{"y": 1}}, []string{"value", "value", "fail", "panic"}},
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			base := uint64(rand.Uint32()) // printed when it matters: put it here to see the same again
			for seed := base; seed < base+30; seed++ {
				synctest.Test(t, func(t *testing.T) { schedule(t, v.tw, v.hows, seed) })
				if t.Failed() {
					return
				}
			}
		})
	}
}

func schedule(t *testing.T, tw twin, hows []string, seed uint64) {
	tw.memo = map[string]*tmemo{}
	w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 7)), tw: &tw, running: map[int]*run{}}
	b := flight.Budget{Concurrency: tw.conc, MaxPending: tw.maxPending, Classes: map[string]flight.Share{}}
	for c, n := range tw.reserve {
		b.Classes[c] = flight.Share{Reserve: n}
	}
	o := flight.Options[string, int]{
		Timeout: -1, MaxFlights: tw.maxFlights, MaxWaitersPerKey: tw.maxPerKey, Budget: b,
		Fill: func(_ string, v int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.fills = append(w.fills, v)
		},
	}
	if seed%2 == 0 {
		o.Fill = nil // then flights are used again
	}
	if tw.finish {
		o.OnLastLeave = flight.FinishLoad
	}
	w.g = flight.New(o)
	w.call()
	for range 60 {
		synctest.Wait()
		if o.Fill == nil {
			w.fills = slices.Clone(tw.fills)
		}
		if wrong := w.compare(); wrong != "" {
			t.Errorf("seed %d: %s\n%s", seed, wrong, strings.Join(w.trace, "\n"))
			break
		}
		w.step(hows)
	}
	// Whatever happened, everybody gets an answer and nothing is left.
	for range 10_000 {
		synctest.Wait()
		w.mu.Lock()
		var one *run
		for _, r := range w.running {
			one = r
		}
		w.mu.Unlock()
		if one == nil {
			break
		}
		select {
		case one.cmd <- "value":
		case <-one.ctx.Done():
			one.cmd <- "value"
		}
	}
	synctest.Wait()
	for _, c := range w.callers {
		if c.got == nil {
			t.Errorf("seed %d: caller %d was never answered", seed, c.id)
		}
		if c.cancel != nil {
			c.cancel()
		}
	}
	if err := w.g.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
