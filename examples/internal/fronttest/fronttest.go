// Package fronttest holds a web server that asks usher's check to what a room promises. The examples with nginx
// and Caddy run it against the real programs, with their configurations as they are but for the addresses.
package fronttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
	"github.com/ushergo/usher/web"
)

// Site is usher and an origin, for a server to stand in front of.
type Site struct {
	Usher, Origin string // addresses, host:port
	Front         string // address of the server in front
	Particular    bool   // the server believes only answers that name the room

	t      *testing.T
	server *httptest.Server // usher
	rooms  *room.Rooms
	keys   *token.Keys

	stranger atomic.Bool // another program answers in usher's place

	mu    sync.Mutex
	seen  []*http.Request
	conns int
}

// Start runs usher with the example's usher.yaml and one session, and an origin.
func Start(t *testing.T) *Site {
	t.Helper()
	cfg, err := config.Load("usher.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := &Site{t: t}
	engine, err := memory.Open(t.TempDir(), memory.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	if s.rooms, err = room.Open(context.Background(), engine, room.Options{}); err != nil {
		t.Fatal(err)
	}
	rc := cfg.Rooms[0].RoomConfig()
	rc.Capacity.Active = 1
	if _, err := s.rooms.ApplyFile(context.Background(), rc); err != nil {
		t.Fatal(err)
	}
	if s.keys, err = token.Open(filepath.Join(t.TempDir(), "keys")); err != nil {
		t.Fatal(err)
	}
	handler, err := web.New(web.Options{Rooms: s.rooms, Keys: s.keys, PublicURL: cfg.Public.URL, TrustedProxies: cfg.TrustedProxies, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		t.Fatal(err)
	}
	public := handler.Public()
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.stranger.Load() {
			fmt.Fprint(w, "not usher")
			return
		}
		public.ServeHTTP(w, r)
	}))
	origin := httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	origin.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.mu.Lock()
			s.conns++
			s.mu.Unlock()
		}
	}
	origin.Start()
	t.Cleanup(func() {
		handler.Close()
		s.server.Close()
		origin.Close()
		s.rooms.Close()
		_ = engine.Close()
	})
	s.Usher, s.Origin = strings.TrimPrefix(s.server.URL, "http://"), strings.TrimPrefix(origin.URL, "http://")
	return s
}

// serve is the origin: it echoes what is upgraded, and tells what it was asked for.
func (s *Site) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, r.Clone(context.Background()))
	s.mu.Unlock()
	if r.Header.Get("Upgrade") != "" {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			s.t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(conn, rw)
		return
	}
	n, _ := io.Copy(io.Discard, r.Body)
	fmt.Fprintf(w, "origin %s %s %d", r.Method, r.URL.Path, n)
}

func (s *Site) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

func (s *Site) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns
}

func (s *Site) last() *http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[len(s.seen)-1]
}

// client is a browser whose every connection goes to the server in front.
func (s *Site) client() *http.Client {
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return &http.Client{Jar: jar, Timeout: 20 * time.Second, Transport: s.transport()}
}

func (s *Site) transport() *http.Transport {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", s.Front)
	}}
	s.t.Cleanup(tr.CloseIdleConnections)
	return tr
}

type answer struct {
	*http.Response
	text string
	at   string // path and query, after redirects
}

func (s *Site) do(c *http.Client, method, path, body string, header ...string) answer {
	s.t.Helper()
	req, err := http.NewRequest(method, "http://tickets.test"+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header[header[i]] = append(req.Header[header[i]], header[i+1]) // spelled as given
	}
	resp, err := c.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{resp, string(b), resp.Request.URL.RequestURI()}
}

func page(more ...string) []string {
	return append([]string{"Accept", "text/html,*/*;q=0.8", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Sec-Fetch-Site", "none"}, more...)
}

// Run tests the server in front.
func (s *Site) Run() {
	t := s.t
	alice, bob := s.client(), s.client()

	t.Run("the first is let in, over the waiting page", func(t *testing.T) {
		a := s.do(alice, "GET", "/premiere/seats?row=4&q=%2F", "", page()...)
		if a.StatusCode != 200 || a.text != "origin GET /premiere/seats 0" || a.at != "/premiere/seats?row=4&q=%2F" {
			t.Fatalf("%d at %s: %.300s", a.StatusCode, a.at, a.text)
		}
		in := s.last()
		adm, err := s.keys.Verify("premiere", in.Header.Get("X-Usher-Token"), time.Now())
		if err != nil || in.Header.Get("X-Usher-Room") != "premiere" || in.Header.Get("X-Usher-Ticket-Id") != adm.TicketID {
			t.Errorf("%v: the origin saw %v", err, in.Header)
		}
		if in.RequestURI != "/premiere/seats?row=4&q=%2F" || in.Host != "tickets.test" {
			t.Errorf("the origin was asked for %s of %s", in.RequestURI, in.Host)
		}
	})

	t.Run("the ticket stays between visitor and usher", func(t *testing.T) {
		a := s.do(alice, "GET", "/premiere", "", "Cookie", "mine=1", "Usher-Ticket", "x")
		in := s.last()
		if a.StatusCode != 200 || strings.Contains(strings.Join(in.Header["Cookie"], ";"), "usher-premiere=") || in.Header.Get("Usher-Ticket") != "" {
			t.Errorf("%d: %v", a.StatusCode, in.Header)
		}
		if !strings.Contains(in.Header.Get("Cookie"), "mine=1") {
			t.Errorf("the other cookies: %q", in.Header["Cookie"])
		}
	})

	t.Run("the second waits", func(t *testing.T) {
		a := s.do(bob, "GET", "/premiere", "", page()...)
		if a.StatusCode != 202 || a.at != "/wait/premiere?next=%2Fpremiere" || a.Header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%d at %s %v", a.StatusCode, a.at, a.Header)
		}
		if a := s.do(bob, "GET", "/.usher/v1/rooms/premiere/status", ""); a.StatusCode != 200 || !strings.Contains(a.text, `"state":"waiting"`) {
			t.Errorf("%d %s", a.StatusCode, a.text)
		}
		if a := s.do(bob, "GET", "/wait/premiere?next=%2Fpremiere", "", page()...); a.StatusCode != 202 {
			t.Errorf("%d", a.StatusCode)
		}
	})

	t.Run("scripts are told, not redirected", func(t *testing.T) { // cases/room 10
		for _, c := range []*http.Client{bob, s.client()} {
			a := s.do(c, "GET", "/premiere/api", "", "Accept", "application/json, text/plain, */*")
			if a.StatusCode != 401 || !strings.HasPrefix(a.Header.Get("Content-Type"), "application/problem+json") || a.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%d %v %s", a.StatusCode, a.Header, a.text)
			}
		}
	})

	t.Run("a form of a stranger leads to the room, not to itself", func(t *testing.T) {
		c := s.client()
		c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		a := s.do(c, "POST", "/premiere/buy", "seat=4", page("Content-Type", "application/x-www-form-urlencoded")...)
		if to := a.Header.Get("Location"); a.StatusCode != 303 || to != "http://tickets.test/wait/premiere" {
			t.Errorf("%d %q", a.StatusCode, to)
		}
	})

	t.Run("no spelling of the path slips past", s.spellings) // cases/room 12
	t.Run("nobody speaks for usher", func(t *testing.T) { s.forgery(t, alice) })

	t.Run("no cookies, no loop", func(t *testing.T) { // cases/room 11
		c := s.client()
		c.Jar = nil
		hops := 0
		c.CheckRedirect = func(*http.Request, []*http.Request) error { hops++; return nil }
		if a := s.do(c, "GET", "/premiere", "", page()...); hops > 3 || a.StatusCode == 200 {
			t.Errorf("%d hops, then %d", hops, a.StatusCode)
		}
	})

	t.Run("forty requests are one visitor", func(t *testing.T) { // cases/room 23
		before := s.connections()
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				if a := s.do(alice, "GET", fmt.Sprintf("/premiere/%d.css", i), "", "Sec-Fetch-Mode", "no-cors"); a.StatusCode != 200 {
					t.Errorf("%d %s", a.StatusCode, a.text)
				}
			})
		}
		wg.Wait()
		for i := range 40 {
			s.do(alice, "GET", fmt.Sprintf("/premiere/%d.css", i), "", "Sec-Fetch-Mode", "no-cors")
		}
		rm, _ := s.rooms.Lookup("premiere")
		if sum := rm.Summary(); sum.Active != 1 {
			t.Errorf("%d inside", sum.Active)
		}
		if n := s.connections() - before; n > 45 {
			t.Errorf("%d connections to the origin for 80 requests: none is kept", n)
		}
	})

	t.Run("bodies and methods pass", func(t *testing.T) {
		if a := s.do(alice, "POST", "/premiere/buy", strings.Repeat("x", 100_000)); a.StatusCode != 200 || a.text != "origin POST /premiere/buy 100000" {
			t.Errorf("%d %s", a.StatusCode, a.text)
		}
		if a := s.do(alice, "HEAD", "/premiere", ""); a.StatusCode != 200 {
			t.Errorf("HEAD: %d", a.StatusCode)
		}
		if a := s.do(s.client(), "HEAD", "/premiere", ""); a.StatusCode != 401 {
			t.Errorf("HEAD of a stranger: %d", a.StatusCode)
		}
	})

	t.Run("websockets pass", func(t *testing.T) { s.sockets(t, alice, bob) })

	t.Run("leaving lets the next one in", func(t *testing.T) {
		if a := s.do(alice, "POST", "/.usher/v1/rooms/premiere/leave", ""); a.StatusCode != 204 {
			t.Fatalf("%d %s", a.StatusCode, a.text)
		}
		if a := s.do(bob, "GET", "/wait/premiere?next=%2Fpremiere", "", page()...); a.StatusCode != 200 || a.text != "origin GET /premiere 0" {
			t.Errorf("%d at %s", a.StatusCode, a.at)
		}
		if a := s.do(alice, "GET", "/premiere/api", ""); a.StatusCode != 401 {
			t.Errorf("%d: a session that is over", a.StatusCode)
		}
	})

	if s.Particular {
		t.Run("what another program says lets nobody in", func(t *testing.T) {
			n := s.requests()
			s.stranger.Store(true)
			defer s.stranger.Store(false)
			if a := s.do(bob, "GET", "/premiere", "", page()...); a.StatusCode != 502 || s.requests() != n {
				t.Errorf("%d %s; the origin was asked %d times", a.StatusCode, a.text, s.requests()-n)
			}
		})
	}

	t.Run("without usher nobody is let in", func(t *testing.T) {
		n := s.requests()
		s.server.CloseClientConnections()
		s.server.Close()
		if a := s.do(bob, "GET", "/premiere", "", page()...); a.StatusCode < 500 {
			t.Errorf("%d %s", a.StatusCode, a.text)
		}
		if s.requests() != n {
			t.Error("the origin was asked")
		}
		if a := s.do(bob, "GET", "/about", "", page()...); a.StatusCode != 200 {
			t.Errorf("what is open to all: %d", a.StatusCode)
		}
	})
}

func (s *Site) spellings(t *testing.T) {
	c := s.client()
	for path, open := range map[string]bool{
		"/premiere": false, "/premiere/": false, "/Premiere": false, "/PREMIERE/x": false, "//premiere": false, "/%70remiere": false, "/premiere;x": false,
		"/premiere;x/y": false, "/x/../premiere": false, "/x/%2e%2e/premiere": false, "/./premiere/x": false, "/premiere?x": false,
		"/premieres": true, "/": true, "/about": true, "/about/premiere": true,
	} {
		n := s.requests()
		a := s.do(c, "GET", path, "", "Accept", "application/json")
		if passed := s.requests() > n; passed != open || open && a.StatusCode != 200 || !open && a.StatusCode/100 != 4 {
			t.Errorf("%s: %d, passed %v: %s", path, a.StatusCode, passed, a.text)
		}
	}
}

func (s *Site) forgery(t *testing.T, alice *http.Client) {
	forged := []string{"X-Usher-Room", "evil", "X-Usher-Ticket-Id", "evil", "X-Usher-Token", "evil", "x-usher-token", "evil", "X_Usher_Token", "evil", "x_usher-Room", "evil", "X-Usher_Token", "evil",
		"X-Forwarded-For", "6.6.6.6", "X-Original-URL", "/evil", "X-Forwarded-Uri", "/evil"}
	for _, path := range []string{"/premiere", "/about"} {
		if a := s.do(alice, "GET", path, "", forged...); a.StatusCode != 200 {
			t.Fatalf("%s: %d %s", path, a.StatusCode, a.text)
		}
		for name, values := range s.last().Header {
			if strings.Contains(strings.ToLower(name), "usher") && strings.Contains(strings.Join(values, " "), "evil") {
				t.Errorf("%s: the origin saw %s: %q", path, name, values)
			}
		}
		if from := s.last().Header.Get("X-Forwarded-For"); strings.Contains(from, "6.6.6.6") {
			t.Errorf("%s: X-Forwarded-For %q", path, from)
		}
	}
	// Nor do forged headers help one who was not let in.
	if a := s.do(s.client(), "GET", "/premiere", "", append(forged, "X-Forwarded-Method", "GET", "Accept", "application/json")...); a.StatusCode != 401 {
		t.Errorf("a stranger with forged headers: %d %s", a.StatusCode, a.text)
	}
}

func (s *Site) sockets(t *testing.T, alice, bob *http.Client) {
	for _, tc := range []struct {
		c    *http.Client
		want string
	}{{alice, "101"}, {bob, "401"}} {
		req, _ := http.NewRequest("GET", "http://tickets.test/premiere/live", nil)
		for _, c := range tc.c.Jar.Cookies(req.URL) {
			req.AddCookie(c)
		}
		conn, err := net.Dial("tcp", s.Front)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(conn, "GET /premiere/live HTTP/1.1\r\nHost: tickets.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nCookie: %s\r\n\r\n", req.Header.Get("Cookie"))
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		if err != nil || !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 "+tc.want) {
			t.Fatalf("%q %v, want %s", buf[:n], err, tc.want)
		}
		if tc.want != "101" {
			continue
		}
		for !bytes.Contains(buf[:n], []byte("\r\n\r\n")) {
			k, err := conn.Read(buf[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
		_, _ = io.WriteString(conn, "echo")
		if _, err := io.ReadFull(conn, buf[:4]); err != nil || string(buf[:4]) != "echo" {
			t.Errorf("%q %v", buf[:4], err)
		}
	}
}

// Config writes an example's file into a new folder with other addresses, each of which it must name.
func (s *Site) Config(name string, replace map[string]string) (folder string) {
	s.t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		s.t.Fatal(err)
	}
	text := string(b)
	for from, to := range replace {
		if !strings.Contains(text, from) {
			s.t.Fatalf("%s does not name %q", name, from)
		}
		text = strings.ReplaceAll(text, from, to)
	}
	folder = s.t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	for path := folder; len(path) > len(filepath.Clean(os.TempDir())); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil { // workers of a root's server run as another user
			s.t.Fatal(err)
		}
	}
	return folder
}

// FreeAddress is one on which nobody listens.
func FreeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// Program finds a program, or skips the test; under USHER_TEST_ALL=1 it fails it.
func Program(t *testing.T, name string, elsewhere ...string) string {
	t.Helper()
	for _, p := range append([]string{name}, elsewhere...) {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	why := name + " is not installed (Debian package " + name + ")"
	if os.Getenv("USHER_TEST_ALL") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
	return ""
}

// Serve runs a server until the test ends, and waits until it answers.
func (s *Site) Serve(cmd *exec.Cmd) {
	t := s.t
	t.Helper()
	var output lockedBuffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended, over := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- cmd.Wait()
		close(over)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				t.Errorf("%s ended badly: %v", cmd.Path, err)
			}
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			t.Errorf("%s did not end when told to", cmd.Path)
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", cmd.Path, output.text())
		}
	})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", s.Front)
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-over:
			t.Fatalf("%s ended at once", cmd.Path)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen: %v", cmd.Path, err)
		}
	}
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

func (l *lockedBuffer) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
