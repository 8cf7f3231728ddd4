package web_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/web"
)

// checked makes a site in check mode: a room that names a host, and no origin.
func checked(t testing.TB, active int64, change func(*web.Options)) *site {
	t.Helper()
	c := config("premiere", active)
	c.Match = []room.Match{{Host: "tickets.test", Path: "/premiere"}}
	c.CORS = []string{"https://app.test"}
	return build(t, func(o *web.Options) {
		o.PublicURL = "http://tickets.test"
		if change != nil {
			change(o)
		}
	}, c)
}

const checkPath = "/.usher/v1/rooms/premiere/check"

func onTickets(pairs ...string) []string { return append([]string{"Host", "tickets.test"}, pairs...) }

func TestCheckLetsIn(t *testing.T) {
	s := checked(t, 1, nil)
	secret := s.do("POST", "/.usher/v1/rooms/premiere/enter", "", onTickets()...).secret(t)
	for _, method := range []string{"GET", "HEAD"} {
		for _, with := range [][]string{{"Cookie", "usher-premiere=" + secret}, {"Usher-Ticket", secret}} {
			for _, query := range []string{"", "?for=nginx"} {
				r := s.do(method, checkPath+query, "", onTickets(append(with, navigation("X-Usher-Room", "evil", "X-Usher-Token", "evil")...)...)...)
				r.is(t, 200, "")
				a, err := s.keys.Verify("premiere", r.header.Get("X-Usher-Token"), time.Now())
				if err != nil || r.header.Get("X-Usher-Room") != "premiere" || r.header.Get("X-Usher-Ticket-Id") != a.TicketID {
					t.Errorf("%v %v", err, r.header)
				}
				if r.header.Get("Cache-Control") != "no-store" || r.header.Get("Set-Cookie") != "" {
					t.Errorf("%v", r.header)
				}
			}
		}
	}
	if !hasEvent(t, s, "claimed") {
		t.Error("the admission was not claimed")
	}
	// The plain path is answered too, for no origin could be meant; and so is the API on other hosts.
	s.do("GET", "/v1/rooms/premiere/check", "", onTickets("Usher-Ticket", secret)...).is(t, 200, "")
	s.do("GET", "/v1/rooms/premiere/check", "", "Usher-Ticket", secret).is(t, 200, "")
	s.do("GET", "/v1/rooms/premiere/check", "", bearer(secret)...).is(t, 200, "")
	s.do("POST", checkPath, "", onTickets("Usher-Ticket", secret)...).is(t, 405, "method_not_allowed")
	s.do("GET", "/.usher/v1/rooms/nothing/check", "", onTickets()...).is(t, 404, "room_not_found")
}

func hasEvent(t testing.TB, s *site, kind string) bool {
	t.Helper()
	return strings.Contains(string(s.api("GET", "/admin/v1/rooms/premiere/log", "").body), `"type":"`+kind+`"`)
}

func TestCheckKeepsOut(t *testing.T) {
	s := checked(t, 1, nil)
	inside := s.do("POST", "/.usher/v1/rooms/premiere/enter", "", onTickets()...).secret(t)
	waiting := s.do("POST", "/.usher/v1/rooms/premiere/enter", "", onTickets()...).secret(t)
	over := s.do("POST", "/.usher/v1/rooms/premiere/enter", "", onTickets()...).secret(t)
	s.do("POST", "/.usher/v1/rooms/premiere/leave", "", onTickets("Usher-Ticket", over)...).is(t, 204, "")
	for _, tc := range []struct {
		name   string
		header []string
		code   string
	}{
		{"no ticket", nil, "ticket_missing"},
		{"bad ticket", []string{"Usher-Ticket", "x"}, "ticket_invalid"},
		{"waiting", []string{"Usher-Ticket", waiting}, "not_admitted"},
		{"over", []string{"Usher-Ticket", over}, "ticket_ended"},
		{"two tickets", []string{"Usher-Ticket", waiting, "Cookie", "usher-premiere=" + inside}, "ticket_conflict"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			at := []string{"X-Forwarded-Uri", "/premiere/seats?row=4&x=%2F", "X-Forwarded-Method", "GET"}
			r := s.do("GET", checkPath, "", onTickets(append(at, tc.header...)...)...)
			r.is(t, 401, tc.code)
			if r.header.Get("Location") != "" {
				t.Error("a script is sent to a page")
			}
			r = s.do("GET", checkPath, "", onTickets(navigation(append(at, tc.header...)...)...)...)
			if r.status != 303 || r.header.Get("Cache-Control") != "no-store" {
				t.Fatalf("%d %s", r.status, r.body)
			}
			want := "http://tickets.test/wait/premiere?next=" + url.QueryEscape("/premiere/seats?row=4&x=%2F")
			if got := r.header.Get("Location"); got != want {
				t.Errorf("Location %q, want %q", got, want)
			}
			r = s.do("GET", checkPath+"?for=nginx", "", onTickets(navigation(append(at, tc.header...)...)...)...)
			if r.status != 401 || r.header.Get("Location") != want || r.header.Get("X-Usher-Page") != "1" {
				t.Errorf("nginx: %d %v", r.status, r.header)
			}
			r = s.do("GET", checkPath+"?for=nginx", "", onTickets(append(at, tc.header...)...)...)
			if r.status != 401 || r.header.Get("Location") != want || r.header.Get("X-Usher-Page") != "" {
				t.Errorf("nginx, script: %d %v", r.status, r.header)
			}
			for _, name := range []string{"X-Usher-Room", "X-Usher-Ticket-Id", "X-Usher-Token", "Set-Cookie"} {
				if r.header.Get(name) != "" {
					t.Errorf("%s in a refusal", name)
				}
			}
		})
	}
	if s.summary("premiere").LastSeq != 3 {
		t.Error("check takes tickets")
	}
	// Where scripts of listed pages ask, they may read the answer. cases/room 10
	r := s.do("GET", checkPath, "", onTickets("Origin", "https://app.test")...)
	if r.is(t, 401, "ticket_missing"); r.header.Get("Access-Control-Allow-Origin") != "https://app.test" {
		t.Errorf("%v", r.header)
	}
}

func TestCheckReadsTheOriginalRequest(t *testing.T) {
	for _, tc := range []struct {
		name   string
		header []string
		next   string
	}{
		{"caddy", []string{"X-Forwarded-Method", "GET", "X-Forwarded-Proto", "http", "X-Forwarded-Host", "tickets.test", "X-Forwarded-Uri", "/premiere?a=1"}, "/premiere?a=1"},
		{"nginx", []string{"X-Original-URI", "/premiere?a=1", "X-Original-Method", "GET"}, "/premiere?a=1"},
		{"ingress", []string{"X-Original-URL", "http://tickets.test/premiere?a=1", "X-Original-Method", "GET"}, "/premiere?a=1"},
		{"the proxy's own line is the last", []string{"X-Original-URI", "/forged", "X-Original-URI", "/premiere"}, "/premiere"},
		{"post", []string{"X-Original-URI", "/buy", "X-Original-Method", "POST"}, ""},
		{"nothing", nil, ""},
		{"elsewhere", []string{"X-Original-URL", "https://evil.test/"}, ""}, // cases/room 22
		{"elsewhere, by host", []string{"X-Original-URL", "//evil.test/"}, ""},
		{"elsewhere, by backslash", []string{"X-Forwarded-Uri", `/\evil.test`}, ""},
		{"other port", []string{"X-Original-URL", "http://tickets.test:81/"}, ""},
		{"very long", []string{"X-Original-URI", "/" + strings.Repeat("x", 5000)}, ""},
	} {
		want := "http://tickets.test/wait/premiere"
		if tc.next != "" {
			want += "?next=" + url.QueryEscape(tc.next)
		}
		s := checked(t, 1, nil)
		r := s.do("GET", checkPath, "", onTickets(navigation(tc.header...)...)...)
		if got := r.header.Get("Location"); r.status != 303 || got != want {
			t.Errorf("%s: %d %q, want %q", tc.name, r.status, got, want)
		}
		// A stranger's word counts nothing.
		s = checked(t, 1, func(o *web.Options) { o.TrustedProxies = nil })
		r = s.do("GET", checkPath, "", onTickets(navigation(tc.header...)...)...)
		if got := r.header.Get("Location"); r.status != 303 || got != "http://tickets.test/wait/premiere" {
			t.Errorf("%s, from a stranger: %d %q", tc.name, r.status, got)
		}
	}
}

func TestCheckSendsToAHostWithTheTicket(t *testing.T) {
	for _, tc := range []struct{ public, host, origin, want string }{
		{"https://tickets.test", "tickets.test", "", "https://tickets.test/wait/premiere"},
		{"https://queue.test", "tickets.test", "", "http://tickets.test/wait/premiere"}, // its cookie is of that host
		{"https://queue.test", "evil.test", "", "https://queue.test/wait/premiere"},     // nobody named it
		{"http://tickets.test", "tickets.test", "http://127.0.0.1:1", "http://tickets.test/.usher/wait/premiere"},
	} {
		c := config("premiere", 1)
		c.Match, c.Origin = []room.Match{{Host: "tickets.test", Path: "/premiere"}}, tc.origin
		s := build(t, func(o *web.Options) { o.PublicURL = tc.public }, c)
		path := checkPath
		if tc.host != "tickets.test" {
			path = strings.TrimPrefix(checkPath, "/.usher")
		}
		r := s.do("GET", path, "", navigation("Host", tc.host)...)
		if got := r.header.Get("Location"); got != tc.want {
			t.Errorf("%+v: %d %q", tc, r.status, got)
			continue
		}
		if tc.host == "tickets.test" { // and there it is
			u, _ := url.Parse(tc.want)
			isPage2(t, s.do("GET", u.Path, "", navigation("Host", u.Host)...))
		}
	}
}

// isPage2 accepts the waiting page or the way on.
func isPage2(t testing.TB, r reply) {
	t.Helper()
	if r.status != 202 && r.status != 303 {
		t.Errorf("%d %.200s", r.status, r.body)
	}
}

func TestCheckWhileTheEngineFails(t *testing.T) {
	for _, mode := range []string{"closed", "admitted", "open"} {
		c := config("premiere", 1)
		c.OnEngineFailure = mode
		s := build(t, nil, c)
		secret := s.do("POST", "/v1/rooms/premiere/enter", "").secret(t)
		r := s.do("GET", "/v1/rooms/premiere/check", "", "Usher-Ticket", secret)
		r.is(t, 200, "")
		pass := r.cookie("usher-premiere.pass")
		if (pass != nil) != (mode == "admitted") {
			t.Errorf("%s: %v", mode, r.header)
		}
		other := s.do("POST", "/v1/rooms/premiere/enter", "").secret(t)
		s.store.spoil(func(*room.Command) error { return room.ErrUnavailable }, nil)
		ask := func(pairs ...string) reply { return s.do("GET", "/v1/rooms/premiere/check", "", pairs...) }
		waiter := ask("Usher-Ticket", other)
		if mode == "open" {
			waiter.is(t, 200, "")
			ask().is(t, 200, "")
			continue
		}
		waiter.is(t, 503, "engine_unavailable")
		ask().is(t, 401, "ticket_missing")
		if r := ask("Usher-Ticket", other, "Accept", "text/html"); r.status != 303 {
			t.Errorf("%s: %d", mode, r.status)
		}
		if r := s.do("GET", "/v1/rooms/premiere/check?for=nginx", "", "Usher-Ticket", other); r.status != 401 || r.header.Get("Location") == "" {
			t.Errorf("%s: nginx would make %d a 500", mode, r.status)
		}
		if mode == "admitted" {
			ask("Cookie", "usher-premiere.pass="+pass.Value).is(t, 200, "")
			ask("Cookie", "usher-premiere.pass="+pass.Value, "Usher-Ticket", other).is(t, 503, "engine_unavailable")
		}
	}
}
