package web_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/web"
)

// What the origin writes is with the visitor at once.
func TestStreamsFlushAtOnce(t *testing.T) {
	for _, kind := range []string{"text/event-stream", "text/plain", "application/x-ndjson"} {
		step := make(chan string, 1)
		s, ticket := inside(t, nil, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			if kind == "text/plain" { // of known length, and not small
				w.Header().Set("Content-Length", "4102")
			}
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
			for more := true; more; {
				var text string
				select {
				case text, more = <-step:
				case <-r.Context().Done(): // the test has failed
					return
				}
				_, _ = io.WriteString(w, text)
				_ = http.NewResponseController(w).Flush()
			}
			if kind == "text/plain" {
				_, _ = w.Write(make([]byte, 4096))
			}
		})
		resp, err := plain.Do(request(t, s.public.URL, "GET", "/", "", "Usher-Ticket", ticket))
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(resp.Body)
		for _, text := range []string{"a\n", "b\n", "c\n"} {
			step <- text
			if got, err := lines.ReadString('\n'); got != text || err != nil {
				t.Fatalf("%s: %q %v", kind, got, err)
			}
		}
		close(step)
		if _, err := io.Copy(io.Discard, lines); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		resp.Body.Close()
	}
}

func (s *site) leave(ticket string) {
	s.t.Helper()
	s.do("POST", "/.usher/v1/rooms/premiere/leave", "", "Usher-Ticket", ticket).is(s.t, 204, "")
}

// A session's end cuts streams that never finish by themselves, and lets running requests finish.
func TestSessionEndsUnderRequests(t *testing.T) {
	finish, closed := make(chan struct{}), make(chan struct{})
	s, ticket := inside(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		}
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/events" {
			<-r.Context().Done()
			close(closed)
			return
		}
		select {
		case <-finish:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "finished")
	})
	open := func(path string) *http.Response {
		resp, err := plain.Do(request(t, s.public.URL, "GET", path, "", "Usher-Ticket", ticket))
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	events, report := open("/events"), open("/report")
	defer events.Body.Close()
	defer report.Body.Close()
	s.leave(ticket)
	if b, err := io.ReadAll(events.Body); err != nil || string(b) != "data: 1\n\n" {
		t.Errorf("events: %q %v", b, err) // a proper end, so that the page asks again and learns why
	}
	await(t, closed, "the origin hears that its stream has ended")
	close(finish)
	if b, err := io.ReadAll(report.Body); err != nil || string(b) != "data: 1\n\nfinished" {
		t.Errorf("report: %q %v", b, err)
	}
}

// await waits for a channel, but not until the whole package times out.
func await[T any](t testing.TB, c <-chan T, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: not within 20 s", what)
	}
}

// A visitor who goes away takes her request to the origin with her, and it is nobody's error.
func TestVisitorGoesAway(t *testing.T) {
	there, gone := make(chan struct{}), make(chan struct{})
	s, ticket := inside(t, nil, func(w http.ResponseWriter, r *http.Request) {
		close(there)
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-there
		cancel()
	}()
	if _, err := plain.Do(request(t, s.public.URL, "GET", "/", "", "Usher-Ticket", ticket).WithContext(ctx)); err == nil {
		t.Fatal("an answer")
	}
	await(t, gone, "the origin hears that the visitor has gone")
	eventually(t, "the request is counted", func() bool {
		return strings.Contains(string(s.api("GET", "/metrics", "").body), `route="gate"} 1`)
	})
	if log := s.log.String(); strings.Contains(log, "ERROR") || strings.Contains(log, "WARN") {
		t.Error(log)
	}
}

// socket is an origin's end: it echoes, and sends a greeting along with its handshake.
func socket(t testing.TB, ended chan<- error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		conn, rw, _, err := ws.UpgradeHTTP(r, w)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_ = wsutil.WriteServerText(conn, []byte("welcome "+r.Header.Get("X-Usher-Room")))
		for {
			text, err := wsutil.ReadClientText(struct {
				io.Reader
				io.Writer
			}{rw, conn})
			if err == nil {
				err = wsutil.WriteServerText(conn, text)
			}
			if err != nil {
				if ended != nil {
					ended <- err
				}
				return
			}
		}
	}
}

func (s *site) dial(path, ticket string) (net.Conn, io.Reader) {
	s.t.Helper()
	d := ws.Dialer{Timeout: 10 * time.Second, Header: ws.HandshakeHeaderHTTP(http.Header{"Usher-Ticket": {ticket}})}
	conn, br, _, err := d.Dial(context.Background(), strings.Replace(s.public.URL, "http", "ws", 1)+path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if br != nil {
		return conn, br
	}
	return conn, conn
}

func hear(t testing.TB, r io.Reader, want string) {
	t.Helper()
	b, err := wsutil.ReadServerText(struct {
		io.Reader
		io.Writer
	}{r, io.Discard})
	if err != nil || string(b) != want {
		t.Fatalf("%q %v, want %q", b, err, want)
	}
}

func TestWebSocket(t *testing.T) {
	ended := make(chan error, 1)
	s, ticket := inside(t, nil, socket(t, ended))
	conn, r := s.dial("/live", ticket)
	hear(t, r, "welcome premiere")
	for _, text := range []string{"a", strings.Repeat("b", 100_000), "c"} {
		if err := wsutil.WriteClientText(conn, []byte(text)); err != nil {
			t.Fatal(err)
		}
		hear(t, r, text)
	}
	s.leave(ticket)
	if _, err := wsutil.ReadServerText(conn); err == nil {
		t.Error("the socket outlived its session")
	}
	await(t, ended, "the origin hears that its socket has ended")
}

func TestEarlyBytesOfAWebSocket(t *testing.T) { // cases/affinity 10
	s, ticket := inside(t, nil, socket(t, nil))
	var frames strings.Builder
	_ = wsutil.WriteClientText(&frames, []byte("early"))
	_ = wsutil.WriteClientText(&frames, []byte("bird"))
	_, r := s.raw("GET /live HTTP/1.1\r\nHost: t\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nUsher-Ticket: " +
		ticket + "\r\n\r\n" + frames.String())
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatalf("%v %v", resp, err)
	}
	hear(t, r, "welcome premiere")
	hear(t, r, "early")
	hear(t, r, "bird")
}

// Only WebSockets become tunnels: in one to an origin that speaks h2c, requests could hide.
func TestNoOtherTunnels(t *testing.T) {
	var got seen
	s, ticket := inside(t, nil, got.shop)
	for _, up := range []string{"h2c", "TLS/1.0", "websocket, h2c", "HTTP/2.0"} {
		_, r := s.raw("GET / HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: " + up + "\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\nUsher-Ticket: " + ticket + "\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%s: %v %v", up, resp, err)
		}
		if in := got.last(t); in.Header.Get("Upgrade") != "" || in.Header.Get("Connection") != "" || in.Header.Get("Http2-Settings") != "" {
			t.Errorf("%s: %v", up, in.Header)
		}
	}
}

// An open socket keeps its session from ending by idle, and max closes it.
func TestSocketKeepsItsSession(t *testing.T) {
	c := behind("premiere", 1, newOrigin(t, socket(t, nil)))
	c.Session.Idle, c.Session.Max = room.Duration(2*time.Second), room.Duration(6*time.Second)
	s := build(t, nil, c)
	ticket := s.do("POST", "/.usher/v1/rooms/premiere/enter", "").secret(t)
	var renewals atomic.Int32
	s.store.spoil(nil, func(cmd *room.Command) error {
		if cmd.Op == room.OpRenew {
			renewals.Add(1)
		}
		return nil
	})
	conn, r := s.dial("/", ticket)
	hear(t, r, "welcome premiere")
	eventually(t, "renewals while the socket is open", func() bool { return renewals.Load() >= 3 })
	if s.summary("premiere").Active != 1 {
		t.Fatal("the session ended by idle")
	}
	if err := wsutil.WriteClientText(conn, []byte("still here")); err != nil {
		t.Fatal(err)
	}
	hear(t, r, "still here")
	if _, err := wsutil.ReadServerText(conn); err == nil { // by max
		t.Error("no end")
	}
	eventually(t, "the session ends by max", func() bool { return s.summary("premiere").Active == 0 })
}

func TestOriginDiesUnderASocket(t *testing.T) { // cases/affinity 11
	conns := make(chan net.Conn, 1)
	s, ticket := inside(t, nil, func(w http.ResponseWriter, r *http.Request) {
		conn, _, _, err := ws.UpgradeHTTP(r, w)
		if err != nil {
			t.Error(err)
			return
		}
		conns <- conn
	})
	conn, _ := s.dial("/", ticket)
	(<-conns).Close()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the visitor never hears: %v", err)
	}
}

func TestUpgradesToADeadOrigin(t *testing.T) { // cases/affinity 10
	if runtime.GOOS != "linux" {
		t.Skip("counts descriptors in /proc/self/fd, which is Linux")
	}
	c := behind("premiere", 1, nil)
	c.Origin = "http://" + deadAddress(t)
	s := build(t, nil, c)
	ticket := s.do("POST", "/.usher/v1/rooms/premiere/enter", "").secret(t)
	upgrade := func() {
		r := s.do("GET", "/live", "", "Usher-Ticket", ticket, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
		r.is(t, 502, "origin_unreachable")
	}
	descriptors := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	upgrade()
	before, routines := descriptors(), runtime.NumGoroutine()
	for range 10_000 {
		upgrade()
	}
	eventually(t, "descriptors and goroutines come back", func() bool {
		return descriptors() <= before+5 && runtime.NumGoroutine() <= routines+5
	})
	if n := strings.Count(s.log.String(), "level=ERROR"); n > 60 {
		t.Errorf("%d lines in the log", n)
	}
	if s.summary("premiere").Active != 1 {
		t.Error("the session is gone")
	}
}

// deadAddress is one on which nobody listens.
func deadAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestDeadOrigin(t *testing.T) {
	c := behind("premiere", 1, nil)
	c.Origin = "http://" + deadAddress(t)
	s := build(t, nil, c)
	alice := s.browser()
	r := alice.open("/seats?row=4")
	isPage(t, r, 502, `"state":"origin"`)
	isPage(t, r, 502, `"next":"/seats?row=4"`)
	if r.header.Get("Retry-After") == "" || alice.cookie("usher-premiere") == "" {
		t.Errorf("%v", r.header)
	}
	isPage(t, alice.send("POST", "/buy", "seat=4", navigation()...), 502, `"next":""`) // not to be sent twice
	alice.fetch("GET", "/api").is(t, 502, "origin_unreachable")
	if sum := s.summary("premiere"); sum.Active != 1 || sum.LastSeq != 1 {
		t.Errorf("%+v", sum)
	}
	// It comes back, and she goes on in the same session.
	var got seen
	c.Origin = newOrigin(t, got.shop).URL
	if _, err := s.rooms.Configure(context.Background(), c, 0); err != nil {
		t.Fatal(err)
	}
	s.server.Refresh()
	isOK(t, alice.open("/seats?row=4"))
	if s.summary("premiere").LastSeq != 1 {
		t.Error("a new ticket")
	}
}

func TestSlowOrigin(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	s, ticket := inside(t, func(o *web.Options) { o.OriginTimeout = 30 * time.Millisecond }, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	s.do("POST", "/", "x", "Usher-Ticket", ticket).is(t, 504, "origin_timeout")
	isPage(t, s.do("GET", "/", "", navigation("Usher-Ticket", ticket)...), 504, `"state":"origin"`)
	if s.summary("premiere").Active != 1 {
		t.Error("the session is gone")
	}
}

// An answer that breaks off must not look whole.
func TestOriginBreaksOff(t *testing.T) {
	s, ticket := inside(t, nil, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	resp, err := plain.Do(request(t, s.public.URL, "GET", "/", "", "Usher-Ticket", ticket))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("%q looks whole", b)
	}
}

// A body that cannot be read is the visitor's fault, not the origin's.
func TestBrokenBody(t *testing.T) {
	s, ticket := inside(t, nil, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	_, r := s.raw("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nUsher-Ticket: " + ticket + "\r\n\r\nnot a length\r\n")
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != 400 {
		t.Errorf("%v %v", resp, err)
	}
	if log := s.log.String(); strings.Contains(log, "ERROR") {
		t.Error(log)
	}
}

// A POST is sent once, whatever becomes of it. cases/affinity 9
func TestNothingIsSentTwice(t *testing.T) {
	var posts atomic.Int32
	s, ticket := inside(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			posts.Add(1)
		}
		if r.URL.Path == "/die" {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			conn.Close()
			return
		}
		fmt.Fprint(w, "ok")
	})
	isOK(t, s.do("GET", "/", "", "Usher-Ticket", ticket)) // leaves an idle connection, on which a transport retries
	s.do("POST", "/die", "seat=4", "Usher-Ticket", ticket).is(t, 502, "origin_unreachable")
	if n := posts.Load(); n != 1 {
		t.Errorf("%d POSTs", n)
	}
}

// The drain of a node ends what would never end by itself.
func TestDrainEndsSockets(t *testing.T) {
	s, ticket := inside(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			socket(t, nil)(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	conn, r := s.dial("/", ticket)
	hear(t, r, "welcome premiere")
	events, err := plain.Do(request(t, s.public.URL, "GET", "/", "", "Usher-Ticket", ticket))
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.server.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(events.Body); err != nil {
		t.Error(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("%v", err)
	}
}
