// Package browsertest drives push from outside: with the real STOMP client in Node, and with usher.js in a real
// Chromium, against a whole usher.
package browsertest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/internal/nodetest"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
	"github.com/ushergo/usher/web"
)

const adminToken = "an-admin-token-of-tests"

// need skips where tooling is absent.
func need(t *testing.T, browser bool) {
	t.Helper()
	nodetest.Need(t, browser, "@stomp/stompjs", "playwright-core")
}

// site is a whole usher that can be killed and come back, on another port: its old one may be somebody else's by then.
type site struct {
	t      *testing.T
	dir    string
	addr   string
	mu     sync.Mutex
	engine *memory.Engine
	rooms  *room.Rooms
	server *web.Server
	public *http.Server
	admin  *httptest.Server
	inside []room.Ref // who holds the slots
	conns  map[net.Conn]struct{}
}

func start(t *testing.T, grace time.Duration) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), conns: map[net.Conn]struct{}{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	s.up(l)
	c := room.DefaultConfig("premiere")
	c.Capacity.Active = 1
	c.Queue.Grace = room.Duration(grace)
	c.Session.Claim = room.Duration(20 * time.Minute)
	c.Session.Idle = room.Duration(20 * time.Minute)
	if _, err := s.rooms.Configure(t.Context(), c, 0); err != nil {
		t.Fatal(err)
	}
	rm, _ := s.rooms.Get(t.Context(), "premiere")
	v, err := rm.Enter(t.Context(), room.Ref{}, [16]byte{})
	if err != nil {
		t.Fatal(err)
	}
	s.inside = append(s.inside, v.Ref)
	t.Cleanup(s.kill)
	return s
}

func (s *site) up(l net.Listener) {
	s.t.Helper()
	must := func(err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	var err error
	s.engine, err = memory.Open(filepath.Join(s.dir, "data"), memory.Options{})
	must(err)
	s.rooms, err = room.Open(context.Background(), s.engine, room.Options{})
	must(err)
	keys, err := token.Open(filepath.Join(s.dir, "keys"))
	must(err)
	s.server, err = web.New(web.Options{Rooms: s.rooms, Keys: keys, PublicURL: "http://" + s.addr, AdminToken: adminToken})
	must(err)
	api := s.server.Public()
	mux := http.NewServeMux()
	mux.Handle("/", api)
	mux.Handle("/static/", http.StripPrefix("/static/", http.FileServer(http.Dir("../../web/static"))))
	mux.Handle("/stomp/", http.StripPrefix("/stomp/", http.FileServer(http.Dir("node_modules/@stomp/stompjs/bundles"))))
	mux.HandleFunc("/stomp-checks.mjs", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "stomp-checks.mjs") })
	mux.Handle("/spa/", http.StripPrefix("/spa/", http.FileServer(http.Dir("../../examples/spa"))))
	mux.HandleFunc("/blank", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!doctype html><title>x</title><script src=/static/usher.js></script>"))
	})
	s.mu.Lock()
	s.public = &http.Server{Handler: mux, ConnState: func(c net.Conn, st http.ConnState) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if st == http.StateNew {
			s.conns[c] = struct{}{}
		}
	}}
	public := s.public
	s.mu.Unlock()
	s.admin = httptest.NewServer(s.server.Admin())
	go func() { _ = public.Serve(l) }()
}

// kill cuts everything as a crash would, without a word to anybody.
func (s *site) kill() {
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close()
	}
	clear(s.conns)
	public := s.public
	s.mu.Unlock()
	_ = public.Close()
	s.admin.Close()
	s.server.Close()
	s.rooms.Close()
	_ = s.engine.Close()
}

// back starts again on the same data.
func (s *site) back() {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.addr = l.Addr().String()
	s.up(l)
}

// free lets the one inside go.
func (s *site) free() {
	s.t.Helper()
	rm, err := s.rooms.Get(s.t.Context(), "premiere")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, ref := range s.inside {
		if _, err := rm.Leave(s.t.Context(), ref); err != nil {
			s.t.Error(err)
		}
	}
	s.inside = nil
}

// widen lets everybody in.
func (s *site) widen() {
	s.t.Helper()
	c := room.DefaultConfig("premiere")
	c.Capacity.Active = 100
	c.Session.Claim = room.Duration(20 * time.Minute)
	if _, err := s.rooms.Configure(s.t.Context(), c, 0); err != nil {
		s.t.Error(err)
	}
}

// say has the operator say something new.
func (s *site) say() {
	s.t.Helper()
	rm, err := s.rooms.Get(s.t.Context(), "premiere")
	if err != nil {
		s.t.Fatal(err)
	}
	if err := rm.SetState(s.t.Context(), room.StateOpen, time.Now().String()); err != nil {
		s.t.Error(err)
	}
}

// node runs a script, whose wishes on fulfils or asked answers.
func node(t *testing.T, on map[string]func(), asked map[string]func() string, args ...string) {
	t.Helper()
	nodetest.Run(t, nodetest.Script{Args: args, Limit: 6 * time.Minute, Wish: func(do string) string {
		f, ask := on[do], asked[do]
		switch {
		case f != nil:
			f()
		case ask != nil:
			return ask()
		default:
			t.Errorf("%s wishes for %q, which nobody knows", args[0], do)
		}
		return "{}"
	}})
}

// grace of the STOMP client's room: a heart-beat each 5 s, and time for a slow machine to connect whom it has let enter.
const grace = 20 * time.Second

func TestStompJS(t *testing.T) { // cases/push 20, 21
	need(t, false)
	t.Parallel()
	s := start(t, grace)
	node(t, map[string]func(){"free": s.free}, nil, "stomp-node.mjs", "http://"+s.addr, s.admin.URL, adminToken)
}

func TestStompJSInChromium(t *testing.T) { // cases/push 18, 20, 21
	need(t, true)
	t.Parallel()
	s := start(t, grace)
	node(t, map[string]func(){"free": s.free}, nil, "stomp-chromium.mjs", "http://"+s.addr, s.admin.URL, adminToken)
}

// wishes are what the scripts may want of a site behind a proxy.
func (s *site) wishes(p *proxy) (map[string]func(), map[string]func() string) {
	return map[string]func(){
			"free": s.widen, "kill": s.kill, "back": func() { s.back(); p.lead(s.addr) }, "news": s.say,
			"all":           func() { p.set("", false) },
			"no ws":         func() { p.set("/v1/stomp", false) },
			"no sse":        func() { p.set("/v1/stomp /events", false) },
			"blackhole":     func() { p.set("/v1/stomp", true) },
			"blackhole all": func() { p.set("/v1/stomp /events", true) },
			"stall":         p.stall,
		}, map[string]func() string{
			"conns": func() string {
				req, _ := http.NewRequest("GET", s.admin.URL+"/admin/v1/nodes", nil)
				req.Header.Set("Authorization", "Bearer "+adminToken)
				resp, err := (&http.Client{Timeout: 20 * time.Second}).Do(req)
				if err != nil {
					return "{}"
				}
				defer resp.Body.Close()
				var doc struct{ Nodes []struct{ Streams int } }
				if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil || len(doc.Nodes) == 0 {
					return "{}"
				}
				return fmt.Sprintf(`{"conns":%d}`, doc.Nodes[0].Streams)
			},
		}
}

// script runs one of the scripts against a usher of its own.
func script(t *testing.T, name string) {
	need(t, true)
	t.Parallel()
	s := start(t, 5*time.Minute)
	p := between(t, s.addr)
	on, asked := s.wishes(p)
	node(t, on, asked, name, "http://"+p.addr)
}

func TestLadder(t *testing.T) { script(t, "ladder.mjs") }

func TestTabs(t *testing.T) { script(t, "tabs.mjs") }

func TestCrashes(t *testing.T) { script(t, "crash.mjs") }
