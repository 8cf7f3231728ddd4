package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/room/roomtest"
)

func makeRoom(t testing.TB, s room.Store, c room.Config) {
	t.Helper()
	if res, err := s.Do(background(), c.ID, &room.Command{Op: room.OpConfigure, Config: &c, Seed: make([]byte, 32)}); err != nil || res.Err != nil {
		t.Fatal(res.Err, err)
	}
}

func enterRoom(t testing.TB, s room.Store, id string, n int) room.View {
	t.Helper()
	res, err := s.Do(background(), id, &room.Command{Op: room.OpEnter, NewID: ticketID(n), Request: [16]byte(ticketID(n))})
	if err != nil || res.Err != nil {
		t.Fatal(res.Err, err)
	}
	return res.View
}

func tryEnter(s room.Store, id string, n int) error {
	res, err := s.Do(background(), id, &room.Command{Op: room.OpEnter, NewID: ticketID(n), Request: [16]byte(ticketID(n))})
	return errors.Join(err, res.Err)
}

func logOf(t testing.TB, s room.Store, id string) (events []room.Event) {
	t.Helper()
	for after := (room.Cursor{}); ; {
		some, next, err := s.Events(background(), id, after, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(some) == 0 {
			return events
		}
		events, after = append(events, some...), next
	}
}

// wantError wants an error of the store that names what it should.
func wantError(t testing.TB, err, is error, words ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("got %v, want %v", err, is)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v: want %q in it", err, w)
		}
	}
}

func TestRoomRefusesWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	p := startAOF(t)
	c := p.client()
	s := openRooms(t, c, redis.RoomOptions{Owns: func(string) bool { return false }})
	makeRoom(t, s, roomtest.Config("r", 1))
	enterRoom(t, s, "r", 1)
	enterRoom(t, s, "r", 2)
	const base = "usher:room:{r}:"
	for _, part := range []string{"h", "a", "due", "held", "ended", "kept", "line", "count", "silent", "req", "text", "log"} {
		key := base + part
		kept := must(t, c, "EXISTS", key)
		if n, _ := kept.AsInt64(); n == 1 {
			must(t, c, "RENAME", key, "kept:{r}")
		}
		if part == "ended" {
			must(t, c, "SET", key, "x")
		} else {
			must(t, c, "RPUSH", key, "x")
		}
		wantError(t, tryEnter(s, "r", 3), room.ErrUnavailable, key, "rename")
		if n, _ := must(t, c, "EXISTS", key).AsInt64(); n != 1 {
			t.Errorf("%s was deleted", key)
		}
		must(t, c, "DEL", key)
		if n, _ := kept.AsInt64(); n == 1 {
			must(t, c, "RENAME", "kept:{r}", key)
		}
	}
	head, _ := must(t, c, "GET", base+"h").ToString()
	must(t, c, "SETRANGE", base+"h", "0", "\x40\x22\x00\x00\x00\x00\x00\x00") // 9
	wantError(t, tryEnter(s, "r", 3), room.ErrUnavailable, base+"h", "layout 9", "one version of usher")
	must(t, c, "SET", base+"h", head)
	if v := enterRoom(t, s, "r", 3); v.Seq != 3 || v.State != room.Waiting {
		t.Errorf("%+v", v)
	}
	if err := roomtest.Audit(logOf(t, s, "r")); err != nil {
		t.Error(err)
	}
	// A key that somebody has deleted, or that was evicted, under people in line.
	must(t, c, "RENAME", base+"b:0", "kept:{r}")
	_, err := s.Do(background(), "r", &room.Command{Op: room.OpLeave, Ref: room.Ref{Seq: 1, ID: ticketID(1)}})
	wantError(t, err, room.ErrUnavailable, base+"b:0", "noeviction")
	must(t, c, "RENAME", "kept:{r}", base+"b:0")
	// A column: the answer of Redis, and where to look.
	must(t, c, "DEL", base+"i:0")
	must(t, c, "RPUSH", base+"i:0", "x")
	wantError(t, tryEnter(s, "r", 1), room.ErrUnavailable, "WRONGTYPE", "usher redis check")
}

func TestRoomFullRedis(t *testing.T) {
	t.Parallel()
	p := startAOF(t)
	c := p.client()
	s := openRooms(t, c, redis.RoomOptions{Owns: func(string) bool { return false }})
	makeRoom(t, s, roomtest.Config("r", 1))
	a := enterRoom(t, s, "r", 1)
	enterRoom(t, s, "r", 2)
	before := logOf(t, s, "r")
	must(t, c, "CONFIG", "SET", "maxmemory", "1")
	wantError(t, tryEnter(s, "r", 3), room.ErrUnavailable, "OOM", "maxmemory")
	if _, err := s.Tick(background(), "r"); err != nil { // what ends makes room
		t.Errorf("a tick: %v", err)
	}
	if got := logOf(t, s, "r"); len(got) != len(before) {
		t.Errorf("the log grew from %d to %d", len(before), len(got))
	}
	must(t, c, "CONFIG", "SET", "maxmemory", "0")
	if v := enterRoom(t, s, "r", 3); v.Seq != 3 {
		t.Errorf("%+v", v)
	}
	if res, err := s.Do(background(), "r", &room.Command{Op: room.OpLeave, Ref: a.Ref}); err != nil || res.Err != nil {
		t.Error(res.Err, err)
	}
	if err := roomtest.Audit(logOf(t, s, "r")); err != nil {
		t.Error(err)
	}
}

func TestRoomOnAReplica(t *testing.T) {
	t.Parallel()
	p := startAOF(t)
	s := openRooms(t, p.client(), redis.RoomOptions{})
	makeRoom(t, s, roomtest.Config("r", 1))
	r := startRedis(t, plainOption, func(port int) []string {
		return []string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--replicaof", "127.0.0.1", strconv.Itoa(p.port), "--repl-diskless-sync-delay", "0"}
	})
	c := r.client()
	soon(t, "the replica follows", func() bool {
		n, _ := must(t, c, "EXISTS", "usher:room:{r}:h").AsInt64()
		return n == 1
	})
	onReplica := openRooms(t, c, redis.RoomOptions{Owns: func(string) bool { return false }})
	wantError(t, tryEnter(onReplica, "r", 1), room.ErrUnavailable, "READONLY", "engine.addrs")
}

func TestRoomInModeSingleOnACluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long")
	}
	cluster := startGateServers(t, 3, true)
	moved := false
	for _, addr := range cluster.addrs {
		c, err := rueidis.NewClient(plainOption(addr))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		wantError(t, redis.RoomError("r", c.Do(background(), c.B().Arbitrary("MGET", "a", "b").Build()).Error(), true), room.ErrUnavailable, "CROSSSLOT", "engine.mode: cluster")
		s, err := redis.NewRooms(background(), c, redis.RoomOptions{})
		if err == nil {
			t.Cleanup(func() { s.Close() })
			err = tryEnter(s, "r", 1)
			if errors.Is(err, room.ErrNotFound) { // this one has the slot
				continue
			}
		}
		wantError(t, err, room.ErrUnavailable, "MOVED", "engine.mode: cluster")
		moved = true
	}
	if !moved {
		t.Error("no node said MOVED")
	}
}

func TestRoomWhileRedisLoads(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long")
	}
	var slow []string
	p := startRedis(t, plainOption, func(port int) []string {
		return append([]string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "3600 1"}, slow...)
	})
	c := p.client()
	s := openRooms(t, c, redis.RoomOptions{Owns: func(string) bool { return false }})
	makeRoom(t, s, roomtest.Config("r", 1))
	enterRoom(t, s, "r", 1)
	for i := range 200 {
		must(t, c, "SET", fmt.Sprint("filler", i), strings.Repeat("x", 4000))
	}
	must(t, c, "SAVE")
	p.kill()
	slow = []string{"--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024"}
	p.restart() // answers INFO while it loads
	told := false
	soon(t, "it answers again", func() bool {
		err := tryEnter(s, "r", 2)
		if err != nil && strings.Contains(err.Error(), "LOADING") {
			wantError(t, err, room.ErrUnavailable, "by itself")
			told = true
		}
		return err == nil
	})
	if !told {
		t.Error("nobody was told LOADING")
	}
}

// TestRoomScriptsAreLoadedAgain: a flush of the scripts is not noticed; one of the data is a room that is not there.
func TestRoomScriptsAreLoadedAgain(t *testing.T) {
	t.Parallel()
	p := startAOF(t)
	c := p.client()
	s := openRooms(t, c, redis.RoomOptions{})
	makeRoom(t, s, roomtest.Config("r", 1))
	for i := range 20 {
		must(t, c, "SCRIPT", "FLUSH")
		enterRoom(t, s, "r", i)
	}
	ended := make(chan error, 1)
	w := &keeper{reset: make(chan struct{}, 100)}
	go func() { ended <- s.Follow(background(), "r", w) }()
	<-w.reset
	must(t, c, "FLUSHALL")
	if err := <-ended; !errors.Is(err, room.ErrNotFound) {
		t.Errorf("Follow: %v", err)
	}
	if err := tryEnter(s, "r", 1); !errors.Is(err, room.ErrNotFound) {
		t.Errorf("Do: %v", err)
	}
	makeRoom(t, s, roomtest.Config("r", 1))
	enterRoom(t, s, "r", 1)
}

// keeper keeps a mirror.
type keeper struct {
	mu     sync.Mutex
	mirror *room.Mirror
	resets int
	bad    error
	reset  chan struct{}
}

func (k *keeper) Reset(m *room.Mirror) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mirror = m
	k.resets++
	select {
	case k.reset <- struct{}{}:
	default:
	}
}

func (k *keeper) Apply(events []room.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range events {
		if !k.mirror.Apply(&events[i]) && k.bad == nil {
			k.bad = fmt.Errorf("event %d.%d after %v", events[i].Epoch, events[i].N, k.mirror.Cursor)
		}
	}
}

func (k *keeper) waiting() (waiting int64, resets int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mirror == nil {
		return -1, 0
	}
	return k.mirror.Summary.Waiting, k.resets
}

// TestRoomFollowAfterACut: a follower whose connection was lost reads on from where it was, without a gap; when the log was
// cut meanwhile, it is shown the room anew.
func TestRoomFollowAfterACut(t *testing.T) {
	t.Parallel()
	p := startAOF(t)
	c := p.client()
	s := openRooms(t, c, redis.RoomOptions{})
	makeRoom(t, s, roomtest.Config("r", 1))
	enterRoom(t, s, "r", 0)
	between := startProxy(t, p.addr)
	far := openRooms(t, between.client(t), redis.RoomOptions{Owns: func(string) bool { return false }})
	k := &keeper{reset: make(chan struct{}, 100)}
	ctx, cancel := context.WithCancel(background())
	done := make(chan error, 1)
	go func() { done <- far.Follow(ctx, "r", k) }()
	defer func() { cancel(); <-done }()
	<-k.reset
	n := 1
	enter := func(more int) {
		for range more {
			enterRoom(t, s, "r", n)
			n++
		}
	}
	enter(20)
	soon(t, "it is told", func() bool { w, _ := k.waiting(); return w == 20 })
	between.cutAll()
	enter(50)
	between.cut.Store(false)
	soon(t, "it reads on", func() bool { w, _ := k.waiting(); return w == 70 })
	if _, resets := k.waiting(); resets != 1 {
		t.Errorf("shown anew %d times though nothing was cut", resets)
	}
	between.cutAll()
	enter(50)
	must(t, c, "XTRIM", "usher:room:{r}:log", "MAXLEN", "1")
	enter(1)
	between.cut.Store(false)
	soon(t, "it is shown the room anew", func() bool { w, resets := k.waiting(); return w == 121 && resets == 2 })
	enter(5)
	soon(t, "it is told", func() bool { w, _ := k.waiting(); return w == 126 })
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.bad != nil {
		t.Error(k.bad)
	}
	// Whoever reads by cursor is told too.
	if _, floor, err := s.Events(background(), "r", room.Cursor{Epoch: 1, N: 5}, 10); !errors.Is(err, room.ErrTrimmed) || floor.N < 100 {
		t.Errorf("%v %v", floor, err)
	}
}

// TestRoomLogIsTrimmed: the log is kept within its bounds, its readers are told, and those who asked for more keep it.
func TestRoomLogIsTrimmed(t *testing.T) {
	t.Parallel()
	p := startAOF(t)
	c := p.client()
	var offset = func() int64 { return time.Now().UnixMicro() }
	s := openRooms(t, c, redis.RoomOptions{Owns: func(string) bool { return false }, Now: func() int64 { return offset() }})
	cfg := roomtest.Config("r", 1)
	cfg.Log.Retain = room.Duration(time.Hour)
	makeRoom(t, s, cfg)
	for i := range 500 {
		enterRoom(t, s, "r", i)
	}
	if err := s.Trim(background(), "r"); err != nil {
		t.Fatal(err)
	}
	if n, _ := must(t, c, "XLEN", "usher:room:{r}:log").AsInt64(); n < 500 {
		t.Errorf("%d entries: trimmed too early", n)
	}
	if err := s.KeepFor(background(), "r", "sink", room.Cursor{Epoch: 1, N: 250}); err != nil {
		t.Fatal(err)
	}
	offset = func() int64 { return time.Now().Add(2 * time.Hour).UnixMicro() }
	for i := range 50 {
		enterRoom(t, s, "r", 500+i)
	}
	if err := s.Trim(background(), "r"); err != nil {
		t.Fatal(err)
	}
	events, _, err := s.Events(background(), "r", room.Cursor{Epoch: 1, N: 250}, 10)
	if err != nil || len(events) != 10 || events[0].N != 251 {
		t.Errorf("the sink's events: %v, %v", events, err)
	}
	_, floor, err := s.Events(background(), "r", room.Cursor{Epoch: 1, N: 3}, 10)
	if !errors.Is(err, room.ErrTrimmed) || floor.N == 0 || floor.N > 250 {
		t.Errorf("floor %v, %v", floor, err)
	}
	if err := s.LetGo(background(), "r", "sink"); err != nil {
		t.Fatal(err)
	}
	if err := s.Trim(background(), "r"); err != nil {
		t.Fatal(err)
	}
	if _, floor, err = s.Events(background(), "r", room.Cursor{Epoch: 1, N: 3}, 10); !errors.Is(err, room.ErrTrimmed) || floor.N < 350 {
		t.Errorf("floor %v, %v", floor, err)
	}
	if events, _, err = s.Events(background(), "r", room.Cursor{}, 10); err != nil || len(events) == 0 || events[0].N != floor.N+1 {
		t.Errorf("from the floor: %v, %v", events, err)
	}
}
