package web_test

import (
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/web"
)

func TestCrossSiteIsRefused(t *testing.T) {
	c := config("premiere", 1)
	c.CORS = []string{"https://app.test"}
	s := build(t, nil, c)
	_, secret := s.enter("premiere")
	before := s.summary("premiere").LastSeq
	for _, tc := range []struct {
		name   string
		header []string
		ok     bool
		cors   string
	}{
		{"no browser", nil, true, ""},
		{"same origin", []string{"Origin", "http://HOST", "Sec-Fetch-Site", "same-origin"}, true, ""},
		{"the public address", []string{"Origin", "http://usher.test"}, true, ""},
		{"https before us", []string{"Origin", "https://HOST", "Sec-Fetch-Site", "same-origin"}, true, ""},
		{"user's own", []string{"Sec-Fetch-Site", "none"}, true, ""},
		{"foreign origin", []string{"Origin", "https://evil.test"}, false, ""},
		{"foreign origin, marked", []string{"Origin", "https://evil.test", "Sec-Fetch-Site", "cross-site"}, false, ""},
		{"marked alone", []string{"Sec-Fetch-Site", "cross-site"}, false, ""},
		{"sibling", []string{"Origin", "http://other.usher.test", "Sec-Fetch-Site", "same-site"}, false, ""},
		{"other port", []string{"Origin", "http://usher.test:81"}, false, ""},
		{"null", []string{"Origin", "null"}, false, ""},
		{"two", []string{"Origin", "http://usher.test", "Origin", "https://evil.test"}, false, ""},
		{"with a path", []string{"Origin", "http://usher.test/x"}, false, ""},
		{"listed", []string{"Origin", "https://app.test", "Sec-Fetch-Site", "cross-site"}, true, "https://app.test"},
		{"listed, other scheme", []string{"Origin", "http://app.test"}, false, ""},
		{"like a listed one", []string{"Origin", "https://app.test.evil.test"}, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host := strings.TrimPrefix(s.public.URL, "http://")
			var h []string
			for _, v := range tc.header {
				h = append(h, strings.ReplaceAll(v, "HOST", host))
			}
			for _, path := range []string{"enter", "presence", "claim", "renew"} {
				r := s.do("POST", "/v1/rooms/premiere/"+path, "", append([]string{"Cookie", "usher-premiere=" + secret}, h...)...)
				if tc.ok {
					if r.status >= 300 {
						t.Errorf("%s: %d %s", path, r.status, r.body)
					}
				} else {
					r.is(t, 403, "cross_site")
					if r.header.Get("Set-Cookie") != "" {
						t.Errorf("%s: a cookie was set", path)
					}
				}
				if got := r.header.Get("Access-Control-Allow-Origin"); got != tc.cors {
					t.Errorf("%s: Allow-Origin %q, want %q", path, got, tc.cors)
				}
				if tc.cors != "" && r.header.Get("Access-Control-Allow-Credentials") != "true" {
					t.Errorf("%s: no credentials", path)
				}
				if !strings.Contains(strings.Join(r.header["Vary"], ","), "Origin") {
					t.Errorf("%s: Vary %v", path, r.header["Vary"])
				}
			}
		})
	}
	if after := s.summary("premiere").LastSeq; after != before {
		t.Errorf("%d tickets were issued", after-before)
	}
	// https must not be asked for by a page of http.
	s.do("POST", "/v1/rooms/premiere/enter", "", "X-Forwarded-Proto", "https", "Host", "a.test", "Origin", "http://a.test").is(t, 403, "cross_site")
	// A refusal is readable for a listed page too.
	r := s.do("GET", "/v1/rooms/premiere/status", "", "Origin", "https://app.test")
	r.is(t, 401, "ticket_missing")
	if r.header.Get("Access-Control-Allow-Origin") != "https://app.test" {
		t.Errorf("%v", r.header)
	}
}

func TestPreflight(t *testing.T) {
	c := config("premiere", 1)
	c.CORS = []string{"https://app.test"}
	s := build(t, nil, c)
	ask := func(path, origin, method string) reply {
		return s.do("OPTIONS", path, "", "Origin", origin, "Access-Control-Request-Method", method, "Access-Control-Request-Headers", "content-type,usher-ticket")
	}
	r := ask("/v1/rooms/premiere/enter", "https://app.test", "POST")
	r.is(t, 204, "")
	if r.header.Get("Access-Control-Allow-Origin") != "https://app.test" || r.header.Get("Access-Control-Allow-Methods") != "POST" ||
		!strings.Contains(r.header.Get("Access-Control-Allow-Headers"), "Usher-Ticket") || r.header.Get("Access-Control-Allow-Credentials") != "true" {
		t.Errorf("%v", r.header)
	}
	r = ask("/v1/rooms/premiere/enter", "https://evil.test", "POST")
	r.is(t, 403, "cross_site")
	if r.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("%v", r.header)
	}
	ask("/v1/rooms/premiere/enter", "https://app.test", "DELETE").is(t, 405, "")
	r = ask("/v1/rooms/premiere/now", "https://anybody.test", "GET")
	r.is(t, 204, "")
	if r.header.Get("Access-Control-Allow-Origin") != "*" || r.header.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("%v", r.header)
	}
	if n := s.summary("premiere").LastSeq; n != 0 {
		t.Errorf("a preflight took %d tickets", n)
	}
}

func TestManyWaitersBehindOneAddress(t *testing.T) { // cases/room 13
	s := build(t, func(o *web.Options) { o.Enter = web.EnterLimit{Burst: 500, PerSecond: 1} }, config("premiere", 1))
	school := []string{"X-Forwarded-For", "203.0.113.7"}
	secrets := make([]string, 500)
	for i := range secrets {
		r := s.do("POST", "/v1/rooms/premiere/enter", "", school...)
		if r.status >= 300 {
			t.Fatalf("pupil %d: %d %s", i, r.status, r.body)
		}
		secrets[i] = r.secret(t)
	}
	var refused reply
	for range 20 { // some tokens have come back meanwhile
		if refused = s.do("POST", "/v1/rooms/premiere/enter", "", school...); refused.status == 429 {
			break
		}
	}
	refused.is(t, 429, "too_many")
	if refused.header.Get("Retry-After") != "1" {
		t.Errorf("%v", refused.header)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < len(secrets); i += 8 {
				h := append(bearer(secrets[i]), school...)
				for _, ask := range []struct {
					method, path string
				}{{"GET", "status"}, {"GET", "status"}, {"POST", "presence"}, {"POST", "enter"}} {
					if r := s.do(ask.method, "/v1/rooms/premiere/"+ask.path, "", h...); r.status >= 300 {
						t.Errorf("waiter %d, %s: %d %s", i, ask.path, r.status, r.body)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	// Elsewhere nobody notices.
	s.do("POST", "/v1/rooms/premiere/enter", "", "X-Forwarded-For", "203.0.113.8").is(t, 202, "")
	// An ended ticket is not a way around.
	s.do("POST", "/v1/rooms/premiere/leave", "", append(bearer(secrets[9]), school...)...).is(t, 204, "")
	for range 20 {
		if refused = s.do("POST", "/v1/rooms/premiere/enter", "", append(bearer(secrets[9]), school...)...); refused.status == 429 {
			return
		}
	}
	t.Error("an ended ticket gave new ones without end")
}

func TestRepeatsAreNotLimited(t *testing.T) { // cases/room 4 and 13
	s := build(t, func(o *web.Options) { o.Enter = web.EnterLimit{Burst: 3, PerSecond: 1} }, config("premiere", 1))
	for range 50 {
		r := s.do("POST", "/v1/rooms/premiere/enter", `{"request_id":"`+requestID+`"}`, "X-Forwarded-For", "203.0.113.7")
		r.is(t, 200, "")
	}
}

const chrome = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

func navigation(pairs ...string) []string {
	return append([]string{"Accept", chrome, "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Sec-Fetch-Site", "none", "Accept-Language", "en"}, pairs...)
}

func TestWaitingPage(t *testing.T) {
	s := inState(t, "")
	r := s.do("GET", "/wait/premiere?next=/premiere", "", navigation()...)
	r.is(t, 202, "")
	if !strings.HasPrefix(r.header.Get("Content-Type"), "text/html") || r.header.Get("Cache-Control") != "no-store" || !strings.Contains(r.header.Get("X-Robots-Tag"), "noindex") {
		t.Errorf("%v", r.header)
	}
	c := r.cookie("usher-premiere")
	if c == nil {
		t.Fatalf("no cookie: %v", r.header)
	}
	if strings.Contains(string(r.body), c.Value) {
		t.Error("the secret is in the page")
	}
	r = s.do("GET", "/wait/premiere?next=/premiere", "", navigation("Cookie", "usher-premiere="+c.Value)...)
	r.is(t, 202, "")
	if n := s.summary("premiere").LastSeq; n != 2 { // the first one and she
		t.Errorf("%d tickets", n)
	}
	for _, tc := range []struct {
		name   string
		method string
		header []string
		status int
		code   string
	}{
		{"prefetch", "GET", navigation("Sec-Purpose", "prefetch;prerender"), 503, "prefetch"},
		{"old prefetch", "GET", []string{"Accept", chrome, "X-Moz", "prefetch"}, 503, "prefetch"},
		{"image", "GET", []string{"Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image", "Accept", "image/*"}, 401, "ticket_missing"},
		{"fetch", "GET", []string{"Sec-Fetch-Mode", "cors", "Accept", "*/*"}, 401, "ticket_missing"},
		{"axios", "GET", []string{"Accept", "application/json, text/plain, */*"}, 401, "ticket_missing"}, // cases/room 10
		{"foreign frame", "GET", []string{"Accept", chrome, "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe", "Sec-Fetch-Site", "cross-site"}, 403, "cross_site"},
		{"head", "HEAD", []string{"Accept", chrome}, 202, ""},
		{"foreign next", "GET", navigation(), 400, "bad_next"},
	} {
		path := "/wait/premiere?next=/premiere"
		if tc.code == "bad_next" { // cases/room 22
			path = "/wait/premiere?next=" + url.QueryEscape("https://evil.test/")
		}
		t.Run(tc.name, func(t *testing.T) {
			r := s.do(tc.method, path, "", tc.header...)
			r.is(t, tc.status, tc.code)
			if r.header.Get("Set-Cookie") != "" {
				t.Error("a cookie was set")
			}
		})
	}
	if n := s.summary("premiere").LastSeq; n != 2 {
		t.Errorf("%d tickets", n)
	}
	// Who asks for JSON is told, as by status.
	s.do("GET", "/wait/premiere", "", "Accept", "application/json", "Cookie", "usher-premiere="+c.Value).is(t, 200, "")
	r = s.do("GET", "/wait/nothing", "", navigation()...)
	if r.status != 404 || !strings.HasPrefix(r.header.Get("Content-Type"), "text/html") {
		t.Errorf("%d %v", r.status, r.header)
	}
}

func TestRefusalPages(t *testing.T) { // cases/room 25: a refusal is never a 2xx
	page := func(r reply, status int) {
		t.Helper()
		if r.status != status || !strings.HasPrefix(r.header.Get("Content-Type"), "text/html") || r.header.Get("Set-Cookie") != "" || r.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%d, want %d: %v", r.status, status, r.header)
		}
	}
	page(inState(t, "closed").do("GET", "/wait/premiere", "", navigation()...), 403)
	c := config("premiere", 1)
	c.Schedule.OpensAt = room.Time{Time: time.Now().Add(time.Hour)}
	r := build(t, nil, c).do("GET", "/wait/premiere", "", navigation()...)
	page(r, 403)
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	c = config("premiere", 1)
	c.Queue.Order = room.Reject
	s := build(t, nil, c)
	s.enter("premiere")
	page(s.do("GET", "/wait/premiere", "", navigation()...), 429)
	s.store.spoil(func(*room.Command) error { return room.ErrUnavailable }, nil)
	page(s.do("GET", "/wait/premiere", "", navigation()...), 503)
}

func TestAdmittedGoOnTheirWay(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	jar, _ := cookiejar.New(nil)
	var hops []string
	browser := &http.Client{Jar: jar, Transport: plain.Transport, Timeout: 10 * time.Second, CheckRedirect: func(req *http.Request, _ []*http.Request) error {
		hops = append(hops, req.URL.RequestURI())
		return nil
	}}
	req := request(t, s.public.URL, "GET", "/wait/premiere?next=/seats%3Frow=1", "", navigation()...)
	resp, err := browser.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if len(hops) != 2 || hops[1] != "/seats?row=1" {
		t.Errorf("hops %q", hops)
	}
	if sum := s.summary("premiere"); sum.LastSeq != 1 {
		t.Errorf("%d tickets", sum.LastSeq)
	}
}

func TestNoCookiesNoLoop(t *testing.T) { // cases/room 11
	s := build(t, nil, config("premiere", 5))
	hops := 0
	browser := &http.Client{Transport: plain.Transport, Timeout: 10 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error {
		hops++
		return nil
	}}
	resp, err := browser.Do(request(t, s.public.URL, "GET", "/wait/premiere?next=/seats", "", navigation()...))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if hops > 3 || resp.StatusCode != 403 {
		t.Errorf("%d hops, then %d", hops, resp.StatusCode)
	}
	if n := s.summary("premiere").LastSeq; n != 1 {
		t.Errorf("%d tickets", n)
	}
}

func TestPagesQueueNothing(t *testing.T) { // cases/room 23
	s := inState(t, "")
	r := s.do("GET", "/wait/premiere", "", navigation()...)
	for _, word := range []string{`src="/`, `src="http`, `href="http`, "@import", `rel="stylesheet"`} {
		if strings.Contains(string(r.body), word) {
			t.Errorf("the page fetches something: %s", word)
		}
	}
	cookie := "usher-premiere=" + r.cookie("usher-premiere").Value
	for i := range 40 {
		s.do("GET", "/v1/rooms/premiere/status", "", "Cookie", cookie).is(t, 200, "")
		s.do("GET", fmt.Sprintf("/wait/premiere?%d", i), "", navigation("Cookie", cookie)...).is(t, 202, "")
	}
	if n := s.summary("premiere").LastSeq; n != 2 {
		t.Errorf("%d tickets", n)
	}
}

func TestSharedDocuments(t *testing.T) {
	c := config("premiere", 1)
	c.Match = []room.Match{{Host: "tickets.test", Path: "/premiere"}}
	c.Origin = "http://127.0.0.1:1"
	s := build(t, nil, c)
	for _, path := range []string{"/v1/openapi.json", "/.well-known/jwks.json", "/health/live", "/health/ready"} {
		s.do("GET", path, "").is(t, 200, "")
		s.do("HEAD", path, "").is(t, 200, "")
		s.do("GET", "/.usher"+path, "", "Host", "tickets.test").is(t, 200, "")
		send(t, request(t, s.admin.URL, "GET", path, "")).is(t, 200, "")
	}
	r := s.do("GET", "/.well-known/jwks.json", "")
	if r.header.Get("Access-Control-Allow-Origin") != "*" || !strings.Contains(string(r.body), `"Ed25519"`) || strings.Contains(string(r.body), `"d"`) {
		t.Errorf("%v %s", r.header, r.body)
	}
	s.store.mu.Lock()
	s.store.sick = fmt.Errorf("%w: the disk is full; free some", room.ErrUnavailable)
	s.store.mu.Unlock()
	s.do("GET", "/health/live", "").is(t, 200, "")
	if r = s.do("GET", "/health/ready", ""); strings.Contains(string(r.body), "disk") {
		t.Errorf("strangers are told too much: %s", r.body)
	}
	r.is(t, 503, "engine_unavailable")
	r = send(t, request(t, s.admin.URL, "GET", "/health/ready", ""))
	r.is(t, 503, "engine_unavailable")
	if !strings.Contains(string(r.body), "disk is full") {
		t.Errorf("%s", r.body)
	}
}

// In front of an origin every path but ours is the origin's; where there is none, plain paths are answered too.
func TestWhereTheAPILives(t *testing.T) {
	proxied, checked := config("proxied", 1), config("checked", 1)
	proxied.Match, proxied.Origin = []room.Match{{Host: "shop.test", Path: "/sale"}}, "http://127.0.0.1:1"
	checked.Match = []room.Match{{Host: "tickets.test", Path: "/"}}
	s := build(t, nil, proxied, checked)
	for _, tc := range []struct {
		host, path string
		ours       bool
	}{
		{"usher.test", "/v1/rooms/proxied/now", true},
		{"usher.test", "/.usher/v1/rooms/proxied/now", false},
		{"shop.test", "/.usher/v1/rooms/proxied/now", true},
		{"SHOP.test:8080", "/.usher/v1/rooms/checked/now", true},
		{"shop.test", "/v1/rooms/proxied/now", false},
		{"shop.test", "/health/live", false},
		{"shop.test", "/.usherx/v1/rooms/proxied/now", false},
		{"tickets.test", "/.usher/v1/rooms/checked/now", true},
		{"tickets.test", "/v1/rooms/checked/now", true},
		{"tickets.test", "/health/live", true},
		{"tickets.test", "/.well-known/jwks.json", true},
	} {
		r := exchange(t, request(t, s.public.URL, "GET", tc.path, "", "Host", tc.host)) // some are the origin's
		if ours := r.status == 200; ours != tc.ours {
			t.Errorf("%s%s: %d %s", tc.host, tc.path, r.status, r.body)
		}
	}
}
