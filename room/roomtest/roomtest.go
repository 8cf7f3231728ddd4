// Package roomtest holds engines to the contract of room.Store. Every engine runs the same
// suite; what an engine cannot do, it says in Abilities.
package roomtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/room"
)

// Abilities say what an engine does beyond the contract.
type Abilities struct {
	// Sync: a follower has seen an event before the command that made it is answered.
	Sync bool
	// Restart closes a store and opens another on the same state, as after a stop. Nil: none to test.
	Restart func(t *testing.T, s room.Store) room.Store
}

// Run runs the suite. open returns a fresh, empty store; the test's cleanup closes it.
func Run(t *testing.T, open func(t *testing.T) room.Store, can Abilities) {
	tests := []struct {
		name string
		test func(t *testing.T, s room.Store, can Abilities)
	}{
		{"NotFound", testNotFound},
		{"Life", testLife},
		{"Idempotence", testIdempotence},
		{"Revisions", testRevisions},
		{"File", testFile},
		{"Events", testEvents},
		{"Follow", testFollow},
		{"Delete", testDelete},
		{"Time", testTime},
		{"Bulk", testBulk},
		{"Storm", testStorm},
		{"Linearizable", testLinearizable},
		{"Restart", testRestart},
		{"Cancelled", testCancelled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "Restart" && can.Restart == nil {
				t.Skip("this engine has nothing to restart")
			}
			tt.test(t, open(t), can)
		})
	}
}

// Config is a small room for tests: sessions and waiters live long.
func Config(id string, active int64) room.Config {
	c := room.DefaultConfig(id)
	c.Capacity.Active = active
	c.Session.Claim, c.Session.Idle, c.Session.Max = 0, room.Duration(time.Hour), room.Duration(2*time.Hour)
	c.Queue.Grace = room.Duration(time.Hour)
	return c
}

// seed is for rooms with a scheduled opening.
func seed() []byte { return slices.Repeat([]byte{7}, 32) }

// fixture is a store with one room.
type fixture struct {
	*testing.T
	s    room.Store
	room string
}

func newFixture(t *testing.T, s room.Store, c room.Config) *fixture {
	f := &fixture{t, s, c.ID}
	f.must(&room.Command{Op: room.OpConfigure, Config: &c, Seed: seed()})
	return f
}

func (f *fixture) do(cmd *room.Command) (room.Result, error) {
	return f.s.Do(f.Context(), f.room, cmd)
}

// must obeys a command that has to succeed.
func (f *fixture) must(cmd *room.Command) room.Result {
	f.Helper()
	r, err := f.do(cmd)
	if err != nil || r.Err != nil {
		f.Fatalf("%+v: %v, %v", cmd, r.Err, err)
	}
	return r
}

// want obeys a command that has to be answered with err.
func (f *fixture) want(err error, cmd *room.Command) room.Result {
	f.Helper()
	r, got := f.do(cmd)
	if got != nil || !errors.Is(r.Err, err) {
		f.Fatalf("%+v: %v, %v; want %v", cmd, r.Err, got, err)
	}
	return r
}

func id(n int) (id room.ID) {
	binary.BigEndian.PutUint64(id[:], uint64(n)+1)
	return id
}

func enter(n int) *room.Command {
	return &room.Command{Op: room.OpEnter, NewID: id(n), Request: [16]byte(id(n))}
}

// log reads a room's whole log.
func (f *fixture) log() (events []room.Event) {
	f.Helper()
	for after := (room.Cursor{}); ; {
		some, next, err := f.s.Events(f.Context(), f.room, after, 777)
		if err != nil {
			f.Fatal(err)
		}
		if len(some) == 0 {
			return events
		}
		events, after = append(events, some...), next
	}
}

// eventually waits until ok, which asks the store, says so.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		time.Sleep(2 * time.Millisecond) // between two questions, not instead of one
	}
}

func testNotFound(t *testing.T, s room.Store, _ Abilities) {
	ctx := t.Context()
	if _, err := s.Do(ctx, "nowhere", enter(1)); !errors.Is(err, room.ErrNotFound) {
		t.Errorf("Do: %v", err)
	}
	if err := s.Follow(ctx, "nowhere", &follower{}); !errors.Is(err, room.ErrNotFound) {
		t.Errorf("Follow: %v", err)
	}
	if _, _, err := s.Events(ctx, "nowhere", room.Cursor{}, 1); !errors.Is(err, room.ErrNotFound) {
		t.Errorf("Events: %v", err)
	}
	if err := s.Delete(ctx, "nowhere", true); !errors.Is(err, room.ErrNotFound) {
		t.Errorf("Delete: %v", err)
	}
	if ids, err := s.Rooms(ctx); err != nil || len(ids) != 0 {
		t.Errorf("Rooms: %v %v", ids, err)
	}
	bad := room.DefaultConfig("no-capacity")
	var field *room.FieldError
	if r, err := s.Do(ctx, bad.ID, &room.Command{Op: room.OpConfigure, Config: &bad}); !errors.As(errors.Join(r.Err, err), &field) {
		t.Errorf("a room without capacity: %v %v", r.Err, err)
	}
	if ids, err := s.Rooms(ctx); err != nil || len(ids) != 0 {
		t.Errorf("a refused configuration made a room: %v %v", ids, err)
	}
}

func testLife(t *testing.T, s room.Store, _ Abilities) {
	f := newFixture(t, s, Config("life", 1))
	a, b := f.must(enter(1)).View, f.must(enter(2)).View
	if a.State != room.Active || b.State != room.Waiting || a.Seq != 1 || b.Seq != 2 || b.Pos != 2 {
		t.Fatalf("%+v %+v", a, b)
	}
	f.want(room.ErrNotAdmitted, &room.Command{Op: room.OpClaim, Ref: b.Ref})
	if v := f.must(&room.Command{Op: room.OpClaim, Ref: a.Ref}).View; !v.Claimed || v.IdleEnd <= 0 || v.FinalEnd < v.IdleEnd {
		t.Errorf("claimed: %+v", v)
	}
	f.must(&room.Command{Op: room.OpRenew, Ref: a.Ref})
	f.must(&room.Command{Op: room.OpLeave, Ref: a.Ref})
	if v := f.must(&room.Command{Op: room.OpStatus, Ref: b.Ref}).View; v.State != room.Active {
		t.Errorf("the freed slot was not given on: %+v", v)
	}
	if r := f.want(room.ErrEnded, &room.Command{Op: room.OpStatus, Ref: a.Ref}); r.View.Reason != room.ReasonLeft {
		t.Errorf("%+v", r.View)
	}
	f.must(&room.Command{Op: room.OpLeave, Ref: a.Ref})
	f.want(room.ErrSpent, enter(1))
	thief := room.Ref{Seq: b.Seq, ID: id(77)}
	if r, err := f.do(&room.Command{Op: room.OpStatus, Ref: thief}); err != nil || r.Err == nil || r.View.State == room.Active {
		t.Errorf("another id got the ticket: %+v %v", r, err)
	}
	f.want(room.ErrNoTicket, &room.Command{Op: room.OpStatus, Ref: room.Ref{Seq: 99, ID: id(99)}})
}

func testIdempotence(t *testing.T, s room.Store, _ Abilities) { // cases/room 3, 4, 5
	f := newFixture(t, s, Config("again", 1))
	f.must(enter(0))
	const n = 100
	views := make([]room.View, n)
	parallel(n, func(i int) {
		cmd := enter(5)
		cmd.NewID = id(1000 + i)
		r, err := f.do(cmd)
		if err != nil || r.Err != nil {
			t.Error(r.Err, err)
		}
		views[i] = r.View
	})
	created := 0
	for _, v := range views {
		if v.Created {
			created++
		}
		if v.Ref != views[0].Ref {
			t.Fatalf("two tickets for one request: %v %v", v.Ref, views[0].Ref)
		}
	}
	if created != 1 {
		t.Errorf("created %d times", created)
	}
	first := room.Ref{Seq: 1, ID: id(0)}
	parallel(50, func(int) {
		if r, err := f.do(&room.Command{Op: room.OpClaim, Ref: first}); err != nil || r.Err != nil || !r.View.Claimed {
			t.Errorf("claim: %+v %v", r, err)
		}
	})
	claims := 0
	for _, e := range f.log() {
		if e.Type == room.Claimed {
			claims++
		}
	}
	if claims != 1 {
		t.Errorf("one admission was claimed %d times", claims)
	}
}

func testRevisions(t *testing.T, s room.Store, _ Abilities) {
	f := newFixture(t, s, Config("rev", 1))
	c := Config("rev", 2)
	f.must(&room.Command{Op: room.OpConfigure, Config: &c, IfRevision: 1})
	f.want(room.ErrRevision, &room.Command{Op: room.OpConfigure, Config: &c, IfRevision: 1})
}

func testFile(t *testing.T, s room.Store, _ Abilities) {
	f := newFixture(t, s, Config("file", 1))
	limit := func() int64 {
		var l int64
		for _, e := range f.log() {
			if e.Type == room.LimitChanged {
				l = e.Limit.Limit
			}
		}
		return l
	}
	file, admin := Config("file", 10), Config("file", 20)
	f.must(&room.Command{Op: room.OpConfigure, Config: &file, Digest: "a"})
	f.must(&room.Command{Op: room.OpConfigure, Config: &admin})
	f.must(&room.Command{Op: room.OpConfigure, Config: &file, Digest: "a"})
	if l := limit(); l != 20 {
		t.Errorf("the file took back a change by the admin API: limit %d", l)
	}
	f.must(&room.Command{Op: room.OpConfigure, Config: &file, Digest: "b"})
	if l := limit(); l != 10 {
		t.Errorf("a changed file was not applied: limit %d", l)
	}
}

func testEvents(t *testing.T, s room.Store, _ Abilities) {
	f := newFixture(t, s, Config("events", 3))
	for i := range 50 {
		f.must(enter(i))
	}
	all := f.log()
	for i, e := range all {
		if e.N != uint64(i)+1 || e.Epoch != all[0].Epoch {
			t.Fatalf("event %d is %d.%d", i, e.Epoch, e.N)
		}
	}
	for i := range all {
		after := room.Cursor{Epoch: all[i].Epoch, N: all[i].N}
		got, next, err := s.Events(t.Context(), f.room, after, 7)
		want := all[i+1 : min(len(all), i+8)]
		if err != nil || !slices.EqualFunc(got, want, func(a, b room.Event) bool { return a.N == b.N && a.Type == b.Type && a.Ref == b.Ref }) {
			t.Fatalf("after %v: %d events, %v", after, len(got), err)
		}
		if len(want) > 0 && next.N != want[len(want)-1].N || len(want) == 0 && next != after {
			t.Fatalf("after %v: next %v", after, next)
		}
	}
	if err := Audit(all); err != nil {
		t.Error(err)
	}
}

func testDelete(t *testing.T, s room.Store, _ Abilities) {
	f := newFixture(t, s, Config("gone", 1))
	f.must(enter(1))
	f.must(enter(2))
	if err := s.Delete(t.Context(), "gone", false); !errors.Is(err, room.ErrWaiters) {
		t.Errorf("deleted over waiters: %v", err)
	}
	ended := make(chan error, 1)
	fl := &follower{}
	go func() { ended <- s.Follow(t.Context(), "gone", fl) }()
	eventually(t, "following", func() bool { return fl.summary().Waiting == 1 })
	if err := s.Delete(t.Context(), "gone", true); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, room.ErrNotFound) {
		t.Errorf("Follow of a deleted room: %v", err)
	}
	if _, err := f.do(enter(3)); !errors.Is(err, room.ErrNotFound) {
		t.Errorf("a deleted room answers: %v", err)
	}
	f = newFixture(t, s, Config("gone", 1))
	if v := f.must(enter(1)).View; v.State != room.Active {
		t.Errorf("a new room of an old name: %+v", v)
	}
}

// testTime lets the engine's own ticks bring expiry and abandonment.
func testTime(t *testing.T, s room.Store, _ Abilities) {
	c := Config("time", 1)
	c.Session.Claim, c.Queue.Grace = room.Duration(time.Second), room.Duration(time.Second)
	f := newFixture(t, s, c)
	f.must(enter(1))
	b := f.must(enter(2)).View
	f.must(enter(3)) // a ghost
	eventually(t, "the ghost is gone, the no-show is over, and the next is in and over", func() bool {
		r, err := f.do(&room.Command{Op: room.OpHeard, Refs: []room.Ref{b.Ref}})
		if err != nil || r.Err != nil {
			t.Fatal(r.Err, err)
		}
		ends := map[room.ID]room.Reason{}
		for _, e := range f.log() {
			if e.Type >= room.Left && e.Type <= room.Abandoned {
				ends[e.ID] = e.Reason
			}
		}
		return ends[id(1)] == room.ReasonClaim && ends[id(2)] == room.ReasonClaim && ends[id(3)] == room.ReasonAbandoned
	})
	if err := Audit(f.log()); err != nil {
		t.Error(err)
	}
}

// testBulk opens more slots than one command may fill.
func testBulk(t *testing.T, s room.Store, _ Abilities) {
	const n = 3*room.MaxMoves + 10
	f := newFixture(t, s, Config("bulk", 1))
	parallel(n, func(i int) {
		if r, err := f.do(enter(i)); err != nil || r.Err != nil {
			t.Error(r.Err, err)
		}
	})
	c := Config("bulk", n)
	f.must(&room.Command{Op: room.OpConfigure, Config: &c})
	eventually(t, "everybody inside", func() bool {
		inside := 0
		for _, e := range f.log() {
			if e.Type == room.Admitted {
				inside++
			}
		}
		return inside == n
	})
	if err := Audit(f.log()); err != nil {
		t.Error(err)
	}
}

func testCancelled(t *testing.T, s room.Store, _ Abilities) {
	f := newFixture(t, s, Config("cancelled", 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Do(ctx, f.room, enter(1)); err == nil {
		t.Error("a command under an ended context was answered")
	}
	// Whether it was obeyed or not, the same request id gives one ticket.
	if v := f.must(enter(1)).View; v.Seq != 1 {
		t.Errorf("%+v", v)
	}
}

func testRestart(t *testing.T, s room.Store, can Abilities) {
	f := newFixture(t, s, Config("stays", 3))
	for i := range 40 {
		f.must(enter(i))
	}
	f.must(&room.Command{Op: room.OpLeave, Ref: room.Ref{Seq: 1, ID: id(0)}})
	f.must(&room.Command{Op: room.OpState, State: room.StatePaused, Message: "wait"})
	before := f.log()
	for range 3 {
		f.s = can.Restart(t, f.s)
		after := f.log()
		if !slices.EqualFunc(before, after[:len(before)], func(a, b room.Event) bool { return a.N == b.N && a.Type == b.Type && a.Ref == b.Ref && a.At == b.At }) {
			t.Fatal("the log changed over a restart")
		}
		for i := range 40 {
			if i == 0 {
				f.want(room.ErrSpent, enter(0))
				continue
			}
			v := f.must(enter(i)).View
			if v.Created || v.Seq != uint64(i)+1 || (v.State == room.Active) != (i <= 3) {
				t.Fatalf("after a restart: %+v", v)
			}
		}
	}
	f.must(&room.Command{Op: room.OpState, State: room.StateOpen})
	f.must(&room.Command{Op: room.OpLeave, Ref: room.Ref{Seq: 2, ID: id(1)}})
	if v := f.must(enter(4)).View; v.State != room.Active {
		t.Errorf("nobody was admitted after the restarts: %+v", v)
	}
	if err := Audit(f.log()); err != nil {
		t.Error(err)
	}
}

// parallel runs fn(0) … fn(n−1) side by side.
func parallel(n int, fn func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}

// follower keeps a mirror, and notes what it must never see.
type follower struct {
	mu     sync.Mutex
	mirror *room.Mirror
	bad    error
	seen   int
}

func (f *follower) Reset(m *room.Mirror) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mirror = m
}

func (f *follower) Apply(events []room.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range events {
		if f.mirror == nil {
			f.bad = errors.New("an event before Reset")
			return
		}
		if !f.mirror.Apply(&events[i]) {
			f.bad = fmt.Errorf("a gap: event %d after %v", events[i].N, f.mirror.Cursor)
		}
		f.seen++
	}
}

func (f *follower) summary() room.Summary {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mirror == nil {
		return room.Summary{}
	}
	return f.mirror.Summary
}
