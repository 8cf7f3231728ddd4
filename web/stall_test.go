package web_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/web"
)

func impatient(o *web.Options) { o.StallTimeout = 200 * time.Millisecond }

// Whoever announces a body and does not send it is answered and cut off, with a ticket or without, whether
// somebody reads the body or not.
func TestStalledBodies(t *testing.T) {
	s, ticket := inside(t, impatient, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, "seats")
	})
	for name, c := range map[string]struct {
		head   string
		status int
	}{
		"a stranger":             {"POST / HTTP/1.1", 401},
		"one inside":             {"POST / HTTP/1.1\r\nUsher-Ticket: " + ticket, 408},
		"a path that is refused": {"POST /..//x HTTP/1.1", 400},
	} {
		conn, r := s.raw(c.head + "\r\nHost: tickets.test\r\nContent-Length: 10\r\n\r\nab")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != c.status {
			t.Errorf("%s: %d %v, want %d", name, resp.StatusCode, err, c.status)
		}
		if _, err := r.ReadByte(); err != io.EOF {
			t.Errorf("%s: the connection stays: %v", name, err)
		}
		conn.Close()
	}
}

// unhurried tries something under a short StallTimeout, and where that fails under ever longer ones: a busy machine may stall
// by itself, but what is cut off wrongly is under each of them.
func unhurried(t *testing.T, try func(within time.Duration) error) {
	t.Helper()
	var err error
	for within := 200 * time.Millisecond; within < 10*time.Second; within *= 3 {
		if err = try(within); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// silent is an origin that answers at once and goes on without a word for longer than within.
func silent(within time.Duration, last string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v", b, err)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(3 * within):
		case <-r.Context().Done(): // cut off
		}
		fmt.Fprint(w, last)
	}
}

// What goes on is not stalled: not a stream that is silent, nor a visitor who waits for a slow origin.
func TestSilenceIsNoStall(t *testing.T) {
	unhurried(t, func(within time.Duration) error {
		s, ticket := inside(t, func(o *web.Options) { o.StallTimeout = within }, silent(within, ""))
		conn, r := s.raw("")
		defer conn.Close()
		for range 2 { // the second on the same connection
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: tickets.test\r\nUsher-Ticket: %s\r\nContent-Length: 4\r\n\r\nseat", ticket)
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				return err
			}
			if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "seat <nil>" {
				return fmt.Errorf("%q %w", b, err)
			}
		}
		return nil
	})
}

// The same over HTTP/2, where a deadline that passes ends a stream even if nobody writes.
func TestSilenceOverHTTP2(t *testing.T) {
	unhurried(t, func(within time.Duration) error {
		s, ticket := inside(t, func(o *web.Options) { o.StallTimeout = within }, silent(within, " end"))
		front := httptest.NewUnstartedServer(s.server.Public())
		front.EnableHTTP2 = true
		front.StartTLS()
		defer front.Close()
		client := front.Client()
		defer client.CloseIdleConnections()
		for range 2 {
			resp, err := client.Do(request(t, front.URL, "POST", "/", "seat", "Usher-Ticket", ticket, "Host", "tickets.test"))
			if err != nil {
				return err
			}
			b, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || string(b) != "seat <nil> end" || resp.ProtoMajor != 2 {
				return fmt.Errorf("%s: %q %w", resp.Proto, b, err)
			}
		}
		return nil
	})
}

// Whoever does not read an answer is cut off, and the origin hears of it.
func TestReaderWhoStops(t *testing.T) {
	cut := make(chan error, 1)
	s, ticket := inside(t, impatient, func(w http.ResponseWriter, r *http.Request) {
		piece := []byte(strings.Repeat("seat", 16<<10))
		for {
			if _, err := w.Write(piece); err != nil {
				cut <- err
				return
			}
		}
	})
	_, r := s.raw("GET / HTTP/1.1\r\nHost: tickets.test\r\nUsher-Ticket: " + ticket + "\r\n\r\n")
	if _, err := bufio.NewReader(r).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	select {
	case <-cut:
	case <-time.After(20 * time.Second):
		t.Error("the origin still sends")
	}
}

// An event stream, too, is not kept waiting for a body that it has no use for.
func TestStreamWithAStalledBody(t *testing.T) {
	s := build(t, impatient, config("premiere", 1))
	_, r := s.raw("GET /v1/rooms/premiere/events HTTP/1.1\r\nHost: usher.test\r\nContent-Length: 10\r\n\r\n")
	if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != 401 {
		t.Errorf("%v %v", resp, err)
	}
}

var gateCount = regexp.MustCompile(`usher_http_request_duration_seconds_count{[^}]*route="gate"} (\d+)`)

// An origin that stops taking an upload is given up, whether the visitor waits or has gone.
func TestOriginThatStopsReading(t *testing.T) {
	origin, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer origin.Close()
	taken := make(chan net.Conn, 8)
	go func() {
		for {
			conn, err := origin.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 100))
			taken <- conn // and read no more
		}
	}()
	c := behind("premiere", 2, newOrigin(t, func(http.ResponseWriter, *http.Request) {}))
	c.Origin = "http://" + origin.Addr().String()
	s := build(t, func(o *web.Options) { o.OriginTimeout = 300 * time.Millisecond }, c)
	ticket := s.do("POST", "/.usher/v1/rooms/premiere/enter", "").secret(t)
	for i, goes := range []bool{false, true} {
		conn, r := s.raw("POST / HTTP/1.1\r\nHost: tickets.test\r\nContent-Length: 1000000000\r\nUsher-Ticket: " + ticket + "\r\n\r\n")
		go func() { _, _ = io.Copy(conn, zeros{}) }()
		var at net.Conn
		select {
		case at = <-taken:
		case <-time.After(20 * time.Second):
			t.Fatal("nothing came to the origin")
		}
		if goes {
			conn.Close()
		} else if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != 504 {
			t.Errorf("%v %v", resp, err)
		}
		eventually(t, "usher is done with the request", func() bool {
			done := 0
			for _, class := range gateCount.FindAllSubmatch(s.api("GET", "/metrics", "").body, -1) {
				n, _ := strconv.Atoi(string(class[1]))
				done += n
			}
			return done == i+1
		})
		at.Close()
	}
}
