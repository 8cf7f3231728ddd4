package web_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
	"github.com/ushergo/usher/web"
)

const adminToken = "an-admin-token-of-tests"

// site is a whole usher but for the command line: engine, rooms, keys and both listeners.
type site struct {
	t      testing.TB
	store  *flaky
	rooms  *room.Rooms
	keys   *token.Keys
	server *web.Server
	public *httptest.Server
	admin  *httptest.Server
	log    *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// flaky is a store whose answers a test can spoil.
type flaky struct {
	*memory.Engine
	mu     sync.Mutex
	before func(*room.Command) error // answers instead of the engine
	after  func(*room.Command) error // answers in the engine's place, once it has done the command
	sick   error
	stuck  bool // no command is answered within its time
}

func (f *flaky) spoil(before, after func(*room.Command) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

func (f *flaky) Do(ctx context.Context, id string, cmd *room.Command) (room.Result, error) {
	f.mu.Lock()
	before, after, stuck := f.before, f.after, f.stuck
	f.mu.Unlock()
	if stuck {
		<-ctx.Done()
		return room.Result{}, fmt.Errorf("%w: %w", room.ErrUnknown, ctx.Err())
	}
	if before != nil {
		if err := before(cmd); err != nil {
			return room.Result{}, err
		}
	}
	res, err := f.Engine.Do(ctx, id, cmd)
	if after != nil && err == nil {
		if err := after(cmd); err != nil {
			return room.Result{}, err
		}
	}
	return res, err
}

func (f *flaky) Health() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sick != nil {
		return f.sick
	}
	return f.Engine.Health()
}

// build makes a site with the given rooms. change may be nil.
func build(t testing.TB, change func(*web.Options), configs ...room.Config) *site {
	t.Helper()
	s := &site{t: t, log: &lockedBuffer{}}
	logger := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	reg := prometheus.NewRegistry()
	opts := web.Options{
		PublicURL: "http://usher.test", AdminToken: adminToken, Registry: reg, Logger: logger, NodeID: "node-1", Version: "test",
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}
	if change != nil {
		change(&opts)
	}
	if opts.Observer == nil {
		opts.Observer = web.NewObserver(reg, opts.Tracer)
	}
	engine, err := memory.Open(filepath.Join(t.TempDir(), "data"), memory.Options{NoSync: true, OnSync: opts.Observer.OnSync})
	if err != nil {
		t.Fatal(err)
	}
	s.store = &flaky{Engine: engine}
	if s.rooms, err = room.Open(context.Background(), s.store, room.Options{Logger: logger, Observer: opts.Observer}); err != nil {
		t.Fatal(err)
	}
	for _, c := range configs {
		if _, err := s.rooms.Configure(context.Background(), c, 0); err != nil {
			t.Fatal(err)
		}
	}
	if s.keys, err = token.Open(filepath.Join(t.TempDir(), "keys")); err != nil {
		t.Fatal(err)
	}
	opts.Rooms, opts.Keys = s.rooms, s.keys
	if s.server, err = web.New(opts); err != nil {
		t.Fatal(err)
	}
	s.public, s.admin = httptest.NewServer(s.server.Public()), httptest.NewServer(s.server.Admin())
	t.Cleanup(func() {
		s.server.Close()
		s.public.CloseClientConnections()
		s.public.Close()
		s.admin.Close()
		s.rooms.Close()
		_ = engine.Close()
	})
	return s
}

// config is a room that matches nothing, so that its API has no prefix.
func config(id string, active int64) room.Config {
	c := room.DefaultConfig(id)
	c.Capacity.Active = active
	return c
}

// reply is an answer, read whole.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) doc(t testing.TB) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(r.body, &m); err != nil {
		t.Fatalf("%d %q is not JSON: %v", r.status, r.body, err)
	}
	return m
}

func (r reply) code(t testing.TB) string {
	t.Helper()
	if ct := r.header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("%d: Content-Type %q, want application/problem+json: %s", r.status, ct, r.body)
	}
	code, _ := r.doc(t)["code"].(string)
	return code
}

func (r reply) secret(t testing.TB) string {
	t.Helper()
	s, _ := r.doc(t)["ticket"].(string)
	if s == "" {
		t.Fatalf("%d without a ticket: %s", r.status, r.body)
	}
	return s
}

func (r reply) cookie(name string) *http.Cookie {
	for _, line := range r.header["Set-Cookie"] {
		if c, err := http.ParseSetCookie(line); err == nil && c.Name == name {
			return c
		}
	}
	return nil
}

func (r reply) is(t testing.TB, status int, code string) {
	t.Helper()
	if r.status != status {
		t.Fatalf("status %d, want %d: %s", r.status, status, r.body)
	}
	if code != "" {
		if got := r.code(t); got != code {
			t.Fatalf("code %q, want %q: %s", got, code, r.body)
		}
	}
}

// Headers are given as pairs: name, value, name, value.
func request(t testing.TB, base, method, path, body string, pairs ...string) *http.Request {
	t.Helper()
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, base+path, rd)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] == "Host" {
			req.Host = pairs[i+1]
		} else {
			req.Header.Add(pairs[i], pairs[i+1])
		}
	}
	return req
}

var plain = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport:     &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
	Timeout:       60 * time.Second,
}

// send gives a request to usher, and holds the answer against the OpenAPI document.
func send(t testing.TB, req *http.Request) reply {
	t.Helper()
	r := exchange(t, req)
	checkContract(t, req, r)
	return r
}

func exchange(t testing.TB, req *http.Request) reply {
	t.Helper()
	resp, err := plain.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, b}
}

func (s *site) do(method, path, body string, pairs ...string) reply {
	s.t.Helper()
	return send(s.t, request(s.t, s.public.URL, method, path, body, pairs...))
}

func (s *site) api(method, path, body string, pairs ...string) reply {
	s.t.Helper()
	return send(s.t, request(s.t, s.admin.URL, method, path, body, append([]string{"Authorization", "Bearer " + adminToken}, pairs...)...))
}

// enter takes a ticket and returns its secret.
func (s *site) enter(id string) (reply, string) {
	s.t.Helper()
	r := s.do("POST", "/v1/rooms/"+id+"/enter", "")
	if r.status != 200 && r.status != 202 {
		s.t.Fatalf("enter: %d %s", r.status, r.body)
	}
	return r, r.secret(s.t)
}

func bearer(secret string) []string { return []string{"Authorization", "Bearer " + secret} }

// eventually asks again until f is true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// eventStream reads server-sent events.
type eventStream struct {
	t     testing.TB
	resp  *http.Response
	lines *bufio.Scanner
	retry string
}

func (s *site) stream(path string, pairs ...string) *eventStream {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s.t.Cleanup(cancel)
	req := request(s.t, s.public.URL, "GET", path, "", append([]string{"Accept", "text/event-stream"}, pairs...)...).WithContext(ctx)
	timer := time.AfterFunc(90*time.Second, cancel)
	s.t.Cleanup(func() { timer.Stop() })
	resp, err := (&http.Client{Transport: plain.Transport}).Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	return &eventStream{t: s.t, resp: resp, lines: bufio.NewScanner(resp.Body)}
}

// frame is one event: its id and its body. Comments are frames without a body.
type frame struct {
	id, comment string
	doc         map[string]any
}

// next reads one event; ok is false at the end of the stream.
func (e *eventStream) next() (f frame, ok bool) {
	e.t.Helper()
	some := false
	for e.lines.Scan() {
		line := e.lines.Text()
		switch {
		case line == "" && some:
			return f, true
		case line == "":
		case strings.HasPrefix(line, "id: "):
			f.id, some = line[4:], true
		case strings.HasPrefix(line, "retry: "):
			e.retry = line[7:]
		case strings.HasPrefix(line, ":"):
			f.comment, some = line, true
		case strings.HasPrefix(line, "data: "):
			some = true
			if err := json.Unmarshal([]byte(line[6:]), &f.doc); err != nil {
				e.t.Fatalf("event %q: %v", line, err)
			}
			checkEvent(e.t, f.doc)
		default:
			e.t.Fatalf("unexpected line %q", line)
		}
	}
	return f, false
}

// until reads events up to one of a type.
func (e *eventStream) until(kind string) frame {
	e.t.Helper()
	var seen []string
	for {
		f, ok := e.next()
		if !ok {
			e.t.Fatalf("the stream ended before a %s; seen: %v", kind, seen)
		}
		if f.doc["type"] == kind {
			return f
		}
		seen = append(seen, fmt.Sprint(f.doc["type"]))
	}
}
