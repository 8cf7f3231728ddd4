package redis_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/internal/redistest"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/room/roomtest"
)

// crowd has many enter at once and returns them by seq.
func crowd(t *testing.T, s room.Store, id string, from, n int) []room.View {
	t.Helper()
	views := make([]room.View, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { views[i] = enterRoom(t, s, id, from+i) })
	}
	wg.Wait()
	slices.SortFunc(views, func(a, b room.View) int { return int(int64(a.Seq) - int64(b.Seq)) })
	for i := range views {
		if views[i].Seq != views[0].Seq+uint64(i) {
			t.Fatalf("seq %d comes after %d", views[i].Seq, views[i-1].Seq)
		}
	}
	return views
}

// readMirror follows the room until the node has read what the test waits for: it reads its own events back a little later.
func readMirror(t *testing.T, s room.Store, id string, ok func(*room.Mirror) bool) (m *room.Mirror) {
	t.Helper()
	redistest.Until(t, "the node has read its own events", func() bool {
		m = mirrorOf(t, s, id)
		return ok(m)
	})
	return m
}

// sameAsLog compares what the log says of a room with what its keys say.
func sameAsLog(t *testing.T, c rueidis.Client, s room.Store, id string) room.Summary {
	t.Helper()
	events := logOf(t, s, id)
	if err := roomtest.Audit(events); err != nil {
		t.Error(err)
	}
	m := room.NewMachine()
	for i := range events {
		if err := m.Apply(&events[i]); err != nil {
			t.Fatal(err)
		}
	}
	want := m.Mirror()
	got := readMirror(t, s, id, func(got *room.Mirror) bool { return got.Cursor == want.Cursor })
	got.Summary.Now, want.Summary.Now = 0, 0
	if fmt.Sprintf("%+v", got.Summary) != fmt.Sprintf("%+v", want.Summary) || got.Line.Positioned() != want.Line.Positioned() {
		t.Fatalf("by its keys\n%+v\nby its log\n%+v", got.Summary, want.Summary)
	}
	for k := range want.Line.Positioned() {
		if got.Line.At(k) != want.Line.At(k) {
			t.Fatalf("at %d in line: %d by its keys, %d by its log", k, got.Line.At(k), want.Line.At(k))
		}
	}
	for _, key := range []string{"a", "due"} {
		count := map[string]string{"a": "HLEN", "due": "ZCARD"}[key]
		if n, _ := must(t, c, count, "usher:room:{"+id+"}:"+key).AsInt64(); n != want.Summary.Active {
			t.Errorf("%s holds %d sessions, the log %d", key, n, want.Summary.Active)
		}
	}
	return want.Summary
}

// TestRoomFailsHalfWay: a key of another type that a script meets when it has done half of its work. What was done has its
// event, the rest is done when the key is back, and nobody has lost a place or has two.
func TestRoomFailsHalfWay(t *testing.T) {
	t.Parallel()
	p := startAOF(t)
	c := p.client()
	for _, column := range []string{"i", "s", "p", "b", "r"} {
		t.Run(column, func(t *testing.T) {
			id := "half-" + column
			s := openRooms(t, c, redis.RoomOptions{Owns: func(string) bool { return false }, Moves: 500})
			cfg := roomtest.Config(id, 1)
			cfg.Session.Claim = 0
			makeRoom(t, s, cfg)
			views := crowd(t, s, id, 0, 1100)
			key := "usher:room:{" + id + "}:" + column + ":1"
			must(t, c, "RENAME", key, "kept:{"+id+"}")
			must(t, c, "RPUSH", key, "x")
			cfg.Capacity.Active = 1050
			for n := range 5 { // the first chunk's go in, and then it cannot go on
				_, err := s.Do(background(), id, &room.Command{Op: room.OpConfigure, Config: &cfg, Digest: "once"})
				if err != nil && !errors.Is(err, room.ErrUnavailable) {
					t.Fatal(err)
				}
				if err := tryEnter(s, id, 5000+n); column != "r" && err == nil {
					t.Error("somebody entered")
				}
				_, _ = s.Do(background(), id, &room.Command{Op: room.OpLeave, Ref: views[1090].Ref})
				_, _ = s.Do(background(), id, &room.Command{Op: room.OpLeave, Ref: views[n].Ref})
				_, _ = s.Tick(background(), id)
			}
			if n, _ := must(t, c, "LLEN", key).AsInt64(); n != 1 {
				t.Errorf("%s was touched", key)
			}
			must(t, c, "DEL", key)
			must(t, c, "RENAME", "kept:{"+id+"}", key)
			for range 5 {
				if _, err := s.Tick(background(), id); err != nil {
					t.Fatal(err)
				}
			}
			sum := sameAsLog(t, c, s, id)
			if sum.Active != 1050 {
				t.Errorf("%d are inside, not 1050", sum.Active)
			}
			for n := range 5 {
				if v := enterRoom(t, s, id, 5000+n); v.Seq <= 1100 {
					t.Errorf("a new visitor has the ticket %d", v.Seq)
				}
			}
			sameAsLog(t, c, s, id)
		})
	}
}

// startDebug is a server that can be told to become another one.
func startDebug(t *testing.T) *redisProcess {
	return startRedis(t, plainOption, func(port int) []string {
		return []string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--enable-debug-command", "local"}
	})
}

// saved are a room's keys as they were.
func saved(t *testing.T, c rueidis.Client, id string) (back func()) {
	t.Helper()
	list := func() []string {
		keys, err := must(t, c, "KEYS", "usher:room:{"+id+"}:*").AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	dumps := map[string]string{}
	for _, k := range list() {
		d, err := must(t, c, "DUMP", k).ToString()
		if err != nil {
			t.Fatal(err)
		}
		dumps[k] = d
	}
	return func() {
		for _, k := range list() {
			must(t, c, "DEL", k)
		}
		for k, d := range dumps {
			must(t, c, "RESTORE", k, "0", d)
		}
		must(t, c, "DEBUG", "CHANGE-REPL-ID")
	}
}

// TestRoomFailoverInThePrequeue: who entered before an opening and was lost keeps the place that the draw has for that ticket,
// whatever its new number, and has it once.
func TestRoomFailoverInThePrequeue(t *testing.T) {
	t.Parallel()
	p := startDebug(t)
	c := p.client()
	var clock atomic.Int64
	clock.Store(1_700_000_000_000_000)
	s := openRooms(t, c, redis.RoomOptions{Owns: func(string) bool { return false }, Now: clock.Load})
	for i, before := range []int{20, 0} { // or nobody of the prequeue is known any more
		cfg := roomtest.Config(fmt.Sprint("draw-", i), 1)
		cfg.Schedule.OpensAt = room.Time{Time: time.UnixMicro(clock.Load()).Add(time.Minute).UTC()}
		cfg.Schedule.Prequeue = room.Duration(10 * time.Minute)
		id := cfg.ID
		makeRoom(t, s, cfg)
		for n := range before {
			enterRoom(t, s, id, n)
		}
		back := saved(t, c, id)
		clock.Add(1_000_000)
		lost := make([]room.View, 5)
		for n := range lost {
			lost[n] = enterRoom(t, s, id, 100+n)
		}
		back()
		clock.Add(1_000_000)
		enterRoom(t, s, id, 200)
		ids := map[room.ID]int{}
		for n, v := range lost {
			for range 3 { // repeatable
				cmd := &room.Command{Op: room.OpEnter, Ref: v.Ref, NewID: ticketID(300 + n), Issued: clock.Load() - 500_000}
				res, err := s.Do(background(), id, cmd)
				if err != nil || res.Err != nil || res.View.ID != v.ID || res.View.State != room.Waiting || res.View.Pos != 0 {
					t.Fatalf("%+v is now %+v: %v %v", v, res.View, res.Err, err)
				}
			}
			old := &room.Command{Op: room.OpEnter, Ref: room.Ref{Seq: 900 + uint64(n), ID: ticketID(900 + n)}, NewID: ticketID(400 + n), Issued: clock.Load() - time.Hour.Microseconds()}
			if res, err := s.Do(background(), id, old); err != nil || res.Err != nil || res.View.ID != old.NewID {
				t.Errorf("an old ticket was taken up: %+v %v %v", res.View, res.Err, err)
			}
		}
		clock.Add(time.Minute.Microseconds())
		if _, err := s.Tick(background(), id); err != nil {
			t.Fatal(err)
		}
		events := logOf(t, s, id)
		if err := roomtest.Audit(events); err != nil {
			t.Error(err)
		}
		epoch := events[len(events)-1].Epoch
		for _, e := range events {
			if e.Epoch == epoch && e.Type == room.Entered {
				ids[e.ID]++
			}
		}
		for _, v := range lost {
			if ids[v.ID] != 1 {
				t.Errorf("%v entered %d times", v.ID, ids[v.ID])
			}
		}
		want := int64(before + 1 + 10)
		m := readMirror(t, s, id, func(m *room.Mirror) bool { return m.Summary.Opening.Count != 0 })
		if m.Summary.Opening.Count != uint64(want) || m.Summary.Waiting+m.Summary.Active != want {
			t.Errorf("%d in the draw, %d in line, %d inside; want %d", m.Summary.Opening.Count, m.Summary.Waiting, m.Summary.Active, want)
		}
	}
}

// TestRoomFailoverToAClockThatIsBehind: the pause is counted by room time, so it does not last until that clock has caught up.
func TestRoomFailoverToAClockThatIsBehind(t *testing.T) {
	t.Parallel()
	p := startDebug(t)
	var clock atomic.Int64
	clock.Store(1_700_000_000_000_000)
	s := openRooms(t, p.client(), redis.RoomOptions{Owns: func(string) bool { return false }, Now: clock.Load, FailoverPause: 10 * time.Second})
	makeRoom(t, s, roomtest.Config("r", 1))
	first, second := enterRoom(t, s, "r", 1), enterRoom(t, s, "r", 2)
	must(t, p.client(), "DEBUG", "CHANGE-REPL-ID")
	clock.Add(-time.Hour.Microseconds())
	if res, err := s.Do(background(), "r", &room.Command{Op: room.OpLeave, Ref: first.Ref}); err != nil || res.Err != nil {
		t.Fatal(res.Err, err)
	}
	state := func() room.TicketState {
		res, err := s.Do(background(), "r", &room.Command{Op: room.OpStatus, Ref: second.Ref})
		if err != nil || res.Err != nil {
			t.Fatal(res.Err, err)
		}
		return res.View.State
	}
	for range 9 {
		clock.Add(1_000_000)
		if got := state(); got != room.Waiting {
			t.Fatalf("%v in the pause", got)
		}
	}
	clock.Add(2_000_000)
	if got := state(); got != room.Active {
		t.Errorf("%v after the pause", got)
	}
}
