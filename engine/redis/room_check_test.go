package redis_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/room/roomtest"
)

// TestRoomCheckAndClean: what is in order is not touched; what usher left is removed; what is somebody's is only told.
func TestRoomCheckAndClean(t *testing.T) {
	t.Parallel()
	p := startAOF(t)
	c := p.client()
	s := openRooms(t, c, redis.RoomOptions{Owns: func(string) bool { return false }})
	for _, id := range []string{"good", "lost", "gone"} {
		makeRoom(t, s, roomtest.Config(id, 2))
		for i := range 5 {
			enterRoom(t, s, id, i)
		}
	}
	check := func() (lines []string) {
		t.Helper()
		_, found, err := redis.CheckRooms(background(), c)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			lines = append(lines, fmt.Sprint(f.Removable, " ", f))
		}
		return lines
	}
	if got := check(); len(got) != 0 {
		t.Fatalf("in order, and found: %q", got)
	}
	must(t, c, "COPY", "usher:room:{gone}:log", "keep:{gone}")
	must(t, c, "COPY", "usher:room:{gone}:i:0", "keep:{gone}i")
	if err := s.Delete(background(), "gone", true); err != nil {
		t.Fatal(err)
	}
	if got := check(); len(got) != 0 {
		t.Fatalf("after a deletion: %q", got)
	}
	must(t, c, "RENAME", "keep:{gone}", "usher:room:{gone}:log") // as after a crash in its midst
	must(t, c, "SADD", "usher:rooms", "gone", "never")
	must(t, c, "DEL", "usher:room:{lost}:h")
	must(t, c, "SET", "usher:room:{good}:s:77", "x")
	must(t, c, "SET", "usher:room:{good}:draw:5", "x")
	must(t, c, "SET", "usher:room:good", "x")
	must(t, c, "SET", "usher:room:{good}:plans", "x")
	must(t, c, "SREM", "usher:rooms", "good")
	got := strings.Join(check(), "\n")
	for _, want := range []string{
		"false usher:room:good: begins as usher's keys do",
		"false usher:room:{good}:plans: is no key of a room",
		"false usher:room:{good}:draw:5: is a string, a room needs a zset",
		"false usher:rooms: does not list room good",
		"true usher:room:{good}:s:77: is of tickets that the room has forgotten",
		"true usher:room:{gone}:h and 0 more", "true usher:rooms: lists room gone", "true usher:rooms: lists room never",
		"whose head is gone",
	} {
		if want == "true usher:room:{gone}:h and 0 more" {
			want = "was left when the room was deleted"
		}
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in\n%s", want, got)
		}
	}
	_, found, err := redis.CheckRooms(background(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if _, err := redis.Clean(background(), c, f); err != nil {
			t.Errorf("%v: %v", f, err)
		}
	}
	for _, line := range check() {
		if strings.HasPrefix(line, "true") {
			t.Errorf("left: %s", line)
		}
	}
	for _, key := range []string{"usher:room:good", "usher:room:{good}:plans", "usher:room:{good}:draw:5"} {
		if n, _ := must(t, c, "EXISTS", key).AsInt64(); n != 1 {
			t.Errorf("%s was removed", key)
		}
	}
	must(t, c, "DEL", "usher:room:{good}:draw:5")
	for i := range 5 {
		if v := enterRoom(t, s, "good", i); v.Created || v.Seq != uint64(i)+1 {
			t.Errorf("%+v", v)
		}
	}
	makeRoom(t, s, roomtest.Config("gone", 1))
	if v := enterRoom(t, s, "gone", 1); v.Seq != 6 || v.State != room.Active { // numbers are not given again
		t.Errorf("%+v", v)
	}
}
