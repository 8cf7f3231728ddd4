package sse_test

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/push"
	"github.com/ushergo/usher/push/sse"
)

type room struct {
	mu sync.Mutex
	st push.Standing
	n  uint64
	at *push.Room
}

var mine = push.Ticket{Seq: 1, ID: push.ID{1}, Name: "mine"}

func (r *room) Look(context.Context, push.Ticket) (push.Standing, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.st, nil
}
func (r *room) Rank(push.Spot) push.Rank { return push.Rank{Place: 3, Waiting: 5} }
func (r *room) Stats() push.Stats        { return push.Stats{Waiting: 5, State: "open"} }
func (r *room) Heard(push.Ticket)        {}
func (r *room) Beat() time.Duration      { return 50 * time.Millisecond }

func (r *room) become(st push.Standing) {
	r.mu.Lock()
	r.st = st
	r.n++
	n := r.n
	r.mu.Unlock()
	c := push.Change{ID: mine.ID, N: n, Type: push.ChangeAdmitted}
	if st.State == push.Ended {
		c.Type, c.Reason = push.ChangeEnded, st.Reason
	}
	r.at.Events([]push.Change{c}, push.Cursor{Epoch: 1, N: n}, false)
}

// serve is a server of one ticket's events; kind is h1, tls or h2.
func serve(t *testing.T, kind string, o push.Options) (*push.Hub, *room, *httptest.Server) {
	t.Helper()
	o.StatsEvery, o.RankEvery = 20*time.Millisecond, 20*time.Millisecond
	hub := push.New(o)
	r := &room{st: push.Standing{State: push.Waiting, Spot: push.Spot{Pos: 3}}}
	r.at = hub.Room("premiere", func(*push.Room) (push.Source, push.Cursor) { return r, push.Cursor{Epoch: 1} })
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if after, err := hub.Accept(""); err != nil {
			sse.Shed(w, after)
			return
		}
		c := sse.Caller{Room: r.at, Ticket: mine, From: r.at.Head()}
		if id := req.Header.Get("Last-Event-ID"); id != "" {
			cursor, err := push.ParseCursor(id)
			if err != nil {
				t.Error(err)
			}
			c.After = &cursor
		}
		c.Standing, _ = r.Look(req.Context(), mine)
		if err := sse.Serve(hub, w, req, c); err != nil {
			hub.Forget("")
			sse.Shed(w, time.Second)
		}
	}))
	switch kind {
	case "h1":
		s.Start()
	default:
		s.EnableHTTP2 = kind == "h2"
		s.StartTLS()
	}
	t.Cleanup(func() {
		hub.Close()
		s.CloseClientConnections()
		s.Close()
	})
	return hub, r, s
}

type stream struct {
	t    *testing.T
	resp *http.Response
	br   *bufio.Reader
}

func open(t *testing.T, s *httptest.Server, last string) *stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	t.Cleanup(cancel)
	req, _ := http.NewRequestWithContext(ctx, "GET", s.URL, nil)
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return &stream{t, resp, bufio.NewReader(resp.Body)}
}

// until reads lines up to one with a text; it returns all of them.
func (s *stream) until(text string) string {
	s.t.Helper()
	var seen strings.Builder
	for {
		line, err := s.br.ReadString('\n')
		seen.WriteString(line)
		if strings.Contains(line, text) {
			return seen.String()
		}
		if err != nil {
			s.t.Fatalf("ended before %s: %s", text, seen.String())
		}
	}
}

func TestStream(t *testing.T) {
	for _, kind := range []string{"h1", "tls", "h2"} {
		t.Run(kind, func(t *testing.T) {
			hub, r, s := serve(t, kind, push.Options{})
			e := open(t, s, "")
			if want := map[string]int{"h1": 1, "tls": 1, "h2": 2}[kind]; e.resp.ProtoMajor != want {
				t.Fatal(e.resp.Proto)
			}
			h := e.resp.Header
			if e.resp.StatusCode != 200 || h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-store, no-transform" || h.Get("X-Accel-Buffering") != "no" {
				t.Fatal(e.resp.StatusCode, h)
			}
			if first := e.until(`"place":3`); !strings.HasPrefix(first, "retry: ") || !strings.Contains(first, "id: 1.0\n") {
				t.Errorf("%q", first)
			}
			e.until(`"type":"stats"`)
			e.until(":") // a beat
			r.become(push.Standing{State: push.Admitted, Admission: []byte(`{"token":"x"}`)})
			e.until(`"token":"x"`)
			// Whoever comes back from before it has it again; from after it, not.
			e.resp.Body.Close()
			e = open(t, s, "1.0")
			e.until(`"token":"x"`)
			e = open(t, s, "1.1")
			r.become(push.Standing{State: push.Ended, Reason: "max"})
			if seen := e.until(`"reason":"max"`); strings.Contains(seen, "token") {
				t.Error("told twice")
			}
			if _, err := e.br.ReadString(0); err == nil {
				t.Error("it went on")
			}
			for end := time.Now().Add(60 * time.Second); hub.Conns() > 0; time.Sleep(2 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d connections left", hub.Conns())
				}
			}
		})
	}
}

// What an unknown cursor may have missed is not passed over in silence.
func TestReset(t *testing.T) {
	_, _, s := serve(t, "h1", push.Options{})
	e := open(t, s, "7.7")
	if seen := e.until(`"type":"rank"`); !strings.Contains(seen, "event: reset\ndata: {\"type\":\"reset\"}\n\n") {
		t.Errorf("%q", seen)
	}
}

func TestShedding(t *testing.T) { // cases/push 19
	_, _, s := serve(t, "h1", push.Options{MaxConns: 1})
	open(t, s, "").until("rank")
	e := open(t, s, "")
	if e.resp.StatusCode != 200 || e.resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Error(e.resp.StatusCode)
	}
	if text, _ := e.br.ReadString(0); !strings.HasPrefix(text, "retry: ") || strings.Contains(text, "data") {
		t.Errorf("%q", text)
	}
}

func TestDrain(t *testing.T) { // cases/push 15
	for _, kind := range []string{"h1", "h2"} {
		t.Run(kind, func(t *testing.T) {
			hub, _, s := serve(t, kind, push.Options{})
			e := open(t, s, "")
			e.until("rank")
			done := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			go func() { done <- hub.Drain(ctx, 100) }()
			if seen := e.until("RECONNECT_SOON"); !strings.Contains(seen, "retry: ") {
				t.Errorf("%q", seen)
			}
			_, _ = e.br.ReadString(0)
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
