// Package flighttest is the conformance suite of flight/shared's Store. Every engine runs it.
package flighttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/flight"
	"github.com/ushergo/usher/flight/shared"
)

// Fixture is a store.
type Fixture struct {
	Store shared.Store
	Space string // in which nothing is yet
	// Advance lets the store's time pass; an engine with a clock of its own sleeps.
	Advance func(time.Duration)
}

// TestStore runs the suite. open is called for each test.
func TestStore(t *testing.T, open func(t *testing.T) Fixture) {
	for name, test := range map[string]func(*testing.T, *client){
		"LeadFollowDone":        leadFollowDone,
		"AskedAgain":            askedAgain,
		"DeadLeader":            deadLeader,
		"ExactlyOneLeads":       exactlyOneLeads,
		"LateLoadIsRefused":     lateLoad,
		"ForgetWhileLoading":    forgetWhileLoading,
		"ForgetAllMeetsFirst":   forgetAllMeetsFirst,
		"FailingKeyIsHeld":      failingKey,
		"NotShareable":          notShareable,
		"MaxAge":                maxAge,
		"ReleasedHasNoResult":   released,
		"Events":                events,
		"BytesAreKept":          bytesAreKept,
		"FencesGrowAfterTheKey": fencesGrow,
		"AsTheMachine":          asTheMachine,
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t)
			test(t, &client{t: t, f: f, ctx: t.Context(), space: f.Space})
		})
	}
}

// client makes the tests short.
type client struct {
	t     *testing.T
	f     Fixture
	ctx   context.Context
	space string
}

// Nothing that a slow machine may outlast is waited for: leases are long, and are made short when they are to end.
const lease, moment = time.Minute, 5 * time.Millisecond

// expire ends the lease of a lead.
func (c *client) expire(key string, fence uint64) {
	c.t.Helper()
	r, err := c.f.Store.Renew(c.ctx, shared.Renew{Space: c.space, Key: key, Fence: fence, Lease: time.Millisecond})
	if err != nil || !r.Held {
		c.t.Fatalf("renew: %+v, %v", r, err)
	}
	c.f.Advance(moment)
}

func (c *client) begin(key, token string, after uint64) shared.State {
	c.t.Helper()
	st, err := c.f.Store.Begin(c.ctx, shared.Begin{Space: c.space, Key: key, Token: token, Lease: lease, After: after})
	if err != nil {
		c.t.Fatal(err)
	}
	return st
}

func (c *client) want(st shared.State, k shared.Kind) shared.State {
	c.t.Helper()
	if st.Kind != k {
		c.t.Fatalf("got %v (%+v), want %v", st.Kind, st, k)
	}
	return st
}

func (c *client) finish(key string, fence uint64, r shared.Result, hold time.Duration) shared.Finished {
	c.t.Helper()
	d, err := c.f.Store.Finish(c.ctx, shared.Finish{Space: c.space, Key: key, Fence: fence, Result: r, Keep: lease, Hold: hold})
	if err != nil {
		c.t.Fatal(err)
	}
	return d
}

func (c *client) forget(key string) {
	c.t.Helper()
	if err := c.f.Store.Forget(c.ctx, c.space, key); err != nil {
		c.t.Fatal(err)
	}
}

func loaded(v string) shared.Result { return shared.Result{Status: shared.Loaded, Value: []byte(v)} }

func leadFollowDone(t *testing.T, c *client) {
	a := c.want(c.begin("k", "a", 0), shared.Lead)
	b := c.want(c.begin("k", "b", 0), shared.Follow)
	if b.After != a.Fence || b.Left <= 0 || b.Left > lease {
		t.Errorf("follow %+v of %+v", b, a)
	}
	c.want(c.begin("other", "b", 0), shared.Lead)
	if d := c.finish("k", a.Fence, loaded("v"), 0); d.Lost || d.Superseded {
		t.Errorf("finish %+v", d)
	}
	d := c.want(c.begin("k", "b", b.After), shared.Done)
	if string(d.Result.Value) != "v" || d.Fence != a.Fence {
		t.Errorf("done %+v", d)
	}
	// Who asks now must not get what was finished before.
	n := c.want(c.begin("k", "c", 0), shared.Lead)
	if n.Fence <= a.Fence {
		t.Errorf("fence %d after %d", n.Fence, a.Fence)
	}
	// Who followed still may.
	c.want(c.begin("k", "b", b.After), shared.Done)
}

func askedAgain(t *testing.T, c *client) {
	a := c.want(c.begin("k", "a", 0), shared.Lead)
	again := c.want(c.begin("k", "a", 0), shared.Lead)
	if again.Fence != a.Fence || again.Left > a.Left {
		t.Errorf("asked again: %+v, first %+v", again, a)
	}
	c.want(c.begin("k", "b", 0), shared.Follow)
	first := c.finish("k", a.Fence, loaded("v"), 0)
	second := c.finish("k", a.Fence, loaded("v"), 0)
	if first.Lost || second.Lost {
		t.Errorf("finish %+v, again %+v", first, second)
	}
}

func deadLeader(t *testing.T, c *client) { // cases/flight 11
	a := c.want(c.begin("k", "a", 0), shared.Lead)
	b := c.want(c.begin("k", "b", 0), shared.Follow)
	d := c.want(c.begin("k", "d", 0), shared.Follow)
	c.expire("k", a.Fence)
	next := c.want(c.begin("k", "b", b.After), shared.Lead)
	if next.Fence <= a.Fence {
		t.Errorf("fence %d after %d", next.Fence, a.Fence)
	}
	c.want(c.begin("k", "d", d.After), shared.Follow)
	// The dead leader comes back.
	if r, err := c.f.Store.Renew(c.ctx, shared.Renew{Space: c.space, Key: "k", Fence: a.Fence, Lease: lease}); err != nil || r.Held {
		t.Errorf("renew of a lost lead: %+v, %v", r, err)
	}
	if f := c.finish("k", a.Fence, loaded("late"), 0); !f.Lost {
		t.Errorf("finish of a lost lead: %+v", f)
	}
	c.finish("k", next.Fence, loaded("v"), 0)
	if r := c.want(c.begin("k", "d", d.After), shared.Done); string(r.Result.Value) != "v" {
		t.Errorf("got %q", r.Result.Value)
	}
	// A lease that ran out with nobody there to take over goes on.
	e := c.want(c.begin("e", "a", 0), shared.Lead)
	c.expire("e", e.Fence)
	if r, err := c.f.Store.Renew(c.ctx, shared.Renew{Space: c.space, Key: "e", Fence: e.Fence, Lease: lease}); err != nil || !r.Held {
		t.Errorf("renew: %+v, %v", r, err)
	}
	c.want(c.begin("e", "b", 0), shared.Follow)
}

func exactlyOneLeads(t *testing.T, c *client) { // cases/flight 11
	a := c.want(c.begin("k", "dead", 0), shared.Lead)
	c.expire("k", a.Fence)
	var mu sync.Mutex
	var wg sync.WaitGroup
	leads := 0
	for i := range 50 {
		wg.Go(func() {
			st, err := c.f.Store.Begin(c.ctx, shared.Begin{Space: c.space, Key: "k", Token: fmt.Sprint("t", i), Lease: time.Minute, After: a.Fence})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if st.Kind == shared.Lead {
				leads++
			}
		})
	}
	wg.Wait()
	if leads != 1 {
		t.Errorf("%d lead", leads)
	}
}

func lateLoad(t *testing.T, c *client) { // cases/flight 8
	a := c.want(c.begin("k", "a", 0), shared.Lead)
	c.expire("k", a.Fence)
	b := c.want(c.begin("k", "b", 0), shared.Lead)
	c.finish("k", b.Fence, loaded("newer"), 0)
	if d := c.finish("k", a.Fence, loaded("older"), 0); !d.Lost {
		t.Errorf("finish %+v", d)
	}
	if d := c.want(c.begin("k", "x", a.Fence), shared.Done); string(d.Result.Value) != "newer" {
		t.Errorf("got %q", d.Result.Value)
	}
}

func forgetWhileLoading(t *testing.T, c *client) { // cases/flight 8
	a := c.want(c.begin("k", "a", 0), shared.Lead)
	before := c.want(c.begin("k", "b", 0), shared.Follow)
	c.forget("k")
	after := c.want(c.begin("k", "c", 0), shared.Follow)
	if d := c.finish("k", a.Fence, loaded("old"), 0); d.Lost || !d.Superseded {
		t.Errorf("finish %+v", d)
	}
	if d := c.want(c.begin("k", "b", before.After), shared.Done); string(d.Result.Value) != "old" || !d.Result.Superseded {
		t.Errorf("who asked before got %+v", d.Result)
	}
	n := c.want(c.begin("k", "c", after.After), shared.Lead) // the old value is not for her
	c.finish("k", n.Fence, loaded("new"), 0)
	if d := c.want(c.begin("k", "d", after.After), shared.Done); string(d.Result.Value) != "new" || d.Result.Superseded {
		t.Errorf("who asked after got %+v", d.Result)
	}
	c.forget("never seen")
}

func forgetAllMeetsFirst(t *testing.T, c *client) { // cases/flight 9
	fences := map[string]uint64{}
	for i := range 40 {
		k := fmt.Sprint("k", i)
		fences[k] = c.want(c.begin(k, "a", 0), shared.Lead).Fence
	}
	if err := c.f.Store.ForgetAll(c.ctx, c.space); err != nil {
		t.Fatal(err)
	}
	for k, f := range fences {
		after := c.begin(k, "b", 0)
		if d := c.finish(k, f, loaded("old"), 0); !d.Superseded || d.Lost {
			t.Fatalf("%s: finish %+v", k, d)
		}
		c.want(after, shared.Follow)
		c.want(c.begin(k, "b", after.After), shared.Lead)
	}
}

func failingKey(t *testing.T, c *client) { // cases/flight 10
	const hold = time.Minute
	fail := shared.Result{Status: shared.Failed, Class: flight.Denied, Message: "no"}
	a := c.want(c.begin("k", "a", 0), shared.Lead)
	b := c.want(c.begin("k", "b", 0), shared.Follow)
	c.finish("k", a.Fence, fail, hold)
	if d := c.want(c.begin("k", "b", b.After), shared.Done); d.Result.Status != shared.Failed || d.Result.Message != "no" || d.Result.Class != flight.Denied {
		t.Errorf("follower got %+v", d.Result)
	}
	h := c.want(c.begin("k", "c", 0), shared.Held)
	if h.Left <= 0 || h.Left > hold || h.Failures != 1 || h.Result.Message != "no" || h.Result.Class != flight.Denied {
		t.Errorf("held %+v", h)
	}
	for i := range 3 {
		n := c.want(c.begin("k2", "c", 0), shared.Lead)
		if n.Failures != i {
			t.Errorf("%d failures, want %d", n.Failures, i)
		}
		c.finish("k2", n.Fence, fail, time.Millisecond)
		c.f.Advance(moment)
	}
	c.forget("k")
	n := c.want(c.begin("k", "c", 0), shared.Lead)
	if n.Failures != 0 {
		t.Errorf("%d failures after Forget", n.Failures)
	}
	c.finish("k", n.Fence, fail, 0) // not to be remembered
	c.want(c.begin("k", "d", 0), shared.Lead)
}

func notShareable(t *testing.T, c *client) { // cases/flight 16
	a := c.want(c.begin("k", "a", 0), shared.Lead)
	b := c.want(c.begin("k", "b", 0), shared.Follow)
	c.finish("k", a.Fence, shared.Result{Status: shared.Unsharable}, time.Minute)
	if d := c.want(c.begin("k", "b", b.After), shared.Done); d.Result.Status != shared.Unsharable {
		t.Errorf("follower got %+v", d.Result)
	}
	c.want(c.begin("k", "c", 0), shared.Alone)
	c.forget("k")
	c.want(c.begin("k", "c", 0), shared.Lead)
}

func maxAge(t *testing.T, c *client) {
	ask := func(age time.Duration) shared.State {
		st, err := c.f.Store.Begin(c.ctx, shared.Begin{Space: c.space, Key: "k", Token: "q" + age.String(), Lease: lease, MaxAge: age})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	a := c.want(c.begin("k", "a", 0), shared.Lead)
	c.finish("k", a.Fence, loaded("v"), 0)
	if d := c.want(ask(lease), shared.Done); string(d.Result.Value) != "v" {
		t.Errorf("got %+v", d)
	}
	c.forget("k") // a value that was forgotten is not young
	c.want(ask(lease-1), shared.Lead)
}

func released(t *testing.T, c *client) {
	a := c.want(c.begin("k", "a", 0), shared.Lead)
	b := c.want(c.begin("k", "b", 0), shared.Follow)
	c.finish("k", a.Fence, shared.Result{Status: shared.Released}, 0)
	c.want(c.begin("k", "b", b.After), shared.Lead)
}

func events(t *testing.T, c *client) {
	ctx, cancel := context.WithCancel(c.ctx)
	got := make(chan shared.Event, 100)
	ended := make(chan error, 1)
	go func() { ended <- c.f.Store.Watch(ctx, c.space, func(e shared.Event) { got <- e }) }()
	next := func(want shared.Event) {
		t.Helper()
		select {
		case e := <-got:
			if e != want {
				t.Fatalf("event %+v, want %+v", e, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no event, want %+v", want)
		}
	}
	next(shared.Event{What: shared.Missed})
	a := c.want(c.begin("k", "a", 0), shared.Lead)
	c.finish("k", a.Fence, loaded("v"), 0) // nobody follows: nobody is woken
	a = c.want(c.begin("k:ö\x00\xff", "a", 0), shared.Lead)
	c.want(c.begin("k:ö\x00\xff", "b", 0), shared.Follow)
	c.finish("k:ö\x00\xff", a.Fence, loaded("v"), 0)
	next(shared.Event{What: shared.Ended, Key: "k:ö\x00\xff"})
	c.forget("k")
	next(shared.Event{What: shared.Forgotten, Key: "k"})
	if err := c.f.Store.ForgetAll(c.ctx, c.space); err != nil {
		t.Fatal(err)
	}
	next(shared.Event{What: shared.AllGone})
	if err := c.f.Store.Forget(c.ctx, "elsewhere", "k"); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Watch: %v", err)
	}
	if len(got) > 0 {
		t.Errorf("more events: %+v", <-got)
	}
}

func bytesAreKept(t *testing.T, c *client) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	key := string(all)
	a := c.want(c.begin(key, "a", 0), shared.Lead)
	big := []byte(strings.Repeat(string(all), 1000))
	c.finish(key, a.Fence, shared.Result{Status: shared.Loaded, Value: big}, 0)
	if d := c.want(c.begin(key, "b", a.Fence), shared.Done); !reflect.DeepEqual(d.Result.Value, big) {
		t.Errorf("%d bytes came back, not the same", len(d.Result.Value))
	}
}

func fencesGrow(t *testing.T, c *client) {
	var last uint64
	for i := range 100 {
		f := c.want(c.begin("k", fmt.Sprint(i), 0), shared.Lead).Fence
		if f <= last {
			t.Fatalf("fence %d after %d", f, last)
		}
		last = f
		c.finish("k", f, loaded("v"), 0)
	}
}

// asTheMachine sends random commands and compares every answer with the machine's at the time that the store reports.
func asTheMachine(t *testing.T, c *client) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	var m shared.Space
	var afters, fences []uint64
	pick := func(of []uint64) uint64 {
		if len(of) == 0 || rnd.IntN(4) == 0 {
			return 0
		}
		return of[len(of)-1-rnd.IntN(min(4, len(of)))]
	}
	for i := range 600 {
		key := fmt.Sprint("k", rnd.IntN(3))
		var got, want any
		var err error
		switch rnd.IntN(12) {
		case 0, 1, 2, 3, 4:
			b := shared.Begin{Space: c.space, Key: key, Token: fmt.Sprint("t", rnd.IntN(4)), Lease: time.Duration(1+rnd.IntN(20)) * time.Millisecond, After: pick(afters)}
			if rnd.IntN(3) == 0 {
				b.MaxAge = time.Duration(rnd.IntN(10)) * time.Millisecond
			}
			var st shared.State
			if st, err = c.f.Store.Begin(c.ctx, b); err == nil {
				got, want = st, m.Begin(b, st.At.UnixMicro())
				afters, fences = append(afters, st.After), append(fences, st.Fence)
			}
		case 5:
			x := shared.Renew{Space: c.space, Key: key, Fence: pick(fences), Lease: 10 * time.Millisecond}
			var r shared.Renewed
			if r, err = c.f.Store.Renew(c.ctx, x); err == nil {
				got, want = r, m.Renew(x, r.At.UnixMicro())
			}
		case 6, 7, 8, 9:
			f := shared.Finish{Space: c.space, Key: key, Fence: pick(fences), Keep: time.Duration(rnd.IntN(30)) * time.Millisecond, Hold: time.Duration(rnd.IntN(3)) * 4 * time.Millisecond}
			switch f.Result.Status = shared.Status(1 + rnd.IntN(4)); f.Result.Status {
			case shared.Loaded:
				f.Result.Value = []byte(fmt.Sprint("v", i))
			case shared.Failed:
				f.Result.Class, f.Result.Message = flight.Class(rnd.IntN(6)), fmt.Sprint("m", i)
			}
			var d shared.Finished
			if d, err = c.f.Store.Finish(c.ctx, f); err == nil {
				w, _ := m.Finish(f, d.At.UnixMicro())
				got, want = d, w
			}
		default:
			c.f.Advance(time.Duration(rnd.IntN(8)) * time.Millisecond)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d, command %d:\ngot  %+v\nwant %+v", seed, i, got, want)
		}
	}
}
