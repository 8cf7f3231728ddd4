package redis_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/room/roomtest"
)

// roomTwin is a room in Redis and a machine that is told the same, at the same time.
type roomTwin struct {
	t       *testing.T
	rng     *rand.Rand
	store   *redis.Rooms
	fresh   func() *redis.Rooms
	machine *room.Machine
	clock   atomic.Int64
	last    int64
	id      string
	at      room.Cursor
	refs    []room.Ref
	made    int
	trace   []string
}

func ticketID(n int) (id room.ID) {
	binary.BigEndian.PutUint64(id[:], uint64(n)*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint64(id[8:], uint64(n)+1)
	return id
}

// step has both obey a command and compares what they answer and what they say has happened.
func (w *roomTwin) step(cmd *room.Command) room.Result {
	w.t.Helper()
	cmd.Rand = w.rng.Uint64()
	now := w.clock.Load()
	w.trace = append(w.trace, fmt.Sprintf("%d: op %d %v new %d request %x refs %d %s %+v", now, cmd.Op, cmd.Ref.Seq, cmd.NewID[15], cmd.Request[14:], len(cmd.Refs), cmd.State, cmd.Config))
	if now-w.last > 5_000_000 && w.last != 0 {
		w.machine.Recover()
	}
	w.last = now
	want := w.machine.Step(cmd, now)
	wantEvents := slices.Clone(want.Events)
	got, err := w.store.Do(context.Background(), w.id, cmd)
	if err != nil {
		w.fail("%v", err)
	}
	events := w.news()
	canon(events)
	canon(wantEvents)
	if !reflect.DeepEqual(plainEvents(events), plainEvents(wantEvents)) {
		w.failEvents(events, wantEvents)
	}
	if fmt.Sprint(got.Err) != fmt.Sprint(want.Err) && !(got.Err != nil && want.Err != nil && fmt.Sprintf("%.11s", got.Err) == fmt.Sprintf("%.11s", want.Err)) {
		w.fail("error\n got %v\nwant %v", got.Err, want.Err)
	}
	if got.View.Ref.Seq == 0 && want.View.Ref.Seq == 0 {
		got.View.Ref, want.View.Ref = room.Ref{}, room.Ref{}
	}
	if got.At != want.At || got.Cursor != want.Cursor || got.View != want.View {
		w.fail("answer\n got %d %v %+v\nwant %d %v %+v", got.At, got.Cursor, got.View, want.At, want.Cursor, want.View)
	}
	return got
}

func (w *roomTwin) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.trace[max(0, len(w.trace)-25):] {
		w.t.Log(line)
	}
	w.t.Logf("configuration: %+v", w.machine.Summary())
	w.t.Fatalf(format, args...)
}

// failEvents names the first event that differs.
func (w *roomTwin) failEvents(got, want []room.Event) {
	w.t.Helper()
	a, b := plainEvents(got), plainEvents(want)
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	w.fail("%d events, want %d; from the one with index %d on\n got %.1000s\nwant %.1000s", len(a), len(b), i, a[i:], b[i:])
}

// canon sorts neighbours that expired in one step: which of them comes first is nobody's concern.
func canon(events []room.Event) {
	for i := 0; i < len(events); {
		j := i
		for j < len(events) && events[j].Type == room.Expired && events[i].Type == room.Expired {
			j++
		}
		if j == i {
			i++
			continue
		}
		n := events[i].N
		slices.SortFunc(events[i:j], func(a, b room.Event) int { return int(int64(a.Seq) - int64(b.Seq)) })
		for k := i; k < j; k++ {
			events[k].N = n + uint64(k-i)
		}
		i = j
	}
}

func plainEvents(events []room.Event) (list []string) {
	for _, e := range events {
		limit, state := e.Limit, e.State
		e.Limit, e.State = nil, nil
		s := fmt.Sprintf("%v %+v", e.Type, e)
		if limit != nil {
			s += fmt.Sprintf(" %+v", *limit)
		}
		if state != nil {
			s += fmt.Sprintf(" %+v", *state)
		}
		list = append(list, s)
	}
	return list
}

// compare compares a node that has just read the room, and the machine.
func (w *roomTwin) compare() {
	w.t.Helper()
	s := w.fresh()
	defer s.Close()
	m := mirrorOf(w.t, s, w.id)
	want := w.machine.Mirror()
	a, b := m.Summary, want.Summary
	a.Now, b.Now = 0, 0 // the log's, and the last command's
	if m.Cursor != want.Cursor || !reflect.DeepEqual(fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b)) {
		w.fail("summary\n got %v %+v\nwant %v %+v", m.Cursor, a, want.Cursor, b)
	}
	if !reflect.DeepEqual(m.Inside, want.Inside) || m.Mixed != want.Mixed {
		w.fail("inside\n got %v %v\nwant %v %v", m.Inside, m.Mixed, want.Inside, want.Mixed)
	}
	if m.Line.Positioned() != want.Line.Positioned() || m.Line.Len() != want.Line.Len() {
		w.fail("line of %d (%d), want %d (%d)", m.Line.Positioned(), m.Line.Len(), want.Line.Positioned(), want.Line.Len())
	}
	for k := range want.Line.Positioned() {
		if m.Line.At(k) != want.Line.At(k) {
			w.fail("line at %d: %d, want %d", k, m.Line.At(k), want.Line.At(k))
		}
	}
}

// catcher takes the first mirror it is shown, and the number of events after it.
type catcher struct {
	once   sync.Once
	mirror chan *room.Mirror
}

func (c *catcher) Reset(m *room.Mirror) { c.once.Do(func() { c.mirror <- m }) }
func (c *catcher) Apply([]room.Event)   {}

func mirrorOf(t *testing.T, s room.Store, id string) *room.Mirror {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &catcher{mirror: make(chan *room.Mirror, 1)}
	done := make(chan error, 1)
	go func() { done <- s.Follow(ctx, id, c) }()
	defer func() { cancel(); <-done }()
	select {
	case m := <-c.mirror:
		return m
	case err := <-done:
		done <- err
		t.Fatalf("follow: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("follow: nothing within a minute")
	}
	return nil
}

func (w *roomTwin) randomConfig() room.Config {
	c := roomtest.Config(w.id, int64(1+w.rng.IntN(6)))
	pick := func(n int) bool { return w.rng.IntN(n) == 0 }
	if pick(2) {
		c.Queue.Order = []room.Order{room.FIFO, room.Random, room.Passthrough, room.Reject}[w.rng.IntN(4)]
	}
	if pick(4) {
		c.Capacity.Active = int64(1 + w.rng.IntN(80))
	}
	if pick(3) {
		c.Capacity.RatePerMinute = int64(1 + w.rng.IntN(400))
	}
	if pick(4) {
		c.Capacity.PerInstance = int64(1 + w.rng.IntN(4))
	}
	if pick(6) {
		c.Capacity.Active = 0
		c.Capacity.RatePerMinute = int64(1 + w.rng.IntN(100))
	}
	if pick(2) {
		c.Session.Claim = room.Duration(time.Duration(1+w.rng.IntN(10)) * time.Second)
	}
	if pick(2) {
		c.Session.Idle = room.Duration(time.Duration(1000+w.rng.IntN(20_000)) * time.Millisecond)
		c.Session.Max = c.Session.Idle + room.Duration(time.Duration(w.rng.IntN(30))*time.Second)
	}
	c.Session.Hold = pick(3)
	if pick(2) {
		c.Queue.Grace = room.Duration(time.Duration(1000+w.rng.IntN(30_000)) * time.Millisecond)
	}
	if pick(4) {
		c.Queue.MaxWaiting = int64(w.rng.IntN(12))
	}
	if pick(3) {
		at := time.UnixMicro(w.clock.Load()).Add(time.Duration(w.rng.IntN(60_000)-5000) * time.Millisecond).UTC()
		c.Schedule.OpensAt = room.Time{Time: at}
		c.Schedule.Prequeue = room.Duration(time.Duration(w.rng.IntN(50)) * time.Second)
		if pick(3) {
			c.Schedule.ClosesAt = room.Time{Time: at.Add(time.Duration(1+w.rng.IntN(40)) * time.Second)}
		}
	}
	return c
}

func (w *roomTwin) configure() {
	c := w.randomConfig()
	cmd := &room.Command{Op: room.OpConfigure, Config: &c, Seed: make([]byte, 32)}
	binary.BigEndian.PutUint64(cmd.Seed, w.rng.Uint64())
	if w.rng.IntN(3) == 0 {
		cmd.Digest = fmt.Sprint(w.rng.IntN(3))
	}
	if w.rng.IntN(5) == 0 {
		cmd.IfRevision = uint64(1 + w.rng.IntN(4))
	}
	if w.made == 0 && len(w.refs) == 0 && w.machine.N == 0 {
		cmd.IfRevision = 0
	}
	w.step(cmd)
}

func (w *roomTwin) random() {
	anyRef := func() room.Ref {
		if len(w.refs) == 0 || w.rng.IntN(20) == 0 {
			return room.Ref{Seq: uint64(w.rng.IntN(200)), ID: ticketID(w.rng.IntN(1000))}
		}
		return w.refs[w.rng.IntN(len(w.refs))]
	}
	switch w.rng.IntN(3) {
	case 0:
		w.clock.Add(int64(w.rng.IntN(900_000)))
	case 1:
		w.clock.Add(int64(w.rng.IntN(30)) * 100_000)
	}
	switch w.rng.IntN(200) {
	case 0:
		w.clock.Add(int64(4+w.rng.IntN(100)) * 1_000_000)
	case 1:
		w.clock.Add(-int64(w.rng.IntN(3_000_000))) // a clock that steps back
	}
	switch pick := w.rng.IntN(100); {
	case pick < 2:
		w.burst()
	case pick < 30:
		w.made++
		cmd := &room.Command{Op: room.OpEnter, NewID: ticketID(w.made)}
		if w.rng.IntN(3) > 0 {
			cmd.Request = [16]byte(ticketID(50_000 + w.made - w.rng.IntN(5)))
		}
		if w.rng.IntN(6) == 0 {
			cmd.Ref = anyRef()
		}
		if res := w.step(cmd); res.View.Created {
			w.refs = append(w.refs, res.View.Ref)
		}
	case pick < 45:
		w.step(&room.Command{Op: room.OpTick})
	case pick < 52:
		w.step(&room.Command{Op: room.OpStatus, Ref: anyRef()})
	case pick < 60:
		var refs []room.Ref
		for range w.rng.IntN(12) {
			refs = append(refs, anyRef())
		}
		w.step(&room.Command{Op: room.OpHeard, Refs: refs})
	case pick < 72:
		w.step(&room.Command{Op: room.OpClaim, Ref: anyRef()})
	case pick < 78:
		w.step(&room.Command{Op: room.OpRenew, Ref: anyRef()})
	case pick < 90:
		w.step(&room.Command{Op: room.OpLeave, Ref: anyRef()})
	case pick < 93:
		w.configure()
	case pick < 97:
		cmd := &room.Command{Op: room.OpState, State: []string{room.StateOpen, room.StateOpen, room.StatePaused, room.StateClosed, "ajar"}[w.rng.IntN(5)], Message: []string{"", "soon"}[w.rng.IntN(2)], Seed: make([]byte, 32)}
		binary.BigEndian.PutUint64(cmd.Seed, w.rng.Uint64())
		w.step(cmd)
	default:
		w.step(&room.Command{Op: room.OpInstances, Instances: int64(w.rng.IntN(4))})
	}
}

// burst has many enter at once, some of them twice; the machine is told them in the order in which Redis let them in.
func (w *roomTwin) burst() {
	w.step(&room.Command{Op: room.OpHeard}) // what the time brings is done
	n := 2 + w.rng.IntN(60)
	cmds, first := make([]*room.Command, n), w.made+1
	for i := range cmds {
		w.made++
		cmds[i] = &room.Command{Op: room.OpEnter, NewID: ticketID(w.made)}
		if w.rng.IntN(3) > 0 { // never one of before: its session's end would come at a moment of the batch's choosing
			cmds[i].Request = [16]byte(ticketID(50_000 + max(first, w.made-w.rng.IntN(8))))
		}
	}
	results := make([]room.Result, n)
	var wg sync.WaitGroup
	for i, cmd := range cmds {
		wg.Go(func() {
			var err error
			if results[i], err = w.store.Do(context.Background(), w.id, cmd); err != nil {
				w.t.Error(err)
			}
		})
	}
	wg.Wait()
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		rank := func(i int) uint64 {
			if results[i].View.Created {
				return results[i].View.Seq
			}
			return 1 << 60
		}
		return int(int64(rank(a)) - int64(rank(b)))
	})
	var want []room.Event
	for _, i := range order {
		res := w.machine.Step(cmds[i], w.clock.Load())
		want = append(want, res.Events...)
		got := results[i]
		if fmt.Sprint(res.Err) != fmt.Sprint(got.Err) || got.View.Ref != res.View.Ref || got.View.Created != res.View.Created || got.View.Pos != res.View.Pos || got.At != res.At {
			w.fail("burst\n got %v %+v\nwant %v %+v", got.Err, got.View, res.Err, res.View)
		}
		if got.View.Created {
			w.refs = append(w.refs, got.View.Ref)
		}
	}
	w.trace = append(w.trace, fmt.Sprintf("burst of %d", n))
	if got := w.news(); !reflect.DeepEqual(plainEvents(got), plainEvents(want)) {
		w.failEvents(got, want)
	}
}

// news are the events since it was asked last.
func (w *roomTwin) news() (events []room.Event) {
	w.t.Helper()
	for {
		some, next, err := w.store.Events(context.Background(), w.id, w.at, 1000)
		if err != nil && w.machine.Cursor.N > 0 {
			w.fail("events: %v", err)
		}
		events = append(events, some...)
		if w.at = next; len(some) == 0 {
			return events
		}
	}
}

// TestRoomTwin compares Redis with the machine, command by command.
func TestRoomTwin(t *testing.T) {
	t.Parallel()
	rounds, steps := 8, 300
	if testing.Short() {
		rounds = 3
	}
	if os.Getenv("USHER_SOAK") == "1" {
		rounds, steps = 300, 1000
	}
	s := startGateServers(t, 1, false)
	c := s.client()
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			w := newRoomTwin(t, c, uint64(round), fmt.Sprint("twin-", round))
			for range steps {
				w.random()
			}
			w.compare()
			for range 310 { // until all that has ended is forgotten
				w.clock.Add(2_000_000)
				w.step(&room.Command{Op: room.OpTick})
			}
			w.compare()
		})
	}
}

func newRoomTwin(t *testing.T, c rueidis.Client, seed uint64, id string) *roomTwin {
	w := &roomTwin{t: t, rng: rand.New(rand.NewPCG(seed, 7)), machine: room.NewMachine(), id: id}
	w.clock.Store(1_700_000_000_000_000)
	opts := redis.RoomOptions{Moves: room.MaxMoves, Now: w.clock.Load, Owns: func(string) bool { return false }}
	w.fresh = func() *redis.Rooms {
		s, err := redis.NewRooms(context.Background(), c, opts)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	w.store = w.fresh()
	t.Cleanup(func() { w.store.Close() })
	for w.machine.N == 0 {
		w.configure()
	}
	return w
}
