package push_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/push"
)

func TestAWaiterIsToldAllThatConcernsHer(t *testing.T) {
	h, s := build(t, quick())
	l := listen(t)
	s.put(id(1), waiting(7))
	s.move(9)
	c := join(t, h, s, l, 1, nil)
	if r := c.until("rank"); r.body["place"] != 7.0 || r.body["waiting"] != 9.0 || r.body["status"] != "WAITING" {
		t.Errorf("%v", r.body)
	}
	c.until("stats")
	s.say("we begin soon")
	for {
		if m := c.until("stats"); m.body["message"] == "we begin soon" {
			break
		}
	}
	s.event(id(1), admitted)
	if a := c.until("admission"); a.body["action"] != "REDIRECT" || a.body["admission"].(map[string]any)["token"] != "x" {
		t.Errorf("%v", a.body)
	}
	s.event(id(1), push.Standing{State: push.Ended, Reason: "idle"})
	if a := c.until("timeout"); a.body["reason"] != "idle" {
		t.Errorf("%v", a.body)
	}
	if last := c.until("close"); last.text != "close 4500 0" {
		t.Error(last.text)
	}
	if _, ok := c.next(); ok {
		t.Error("it went on")
	}
	c.nc.Close()
	eventually(t, "forgotten", func() bool { return h.Conns() == 0 })
}

func TestWhoeverLeavesIsToldNothing(t *testing.T) {
	h, s := build(t, quick())
	s.put(id(1), waiting(1))
	c := join(t, h, s, listen(t), 1, nil)
	s.event(id(1), push.Standing{State: push.Ended, Reason: "left"})
	for {
		l, ok := c.next()
		if !ok {
			break
		}
		if l.topic == "timeout" {
			t.Error(l.text)
		}
	}
}

func TestAStoppedReaderHoldsUpNobody(t *testing.T) { // cases/push 1, 2
	o := quick()
	o.SlowWithin = 5 * time.Second // the others read as fast as a busy machine lets them
	h, s := build(t, o)
	l := listen(t)
	n, stopped := 200, 20
	if testing.Short() {
		n, stopped = 60, 6
	}
	var clients []*client
	for i := range n {
		s.put(id(i), waiting(i+1))
		clients = append(clients, join(t, h, s, l, i, nil))
	}
	long := strings.Repeat("x", 60<<10) // fills what the kernel keeps for the stopped ones
	for round := range 8 {
		want := fmt.Sprint("round ", round, " ")
		s.say(want + long)
		var wg sync.WaitGroup
		for _, c := range clients[stopped:] {
			wg.Go(func() {
				for {
					m, ok := c.next()
					if !ok {
						t.Error("a reader was closed")
						return
					}
					if m.topic == "stats" && strings.Contains(m.text, `"message":"`+want) {
						return
					}
				}
			})
		}
		wg.Wait()
	}
	if h.Figures().Slowed == 0 {
		t.Error("the stopped readers were not noticed: nothing was tested")
	}
	eventually(t, "the stopped ones cut", func() bool { return h.Conns() == n-stopped })
	if got := h.Figures().Closed[push.CodeSlow]; got != int64(stopped) {
		t.Errorf("%d closed as slow", got)
	}
}

func TestASlowReaderMissesNothingSure(t *testing.T) { // cases/push 4
	o := quick()
	o.SlowWithin = time.Minute
	h, s := build(t, o)
	l := listen(t)
	s.put(id(1), waiting(1))
	c := join(t, h, s, l, 1, nil)
	c.until("rank")
	c.nc.(*net.TCPConn).SetReadBuffer(4 << 10)
	// The kernel takes some megabytes on loopback before it says no.
	long := strings.Repeat("y", 200<<10)
	for i := 0; h.Figures().Slow == 0; i++ {
		s.say(fmt.Sprint(i, long))
		eventually(t, "written or slow", func() bool { return h.Figures().Slow > 0 || h.Figures().Frames > int64(i) })
		if i > 60 {
			t.Fatal("it never became slow")
		}
	}
	for i := range 500 {
		s.move(int64(i))
	}
	s.say("last word")
	s.event(id(1), admitted)
	c.nc.(*net.TCPConn).SetReadBuffer(1 << 20) // now it reads as fast as it can
	seen, said := 0, false
	for {
		m, ok := c.next()
		if !ok {
			t.Fatal("closed")
		}
		if m.topic == "stats" {
			seen++
			said = said || m.body["message"] == "last word"
		}
		if m.topic == "admission" {
			break
		}
	}
	if !said {
		t.Error("the operator's message was lost")
	}
	if seen > 300 {
		t.Errorf("%d stats were queued for a slow reader", seen)
	}
}

func TestNothingFallsBetweenLookAndAttach(t *testing.T) { // cases/push 11
	for _, step := range []string{"before head", "before look", "in look", "after look"} {
		t.Run(step, func(t *testing.T) {
			h, s := build(t, quick())
			l := listen(t)
			s.put(id(1), waiting(1))
			at := func(now string) {
				if now == step {
					s.event(id(1), admitted)
				}
			}
			if _, err := h.Accept(""); err != nil {
				t.Fatal(err)
			}
			server, peer := pair(t, l)
			defer peer.Close()
			at("before head")
			from := s.room.Head()
			at("before look")
			st, _ := s.Look(context.Background(), ticket(1))
			at("in look")
			at("after look")
			conn, err := h.Attach(s.room, ticket(1), st, from, push.Peer{Conn: server, Codec: lines{}, All: true})
			if err != nil {
				t.Fatal(err)
			}
			c := &client{t, conn, peer, newReader(peer)}
			c.until("admission")
		})
	}
}

func TestComingBack(t *testing.T) {
	h, s := build(t, quick())
	l := listen(t)
	s.put(id(1), waiting(1))
	c := join(t, h, s, l, 1, nil)
	before := c.until("rank").cursor
	s.say("one")
	s.event(id(1), admitted)
	seen := c.until("admission")
	c.nc.Close()

	// From before the admission: both are said again.
	c = join(t, h, s, l, 1, &before)
	if m := c.until("admission"); m.reset {
		t.Error("the gap was exact")
	}
	// From after it.
	s.say("two")
	last := c.until("stats").cursor
	for last.N < 3 {
		last = c.until("stats").cursor
	}
	c.nc.Close()
	c = join(t, h, s, l, 1, &last)
	s.event(id(1), push.Standing{State: push.Ended, Reason: "max"})
	for {
		m, _ := c.next()
		if m.topic == "admission" {
			t.Error("said again to who has seen it")
		}
		if m.topic == "timeout" {
			break
		}
	}
	_ = seen
	// From another life of the log: start again from what is true.
	s.put(id(2), admitted)
	c = join(t, h, s, l, 2, &push.Cursor{Epoch: 9, N: 9})
	if m := c.until("admission"); !m.reset {
		t.Error("a gap that nobody knows was passed over in silence")
	}
	if h.Figures().Reset != 1 {
		t.Errorf("%d resets", h.Figures().Reset)
	}
}

// The store may say "admitted" before its log does. Who comes back with a cursor of before has not seen it.
func TestAStoreAheadOfItsLog(t *testing.T) {
	h, s := build(t, quick())
	l := listen(t)
	s.put(id(1), admitted)
	c := join(t, h, s, l, 1, &push.Cursor{Epoch: 1, N: 0})
	c.until("stats")
	s.event(id(1), admitted)
	c.until("admission")
}

func TestRecallIsBounded(t *testing.T) {
	o := quick()
	o.Recall = 10
	h, s := build(t, o)
	l := listen(t)
	s.event(id(1), admitted) // n=1
	for i := range 10 {
		s.event(id(100+i), admitted)
	}
	c := join(t, h, s, l, 1, &push.Cursor{Epoch: 1, N: 0})
	if m := c.until("admission"); !m.reset {
		t.Error("what was forgotten was taken for known")
	}
	// n=1 was forgotten, and everything after it is remembered.
	c = join(t, h, s, l, 1, &push.Cursor{Epoch: 1, N: 1})
	if m := c.until("stats"); m.reset {
		t.Error("what is remembered was not")
	}
}

func TestAfterALostLogEverybodyIsLookedAt(t *testing.T) { // cases/push 9
	h, s := build(t, quick())
	l := listen(t)
	s.put(id(1), waiting(1))
	s.put(id(2), waiting(2))
	c, d := join(t, h, s, l, 1, nil), join(t, h, s, l, 2, nil)
	c.until("rank")
	d.until("rank")
	s.put(id(1), admitted) // nobody told us
	s.put(id(2), waiting(1))
	s.mu.Lock()
	s.broken = true
	s.mu.Unlock()
	s.room.Reset(push.Cursor{Epoch: 1, N: 50})
	eventually(t, "asked in vain", func() bool { return h.Figures().Looks >= 2 })
	s.mu.Lock()
	s.broken = false
	s.mu.Unlock()
	c.until("admission")
	for d.until("rank").body["place"] != 1.0 {
	}
}

func TestDroppedRoom(t *testing.T) {
	h, s := build(t, quick())
	s.put(id(1), waiting(1))
	c := join(t, h, s, listen(t), 1, nil)
	h.Drop(s.room)
	if m := c.until("close"); m.text != "close 4501 0" {
		t.Error(m.text)
	}
}
