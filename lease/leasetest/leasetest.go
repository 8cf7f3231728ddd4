// Package leasetest holds engines to the contract of lease.Store. Every engine runs the same suite; what an engine can do
// beyond it, or what its test can do to it, it says in Fixture.
package leasetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ushergo/usher/lease"
)

// Fixture is a store to be tested, in a space of its own.
type Fixture struct {
	Store lease.Store
	// Peer is another store on the same space, as another process has it. Nil: the same one.
	Peer lease.Store
	// Restart stops what keeps the state, starts it again, and returns the store on it. Nil: nothing to restart.
	Restart func(t *testing.T) lease.Store
	// Forget makes the store lose everything, as a failover may. Nil: it never does. Only stores that have a clock can go
	// on above what they lost.
	Forget func(t *testing.T)
	// Hurt begins to throttle, delay, and lose replies, until stop. Nil: calls are lost on the way only.
	Hurt func(t *testing.T) (stop func())
	// Pace is by how much leases, beats and looks of workers are longer than for a store that does a thousand calls a
	// second on a busy machine. Default 1.
	Pace int
}

// TestStore runs the suite. open is called for each test.
func TestStore(t *testing.T, open func(t *testing.T) Fixture) {
	for _, tt := range []struct {
		name string
		test func(f *fixture)
	}{
		{"Workers", testWorkers},
		{"LateBeat", testLateBeat},
		{"Resources", testResources},
		{"Pages", testPages},
		{"Take", testTake},
		{"Cursors", testCursors},
		{"Fences", testFences},
		{"Indexes", testIndexes},
		{"Bad", testBad},
		{"Watch", testWatch},
		{"Replay", testReplay},
		{"RowHistories", testRowHistories},
		{"WorkerHistories", testWorkerHistories},
		{"Fleet", testFleet},
		{"Handover", testHandover},
		{"Locks", testLocks},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &fixture{T: t, Fixture: open(t)}
			if f.Peer == nil {
				f.Peer = f.Store
			}
			tt.test(f)
		})
	}
}

type fixture struct {
	*testing.T
	Fixture
}

func (f *fixture) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// eventually waits until ok says so.
func (f *fixture) eventually(what string, ok func() bool) {
	f.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			f.Fatalf("not within two minutes: %s", what)
		}
		time.Sleep(5 * time.Millisecond) // between two questions, not instead of one
	}
}

func (f *fixture) join(name string) lease.Owner {
	f.Helper()
	j, err := f.Store.Join(f.Context(), lease.Join{Worker: name, Token: "token-" + name, Cap: 7})
	f.ok(err)
	if !j.OK || j.Owner.Worker != name || j.Owner.Generation == 0 {
		f.Fatalf("join %s: %+v", name, j)
	}
	return j.Owner
}

func (f *fixture) put(p lease.Put) lease.Row {
	f.Helper()
	r, err := f.Store.Put(f.Context(), p)
	f.ok(err)
	return r
}

func (f *fixture) start(id string) lease.Row {
	f.Helper()
	return f.put(lease.Put{ID: id, Desired: lease.Started})
}

// get reads one row; nil: there is none.
func (f *fixture) get(id string) *lease.Row {
	f.Helper()
	rows, err := f.Peer.Get(f.Context(), []string{id})
	f.ok(err)
	if len(rows) == 0 {
		return nil
	}
	return &rows[0]
}

func (f *fixture) take(id string, from lease.Owner, fence uint64, to lease.Owner) lease.Taken {
	f.Helper()
	t, err := f.Store.Take(f.Context(), lease.Take{ID: id, From: from, Fence: fence, To: to})
	f.ok(err)
	return t
}

func (f *fixture) mustTake(r lease.Row, to lease.Owner) lease.Row {
	f.Helper()
	t := f.take(r.ID, r.Owner, r.Fence, to)
	if !t.OK || t.Row.Owner != to || t.Row.Fence <= r.Fence {
		f.Fatalf("take %+v: %+v", r, t)
	}
	return t.Row
}

func (f *fixture) says(want bool, what string, ok bool, err error) {
	f.Helper()
	f.ok(err)
	if ok != want {
		f.Fatalf("%s: %v, want %v", what, ok, want)
	}
}

func testWorkers(f *fixture) {
	ctx := f.Context()
	a := f.join("a")
	if again := f.join("a"); again != a {
		f.Fatalf("the same token gave %v, then %v", a, again)
	}
	j, err := f.Peer.Join(ctx, lease.Join{Worker: "a", Token: "another"})
	f.ok(err)
	if j.OK || j.Owner != a {
		f.Fatalf("a name that lives was joined: %+v", j)
	}
	b := f.join("b")
	ok, err := f.Store.Beat(ctx, lease.Beat{Owner: a, Beat: 3, Held: 5, Leaving: true, Info: "open=5,lag_ms=-1.5"})
	f.says(true, "beat", ok, err)
	rows, err := f.Peer.Workers(ctx)
	f.ok(err)
	slices.SortFunc(rows, func(x, y lease.WorkerRow) int { return int(x.Worker[0]) - int(y.Worker[0]) })
	if want := (lease.WorkerRow{Owner: a, Beat: 3, Held: 5, Cap: 7, Leaving: true, Info: "open=5,lag_ms=-1.5"}); len(rows) != 2 || rows[0] != want || rows[1].Owner != b {
		f.Fatalf("workers: %+v", rows)
	}
	ok, err = f.Peer.Mark(ctx, lease.Mark{Owner: a, Beat: 2})
	f.says(false, "mark by an old beat", ok, err)
	ok, err = f.Peer.Mark(ctx, lease.Mark{Owner: a, Beat: 3})
	f.says(true, "mark", ok, err)
	ok, err = f.Peer.Mark(ctx, lease.Mark{Owner: a, Beat: 3})
	f.says(true, "mark again", ok, err)
	ok, err = f.Store.Beat(ctx, lease.Beat{Owner: a, Beat: 4})
	f.says(false, "a dead one's beat", ok, err)
	f.ok(f.Store.Leave(ctx, b))
	f.ok(f.Store.Leave(ctx, b))
	ok, err = f.Store.Beat(ctx, lease.Beat{Owner: b, Beat: 9})
	f.says(false, "beat after leaving", ok, err)
	a2 := f.join("a")
	if a2.Generation <= a.Generation {
		f.Fatalf("generation %d after %d", a2.Generation, a.Generation)
	}
	f.ok(f.Store.Forget(ctx, a)) // an old generation: nothing happens
	f.ok(f.Store.Forget(ctx, a2))
	ok, err = f.Store.Beat(ctx, lease.Beat{Owner: a2, Beat: 1})
	f.says(true, "beat of one that lives, after a Forget", ok, err)
	f.ok(f.Store.Forget(ctx, b))
	rows, err = f.Peer.Workers(ctx)
	f.ok(err)
	if len(rows) != 1 || rows[0].Owner != a2 {
		f.Fatalf("workers: %+v", rows)
	}
	ok, err = f.Store.Beat(ctx, lease.Beat{Owner: b, Beat: 10})
	f.says(false, "a forgotten one's beat", ok, err)
	ok, err = f.Store.Mark(ctx, lease.Mark{Owner: b, Beat: 1})
	f.says(true, "mark of a forgotten one", ok, err)
	if b2 := f.join("b"); b2.Generation == b.Generation {
		f.Fatal("a generation came again after its row was removed")
	}
}

// testLateBeat: a beat that was under way while others overtook it must not bring its number back, for a standing beat is what
// death is judged by.
func testLateBeat(f *fixture) {
	ctx := f.Context()
	a := f.join("a")
	for _, n := range []uint64{5, 4, 5, 1} {
		ok, err := f.Store.Beat(ctx, lease.Beat{Owner: a, Beat: n})
		f.says(true, "beat", ok, err)
	}
	ok, err := f.Store.Mark(ctx, lease.Mark{Owner: a, Beat: 4})
	f.says(false, "mark by a late beat", ok, err)
	rows, err := f.Store.Workers(ctx)
	f.ok(err)
	if rows[0].Beat != 5 || rows[0].Dead {
		f.Fatalf("%+v", rows)
	}
}

func testResources(f *fixture) {
	ctx := f.Context()
	p := lease.Put{ID: "a/b:c@d=e+f,g.h-i_j", Desired: lease.Stopped, URL: "ws://x/ü", Spec: []byte{0, 255, '{'}, Cursor: "c1"}
	r := f.put(p)
	if r.ID != p.ID || r.Desired != p.Desired || r.URL != p.URL || string(r.Spec) != string(p.Spec) || r.Cursor != "c1" || r.Rev == 0 || r.Owner != (lease.Owner{}) {
		f.Fatalf("%+v", r)
	}
	if again := f.put(p); again.Rev != r.Rev {
		f.Fatal("a Put that changes nothing raised rev")
	}
	p.IfAbsent, p.Desired, p.Cursor = true, lease.Started, "c2"
	if kept := f.put(p); kept.Desired != lease.Stopped || kept.Rev != r.Rev || kept.Cursor != "c1" {
		f.Fatalf("IfAbsent changed %+v", kept)
	}
	p.IfAbsent, p.URL, p.Spec = false, "", nil
	changed := f.put(p)
	if changed.Desired != lease.Started || changed.URL != "" || len(changed.Spec) != 0 || changed.Rev <= r.Rev || changed.Cursor != "c1" {
		f.Fatalf("%+v", changed)
	}
	if got := f.get(p.ID); got == nil || got.Rev != changed.Rev || got.Desired != lease.Started {
		f.Fatalf("%+v", got)
	}
	ok, err := f.Peer.Delete(ctx, p.ID)
	f.says(true, "delete", ok, err)
	ok, err = f.Store.Delete(ctx, p.ID)
	f.says(false, "delete again", ok, err)
	if f.get(p.ID) != nil {
		f.Fatal("it is still there")
	}
	rows, err := f.Store.Get(ctx, []string{"none", p.ID})
	if err != nil || len(rows) != 0 {
		f.Fatalf("%v %v", rows, err)
	}
}

func testPages(f *fixture) {
	want := map[string]bool{}
	for i := range 23 {
		id := fmt.Sprint("r", i)
		want[id] = true
		f.start(id)
	}
	for _, limit := range []int{1, 7, 23, 24, lease.MaxList} {
		seen, pages := map[string]bool{}, 0
		for after := ""; ; pages++ {
			rows, next, err := f.Peer.List(f.Context(), after, limit)
			f.ok(err)
			if len(rows) > limit || pages > 30 {
				f.Fatalf("page %d of limit %d: %d rows", pages, limit, len(rows))
			}
			for _, r := range rows {
				if seen[r.ID] || !want[r.ID] {
					f.Fatalf("%s twice, or never made", r.ID)
				}
				seen[r.ID] = true
			}
			if after = next; next == "" {
				break
			}
		}
		if len(seen) != len(want) {
			f.Fatalf("limit %d: %d of %d", limit, len(seen), len(want))
		}
	}
	ids := []string{"r1", "r1", "r2", "no"} // the same twice is no fault
	rows, err := f.Store.Get(f.Context(), ids)
	f.ok(err)
	if n := len(slices.CompactFunc(rows, func(a, b lease.Row) bool { return a.ID == b.ID })); n != 2 {
		f.Fatalf("%+v", rows)
	}
}

func testBad(f *fixture) {
	ctx := f.Context()
	o := lease.Owner{Worker: "w", Generation: 1}
	many := make([]string, lease.MaxBatch+1)
	for i := range many {
		many[i] = "r"
	}
	for name, do := range map[string]func() error{
		"id":      func() error { _, err := f.Store.Put(ctx, lease.Put{ID: "a#b", Desired: lease.Started}); return err },
		"empty":   func() error { _, err := f.Store.Delete(ctx, ""); return err },
		"desired": func() error { _, err := f.Store.Put(ctx, lease.Put{ID: "a", Desired: "maybe"}); return err },
		"spec": func() error {
			_, err := f.Store.Put(ctx, lease.Put{ID: "a", Desired: lease.Started, Spec: make([]byte, lease.MaxSpec+1)})
			return err
		},
		"worker":     func() error { _, err := f.Store.Join(ctx, lease.Join{Worker: "a b", Token: "t"}); return err },
		"token":      func() error { _, err := f.Store.Join(ctx, lease.Join{Worker: "a"}); return err },
		"beat":       func() error { _, err := f.Store.Beat(ctx, lease.Beat{Owner: o}); return err },
		"cap":        func() error { _, err := f.Store.Join(ctx, lease.Join{Worker: "a", Token: "t", Cap: -1}); return err },
		"held":       func() error { _, err := f.Store.Beat(ctx, lease.Beat{Owner: o, Beat: 1, Held: -1}); return err },
		"generation": func() error { return f.Store.Leave(ctx, lease.Owner{Worker: "w"}) },
		"ids":        func() error { _, err := f.Store.Get(ctx, many); return err },
		"limit":      func() error { _, _, err := f.Store.List(ctx, "", 0); return err },
		"to":         func() error { _, err := f.Store.Take(ctx, lease.Take{ID: "a"}); return err },
		"cursor": func() error {
			_, err := f.Store.Flush(ctx, []lease.Cursor{{ID: "a", Owner: o, Cursor: "\xff"}})
			return err
		},
	} {
		if err := do(); !errors.Is(err, lease.ErrBadRequest) {
			f.Errorf("%s: %v", name, err)
		}
	}
}

func testWatch(f *fixture) {
	w, ok := f.Store.(lease.Watcher)
	if !ok {
		f.Skip("this engine does not tell")
	}
	woken := make(chan struct{}, 1000)
	f.ok(w.Watch(f.Context(), func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	}))
	o := f.join("w")
	var r lease.Row
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"put", func() { r = f.start("x") }},
		{"release", func() {
			r = f.mustTake(r, o)
			_, err := f.Peer.Release(f.Context(), lease.Release{ID: "x", Owner: o, Fence: r.Fence})
			f.ok(err)
		}},
		{"delete", func() { _, err := f.Peer.Delete(f.Context(), "x"); f.ok(err) }},
		{"leave", func() { f.ok(f.Peer.Leave(f.Context(), o)) }},
	} {
		for len(woken) > 0 {
			<-woken
		}
		step.do()
		f.eventually(step.what+" is told", func() bool { return len(woken) > 0 })
	}
}
