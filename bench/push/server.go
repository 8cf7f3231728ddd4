package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ushergo/usher/push"
	"github.com/ushergo/usher/push/stomp"
)

// server is what each kind offers.
type server interface {
	http.Handler
	broadcast(round int)
	conns() int
}

func serveKind(kind string) error {
	var s server
	switch kind {
	case "usher":
		s = newUsher()
	case "gorilla", "gorilla-chat":
		s = newGorilla(kind == "gorilla-chat")
	case "centrifuge", "centrifuge-tuned":
		c, err := newCentrifuge(kind == "centrifuge-tuned")
		if err != nil {
			return err
		}
		s = c
	default:
		return fmt.Errorf("no such kind: %s", kind)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(l, s) }()
	out := json.NewEncoder(os.Stdout)
	say := func(addr string) error {
		return out.Encode(state{Addr: addr, RSS: rss(), CPU: cpu(), Conns: s.conns()})
	}
	if err := say(l.Addr().String()); err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for round := 0; in.Scan(); {
		var word string
		if err := json.Unmarshal(in.Bytes(), &word); err != nil {
			return err
		}
		switch word {
		case "state":
			at := cpu()
			runtime.GC()
			debug.FreeOSMemory()
			if err := out.Encode(state{RSS: rss(), CPU: at, Conns: s.conns()}); err != nil {
				return err
			}
			continue
		case "broadcast":
			round++
			s.broadcast(round)
		case "cut":
			s.(*usher).cut()
		default:
			if rate, ok := strings.CutPrefix(word, "drain "); ok {
				n, _ := strconv.Atoi(rate)
				go func() { _ = s.(*usher).hub.Drain(context.Background(), n) }()
			}
		}
		if err := say(""); err != nil {
			return err
		}
	}
	return nil
}

func cpu() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	us := func(t syscall.Timeval) float64 { return float64(t.Sec)*1e6 + float64(t.Usec) }
	return us(u.Utime) + us(u.Stime)
}

// rss is VmRSS in KB.
func rss() float64 {
	b, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(b), "\n") {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kb
		}
	}
	return 0
}

// usher is push and push/stomp, with a room of a hundred thousand who stand still.
type usher struct {
	*stomp.Handler
	hub   *push.Hub
	room  *push.Room
	ids   atomic.Uint64
	round atomic.Int64
}

func newUsher() *usher {
	u := &usher{hub: push.New(push.Options{MaxConns: 100_000, AcceptPerSecond: 1 << 20, AcceptBurst: 1 << 20, MaxPerAddress: 1 << 20})}
	u.room = u.hub.Room("premiere", func(*push.Room) (push.Source, push.Cursor) { return (*standing)(u), push.Cursor{Epoch: 1} })
	u.Handler = &stomp.Handler{Hub: u.hub, Caller: func(context.Context, *http.Request, stomp.Connect) (stomp.Caller, error) {
		n := u.ids.Add(1)
		t := push.Ticket{Seq: n, Name: fmt.Sprintf("%026d", n)}
		copy(t.ID[:], t.Name[10:])
		return stomp.Caller{Room: u.room, Ticket: t, From: u.room.Head(), Standing: push.Standing{State: push.Waiting, Spot: push.Spot{Pos: n}}}, nil
	}}
	return u
}

func (u *usher) ServeHTTP(w http.ResponseWriter, r *http.Request) { u.Serve(w, r, "") }
func (u *usher) conns() int                                       { return u.hub.Conns() }

// broadcast is an operator's message: one frame for everybody, at once.
func (u *usher) broadcast(round int) {
	u.round.Store(int64(round))
	u.room.Events(nil, push.Cursor{Epoch: 1, N: uint64(round)}, true)
}

// cut ends every connection without a word.
func (u *usher) cut() { u.hub.Drop(u.room) }

// standing is the source.
type standing usher

func (s *standing) Look(context.Context, push.Ticket) (push.Standing, error) {
	return push.Standing{State: push.Waiting}, nil
}
func (s *standing) Rank(p push.Spot) push.Rank {
	return push.Rank{Place: int64(p.Pos), Waiting: 100_000}
}
func (s *standing) Stats() push.Stats {
	n := (*usher)(s).round.Load()
	return push.Stats{Waiting: 100_000, Active: 600, State: "open", Message: fmt.Sprint("round ", n), At: n}
}
func (s *standing) Heard(push.Ticket)   {}
func (s *standing) Beat() time.Duration { return time.Hour } // idle is idle
