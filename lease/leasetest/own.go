package leasetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/ushergo/usher/lease"
)

func testTake(f *fixture) {
	ctx := f.Context()
	a, b := f.join("a"), f.join("b")
	if t := f.take("none", lease.Owner{}, 0, a); t.OK || t.Row.ID != "" {
		f.Fatalf("took what is not there: %+v", t)
	}
	r := f.put(lease.Put{ID: "x", Desired: lease.Stopped})
	if t := f.take("x", lease.Owner{}, r.Fence, a); t.OK || t.Row.Desired != lease.Stopped {
		f.Fatalf("took what is stopped: %+v", t)
	}
	r = f.start("x")
	mine := f.mustTake(r, a)
	if again := f.take("x", r.Owner, r.Fence, a); !again.OK || again.Row.Fence != mine.Fence { // cases/lease 9
		f.Fatalf("a take repeated: %+v, first %+v", again, mine)
	}
	if t := f.take("x", r.Owner, r.Fence, b); t.OK || t.Row.Owner != a {
		f.Fatalf("two owners: %+v", t)
	}
	if t := f.take("x", a, mine.Fence+1, b); t.OK {
		f.Fatal("took by a fence that was never drawn")
	}
	if changed := f.put(lease.Put{ID: "x", Desired: lease.Started, Spec: []byte("new")}); changed.Owner != a || changed.Fence != mine.Fence {
		f.Fatalf("a Put changed the owner: %+v", changed)
	}
	ok, err := f.Store.Release(ctx, lease.Release{ID: "x", Owner: b, Fence: mine.Fence})
	f.says(false, "release by another", ok, err)
	ok, err = f.Store.Release(ctx, lease.Release{ID: "x", Owner: a, Fence: mine.Fence - 1})
	f.says(false, "release by an old fence", ok, err)
	ok, err = f.Store.Release(ctx, lease.Release{ID: "x", Owner: a, Fence: mine.Fence})
	f.says(true, "release", ok, err)
	got := f.get("x")
	if got.Owner != (lease.Owner{}) || got.Fence != mine.Fence || got.Desired != lease.Started {
		f.Fatalf("after release: %+v", got)
	}
	r = f.mustTake(*got, b)
	r = f.mustTake(r, a) // b is dead, says the caller
	ok, err = f.Store.Release(ctx, lease.Release{ID: "x", Owner: a, Fence: r.Fence, Stop: true})
	f.says(true, "finish", ok, err)
	if got := f.get("x"); got.Desired != lease.Stopped || got.Owner != (lease.Owner{}) || got.Rev <= r.Rev {
		f.Fatalf("after finish: %+v", got)
	}
}

func testCursors(f *fixture) {
	a, b := f.join("a"), f.join("b")
	var cs []lease.Cursor
	var rows []lease.Row
	for i := range 5 {
		r := f.mustTake(f.start(fmt.Sprint("r", i)), a)
		rows = append(rows, r)
		cs = append(cs, lease.Cursor{ID: r.ID, Owner: a, Fence: r.Fence, Cursor: fmt.Sprint("at ", i)})
	}
	f.mustTake(rows[1], b)     // a is a zombie there (cases/lease 8, 13)
	cs[2].Fence--              // and here of an earlier term
	cs[3].ID = "never"         // and this was deleted
	cs[4].Cursor = "ü \" \\ ☃" // and text is text
	ok, err := f.Store.Flush(f.Context(), cs)
	f.ok(err)
	if want := []bool{true, false, false, false, true}; !slices.Equal(ok, want) {
		f.Fatalf("flushed %v, want %v", ok, want)
	}
	for i, want := range []string{"at 0", "", "", "", cs[4].Cursor} {
		if got := f.get(fmt.Sprint("r", i)); got.Cursor != want {
			f.Errorf("r%d: cursor %q, want %q", i, got.Cursor, want)
		}
	}
	if _, err := f.Store.Flush(f.Context(), nil); err != nil {
		f.Error(err)
	}
}

// testFences: cases/lease 1.
func testFences(f *fixture) {
	ctx := f.Context()
	a := f.join("a")
	last, deleted := map[string]uint64{}, uint64(0)
	grows := func(what string, r lease.Row) {
		f.Helper()
		if r.Fence <= max(last[r.ID], deleted) {
			f.Fatalf("%s: fence %d after %d, %d of those deleted", what, r.Fence, last[r.ID], deleted)
		}
		last[r.ID] = r.Fence
	}
	remove := func(id string) {
		f.Helper()
		ok, err := f.Store.Delete(ctx, id)
		f.says(true, "delete", ok, err)
		deleted = max(deleted, last[id])
	}
	for range 3 {
		r := f.mustTake(f.start("x"), a)
		grows("take", r)
		ok, err := f.Store.Release(ctx, lease.Release{ID: "x", Owner: a, Fence: r.Fence})
		f.says(true, "release", ok, err)
		r = f.mustTake(*f.get("x"), a)
		grows("take after release", r)
		remove("x")
	}
	other := f.start("never-there-before")
	grows("another one's, after a deletion", f.mustTake(other, a))
	if f.Restart != nil {
		remove(other.ID)
		r := f.mustTake(f.start("y"), a)
		grows("take", r)
		f.Store = f.Restart(f.T)
		f.Peer = f.Store
		a = f.join("a2")
		grows("take after a restart", f.mustTake(*f.get("y"), a))
		grows("take after deletion and restart", f.mustTake(f.start("x"), a))
	}
	if f.Forget != nil {
		f.Forget(f.T)
		deleted = 0 // it is known to nobody any more; what was taken is
		grows("take after the store lost everything", f.mustTake(f.start("x"), f.join("a3")))
	}
}

// testIndexes: Owned and Orphans, which may be late.
func testIndexes(f *fixture) {
	ctx := f.Context()
	var owners []lease.Owner
	for _, name := range []string{"w", "w1", "w-1", "W", "w.", "x:y"} { // neighbours in every order
		owners = append(owners, f.join(name))
	}
	want := map[lease.Owner][]string{}
	for i := range 40 {
		id := fmt.Sprintf("r%02d", i)
		r := f.start(id)
		switch {
		case i%8 == 0:
			want[lease.Owner{}] = append(want[lease.Owner{}], id)
		case i%8 == 7: // stopped, so in no list
			f.mustTake(r, owners[0])
			f.put(lease.Put{ID: id, Desired: lease.Stopped})
		default:
			o := owners[i%len(owners)]
			f.mustTake(r, o)
			want[o] = append(want[o], id)
		}
	}
	ids := func(bs []lease.Brief) []string {
		list := []string{}
		for _, b := range bs {
			list = append(list, b.ID)
		}
		slices.Sort(list)
		return list
	}
	for _, o := range owners {
		f.eventually(fmt.Sprintf("%v is said to own %v", o, want[o]), func() bool {
			bs, err := f.Peer.Owned(ctx, o)
			f.ok(err)
			return slices.Equal(ids(bs), want[o])
		})
	}
	for n := range 1 << len(owners) {
		var living []lease.Owner
		orphans := slices.Clone(want[lease.Owner{}])
		for i, o := range owners {
			if n&(1<<i) != 0 {
				living = append(living, o)
			} else {
				orphans = append(orphans, want[o]...)
			}
		}
		slices.Sort(orphans)
		f.eventually(fmt.Sprintf("with %v living, %v are orphans", living, orphans), func() bool {
			bs, err := f.Peer.Orphans(ctx, living, 1000)
			f.ok(err)
			return slices.Equal(ids(bs), orphans)
		})
	}
	bs, err := f.Peer.Orphans(ctx, nil, 3)
	f.ok(err)
	if len(bs) != 3 {
		f.Fatalf("%d orphans, the limit was 3", len(bs))
	}
	r := f.get("r01")
	bs, err = f.Peer.Owned(ctx, r.Owner)
	f.ok(err)
	if i := slices.IndexFunc(bs, func(b lease.Brief) bool { return b.ID == "r01" }); i < 0 || bs[i] != r.Brief() {
		f.Fatalf("%+v, want %+v", bs, r.Brief())
	}
}

// testReplay gives the machine what the store was given, and compares all answers. A machine's time is what the store drew.
func testReplay(f *fixture) {
	ctx := f.Context()
	m := lease.NewMachine(0)
	rng := rand.New(rand.NewPCG(1, 2))
	var owners []lease.Owner
	var fences []uint64
	any := func() lease.Owner {
		if len(owners) == 0 || rng.IntN(4) == 0 {
			return lease.Owner{}
		}
		return owners[rng.IntN(len(owners))]
	}
	some := func() lease.Owner {
		if o := any(); o != (lease.Owner{}) {
			return o
		}
		return lease.Owner{Worker: "stranger", Generation: 5}
	}
	fence := func(id string) uint64 {
		if rng.IntN(3) > 0 {
			for _, r := range m.Get([]string{id}) {
				return r.Fence
			}
		}
		return fences[rng.IntN(len(fences))]
	}
	fences = append(fences, 0)
	for n := range 600 {
		id := fmt.Sprint("r", rng.IntN(4))
		var got, want any2
		var err error
		what := ""
		switch op := rng.IntN(11); op {
		case 0:
			j := lease.Join{Worker: string('a' + rune(rng.IntN(3))), Token: fmt.Sprint(rng.IntN(2)), Cap: rng.IntN(9)}
			var x lease.Joined
			x, err = f.Store.Join(ctx, j)
			what, got, want = fmt.Sprintf("%+v", j), any2{x, nil}, any2{m.Join(j, int64(x.Owner.Generation)), nil}
			owners = append(owners, x.Owner)
		case 1:
			b := lease.Beat{Owner: some(), Beat: uint64(1 + rng.IntN(6)), Held: rng.IntN(9), Leaving: rng.IntN(2) == 0}
			var x bool
			x, err = f.Store.Beat(ctx, b)
			what, got, want = fmt.Sprintf("%+v", b), any2{x, nil}, any2{m.Beat(b), nil}
		case 2:
			k := lease.Mark{Owner: some(), Beat: uint64(rng.IntN(6))}
			var x bool
			x, err = f.Store.Mark(ctx, k)
			what, got, want = fmt.Sprintf("%+v", k), any2{x, nil}, any2{m.Mark(k), nil}
		case 3:
			o := some()
			switch what = fmt.Sprint("leave or forget ", o); rng.IntN(3) {
			case 0:
				err = f.Store.Leave(ctx, o)
				m.Leave(o)
			case 1:
				err = f.Store.Forget(ctx, o)
				m.Forget(o)
			}
		case 4, 5:
			p := lease.Put{ID: id, Desired: lease.Started, URL: fmt.Sprint(rng.IntN(2)), Cursor: fmt.Sprint("c", n), IfAbsent: rng.IntN(3) == 0}
			if rng.IntN(4) == 0 {
				p.Desired = lease.Stopped
			}
			var x lease.Row
			x, err = f.Store.Put(ctx, p)
			what, got, want = fmt.Sprintf("%+v", p), rowOf(x), rowOf(m.Put(p))
		case 6:
			if rng.IntN(3) > 0 {
				continue
			}
			var x bool
			x, err = f.Store.Delete(ctx, id)
			what, got, want = "delete "+id, any2{x, nil}, any2{m.Delete(id), nil}
		case 7, 8:
			k := lease.Take{ID: id, From: any(), Fence: fence(id), To: some()}
			for _, r := range m.Get([]string{id}) {
				if rng.IntN(3) > 0 {
					k.From = r.Owner
				}
			}
			var x lease.Taken
			x, err = f.Store.Take(ctx, k)
			y := m.Take(k, int64(x.Row.Fence))
			what, got, want = fmt.Sprintf("%+v", k), any2{x.OK, rowOf(x.Row).a}, any2{y.OK, rowOf(y.Row).a}
			if x.OK {
				fences = append(fences, x.Row.Fence)
			}
		case 9:
			l := lease.Release{ID: id, Owner: some(), Fence: fence(id), Stop: rng.IntN(4) == 0}
			for _, r := range m.Get([]string{id}) {
				if r.Owner != (lease.Owner{}) && rng.IntN(2) > 0 {
					l.Owner = r.Owner
				}
				l.Stop = l.Stop && r.Desired == lease.Started
			}
			var x bool
			x, err = f.Store.Release(ctx, l)
			what, got, want = fmt.Sprintf("%+v", l), any2{x, nil}, any2{m.Release(l), nil}
		case 10:
			c := lease.Cursor{ID: id, Owner: some(), Fence: fence(id), Cursor: fmt.Sprint("f", n)}
			var x []bool
			x, err = f.Store.Flush(ctx, []lease.Cursor{c})
			what, got, want = fmt.Sprintf("%+v", c), any2{fmt.Sprint(x), nil}, any2{fmt.Sprint([]bool{m.Flush(c)}), nil}
		}
		if err != nil {
			f.Fatalf("step %d, %s: %v", n, what, err)
		}
		if got != want {
			f.Fatalf("step %d, %s:\n got %+v\nwant %+v", n, what, got, want)
		}
		if n%20 == 0 {
			f.same(m)
		}
	}
	f.same(m)
}

// any2 is two comparable values.
type any2 struct{ a, b any }

func rowOf(r lease.Row) any2 { return any2{fmt.Sprintf("%+v", r), nil} }

// same compares all rows.
func (f *fixture) same(m *lease.Machine) {
	f.Helper()
	text := func(rows []lease.Row, ws []lease.WorkerRow) string {
		var lines []string
		for _, r := range rows {
			lines = append(lines, rowOf(r).a.(string))
		}
		for _, w := range ws {
			lines = append(lines, fmt.Sprintf("%+v", w))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	ids := []string{"r0", "r1", "r2", "r3"}
	rows, err := f.Peer.Get(f.Context(), ids)
	f.ok(err)
	ws, err := f.Peer.Workers(f.Context())
	f.ok(err)
	if got, want := text(rows, ws), text(m.Get(ids), m.Workers()); got != want {
		f.Fatalf("got\n%s\nwant\n%s", got, want)
	}
}
