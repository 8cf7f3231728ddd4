package push_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/push"
)

func TestCaps(t *testing.T) {
	o := quick()
	o.MaxConns, o.MaxPerTicket, o.MaxPerAddress, o.AcceptBurst, o.AcceptPerSecond = 6, 2, 3, 100, 1
	h, s := build(t, o)
	l := listen(t)
	for i := range 9 {
		s.put(id(i), waiting(i+1))
	}
	join(t, h, s, l, 1, nil)
	join(t, h, s, l, 1, nil)
	if _, err := tryJoin(t, h, s, l, 1, nil); !errors.Is(err, push.ErrTicket) {
		t.Errorf("third of a ticket: %v", err)
	}
	for range 3 {
		if _, err := h.Accept("192.0.2.1"); err != nil {
			t.Fatal(err)
		}
	}
	if after, err := h.Accept("192.0.2.1"); !errors.Is(err, push.ErrAddress) || after <= 0 {
		t.Errorf("fourth of an address: %v", err)
	}
	join(t, h, s, l, 2, nil)
	if _, err := h.Accept(""); !errors.Is(err, push.ErrFull) {
		t.Errorf("seventh: %v", err)
	}
	for range 3 {
		h.Forget("192.0.2.1")
	}
	if _, err := h.Accept("192.0.2.1"); err != nil {
		t.Error(err)
	}
}

func TestAcceptsPassABucket(t *testing.T) { // cases/push 14
	o := quick()
	o.AcceptBurst, o.AcceptPerSecond, o.MaxConns = 50, 100, 1<<20
	h, _ := build(t, o)
	start := time.Now()
	ok := 0
	for time.Since(start) < 200*time.Millisecond {
		if _, err := h.Accept(""); err == nil {
			ok++
		} else if !errors.Is(err, push.ErrBusy) {
			t.Fatal(err)
		}
	}
	if most := 51 + int(time.Since(start).Seconds()*100); ok < 50 || ok > most {
		t.Errorf("%d taken on, at most %d", ok, most)
	}
}

func TestConnectionsLeaveNothingBehind(t *testing.T) { // cases/push 5, 7
	o := quick()
	o.AcceptBurst, o.AcceptPerSecond = 1<<20, 1<<20
	h, s := build(t, o)
	l := listen(t)
	s.put(id(1), waiting(1))
	cycle := func(n int) {
		for i := range n {
			s.put(id(i%100), waiting(i+1))
			c := join(t, h, s, l, i%100, nil)
			c.nc.Close()
			if i%50 == 49 {
				eventually(t, "closed", func() bool { return h.Conns() == 0 })
			}
		}
	}
	cycle(200)
	base := runtime.NumGoroutine()
	n := 1000
	if testing.Short() {
		n = 200
	}
	cycle(n)
	eventually(t, "all closed", func() bool { return h.Conns() == 0 })
	eventually(t, "no goroutines left", func() bool { return runtime.NumGoroutine() <= base+2 })
}

func TestChurnDuringBroadcast(t *testing.T) { // cases/push 3
	o := quick()
	o.AcceptBurst, o.AcceptPerSecond, o.SlowWithin = 1<<20, 1<<20, 50*time.Millisecond
	h, s := build(t, o)
	l := listen(t)
	for i := range 64 {
		s.put(id(i), waiting(i+1))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		long := strings.Repeat("z", 100<<10)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				s.say(fmt.Sprint(i%7, long))
				s.event(id(i%64), admitted)
				s.put(id(i%64), waiting(1))
			}
			time.Sleep(time.Millisecond)
		}
	})
	var mu sync.Mutex
	times := 100
	if testing.Short() {
		times = 30
	}
	for w := range 4 {
		wg.Go(func() {
			for i := range times {
				mu.Lock() // the listener pairs one at a time
				c, err := tryJoin(t, h, s, l, (w*16+i)%64, nil)
				mu.Unlock()
				if err != nil {
					continue
				}
				switch i % 3 {
				case 0:
					c.nc.Close()
				case 1:
					_, _ = io.CopyN(io.Discard, c.nc, 1000)
					c.nc.Close()
				} // the third does not read
			}
			if w == 0 {
				close(stop)
			}
		})
	}
	wg.Wait()
	eventually(t, "every stopped one cut", func() bool { s.say(fmt.Sprint(time.Now(), strings.Repeat("w", 300<<10))); return h.Conns() < 8 })
}

func TestDrain(t *testing.T) { // cases/push 15
	o := quick()
	h, s := build(t, o)
	l := listen(t)
	const n = 100
	var clients []*client
	for i := range n {
		s.put(id(i), waiting(i+1))
		clients = append(clients, join(t, h, s, l, i, nil))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	done := make(chan error, 1)
	start := time.Now()
	go func() { done <- h.Drain(ctx, 200) }()
	var mu sync.Mutex
	slots := map[string]bool{}
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			soon := line{}
			for {
				m, ok := c.next()
				if !ok {
					t.Error("closed without a word")
					return
				}
				if m.body["type"] == "RECONNECT_SOON" {
					soon = m
				}
				if m.topic == "close" {
					if !strings.HasPrefix(m.text, "close 1012 ") || soon.body["reason"] != "SERVER_SHUTDOWN" {
						t.Errorf("%s after %v", m.text, soon.body)
					}
					mu.Lock()
					slots[m.text] = true
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	if took := time.Since(start); took < 400*time.Millisecond {
		t.Errorf("100 connections at 200 a second left in %v", took)
	}
	if err := <-done; err != nil { // though no client has closed its side
		t.Error(err)
	}
	if len(slots) < n/2 {
		t.Errorf("%d slots for %d", len(slots), n)
	}
	if _, err := h.Accept(""); !errors.Is(err, push.ErrDraining) {
		t.Error(err)
	}
}

func TestPingFlood(t *testing.T) { // cases/push 8
	h, s := build(t, quick())
	s.put(id(1), waiting(1))
	c := join(t, h, s, listen(t), 1, nil)
	start := time.Now()
	for range 10_000 {
		c.conn.Pong([]byte("p"))
	}
	allowed := 1 + int(time.Since(start)/time.Second)
	c.until("pong")
	s.event(id(1), push.Standing{State: push.Ended, Reason: "max"}) // nothing is said after the end
	pongs := 1
	for {
		m, ok := c.next()
		if !ok {
			break
		}
		if m.topic == "pong" {
			pongs++
		}
	}
	if pongs > allowed+1 {
		t.Errorf("%d pongs", pongs)
	}
}

func TestSilentPeerIsCut(t *testing.T) { // cases/push 5
	synctest.Test(t, func(t *testing.T) {
		h := push.New(push.Options{SilentAfter: time.Minute})
		defer h.Close()
		s := &source{standing: map[push.ID]push.Standing{id(1): waiting(1)}, heard: map[push.ID]int{}, beat: 15 * time.Second, stats: push.Stats{State: "open"}}
		s.room = h.Room("r", func(r *push.Room) (push.Source, push.Cursor) { s.room = r; return s, push.Cursor{Epoch: 1} })
		if _, err := h.Accept(""); err != nil {
			t.Fatal(err)
		}
		server, peer := net.Pipe()
		defer peer.Close()
		conn, err := h.Attach(s.room, ticket(1), waiting(1), s.room.Head(), push.Peer{Conn: server, Codec: lines{}, All: true, Pings: true})
		if err != nil {
			t.Fatal(err)
		}
		c := &client{t, conn, peer, newReader(peer)}
		for range 10 { // who answers stays, however long
			c.until("beat")
			conn.Heard()
		}
		last := time.Now()
		s.mu.Lock()
		if s.heard[id(1)] == 0 {
			t.Error("not noted as present")
		}
		s.mu.Unlock()
		if m := c.until("close"); m.text != "close 4010 0" {
			t.Error(m.text)
		}
		if took := time.Since(last); took < time.Minute || took > 80*time.Second {
			t.Errorf("cut after %v of silence, not after a minute", took)
		}
	})
}
