package web_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/admission"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/web"
)

// behind makes a room in front of some paths of an origin; none: of all.
func behind(id string, active int64, origin *httptest.Server, paths ...string) room.Config {
	c := config(id, active)
	if origin != nil {
		c.Origin = origin.URL
	}
	if len(paths) == 0 {
		paths = []string{"/"}
	}
	for _, p := range paths {
		c.Match = append(c.Match, room.Match{Path: p})
	}
	return c
}

func newOrigin(t testing.TB, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	o := httptest.NewServer(h)
	t.Cleanup(o.Close)
	return o
}

// seen keeps the requests that an origin was sent.
type seen struct {
	mu   sync.Mutex
	list []*http.Request
}

func (s *seen) add(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, r.Clone(r.Context()))
}

func (s *seen) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list)
}

func (s *seen) last(t testing.TB) *http.Request {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == 0 {
		t.Fatal("the origin was sent nothing")
	}
	return s.list[len(s.list)-1]
}

// shop is an origin that says what it was asked for, and ends the session when asked for /thanks.
func (s *seen) shop(w http.ResponseWriter, r *http.Request) {
	s.add(r)
	if strings.HasSuffix(r.URL.Path, "/thanks") {
		w.Header().Set("Usher-Session", "end")
	}
	fmt.Fprintf(w, "shop %s %s", r.Method, r.RequestURI)
}

// browser keeps cookies and follows no redirect by itself.
type browser struct {
	s   *site
	jar http.CookieJar
}

func (s *site) browser() *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return &browser{s, jar}
}

func (b *browser) send(method, path, body string, pairs ...string) reply {
	b.s.t.Helper()
	req := request(b.s.t, b.s.public.URL, method, path, body, pairs...)
	u, _ := url.Parse(b.s.public.URL)
	for _, c := range b.jar.Cookies(u) {
		req.AddCookie(c)
	}
	r := send(b.s.t, req)
	b.jar.SetCookies(u, (&http.Response{Header: r.header}).Cookies())
	return r
}

// open opens a page, fetch is what a script of the page does.
func (b *browser) open(path string) reply {
	b.s.t.Helper()
	return b.send("GET", path, "", navigation()...)
}

func (b *browser) fetch(method, path string) reply {
	b.s.t.Helper()
	return b.send(method, path, "", "Accept", "*/*", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Site", "same-origin")
}

func (b *browser) cookie(name string) string {
	u, _ := url.Parse(b.s.public.URL)
	for _, c := range b.jar.Cookies(u) {
		if c.Name == name {
			return c.Value
		}
	}
	return ""
}

func isPage(t testing.TB, r reply, status int, word string) {
	t.Helper()
	if r.status != status || !strings.HasPrefix(r.header.Get("Content-Type"), "text/html") || !strings.Contains(string(r.body), word) {
		t.Fatalf("%d %v, want a page with status %d and %q in it: %.300s", r.status, r.header["Content-Type"], status, word, r.body)
	}
	if r.header.Get("Cache-Control") != "no-store" {
		t.Errorf("Cache-Control %q", r.header.Get("Cache-Control"))
	}
}

func TestFirstRequestPassesWithItsTicket(t *testing.T) {
	var got seen
	s := build(t, nil, behind("premiere", 1, newOrigin(t, got.shop)))
	alice := s.browser()
	r := alice.open("/seats?row=4")
	if r.status != 200 || string(r.body) != "shop GET /seats?row=4" || r.header.Get("Location") != "" {
		t.Fatalf("%d %s", r.status, r.body)
	}
	c := r.cookie("usher-premiere")
	if c == nil || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Domain != "" {
		t.Fatalf("cookie %+v", c)
	}
	in := got.last(t)
	a, err := s.keys.Verify("premiere", in.Header.Get("X-Usher-Token"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if in.Header.Get("X-Usher-Room") != "premiere" || in.Header.Get("X-Usher-Ticket-Id") != a.TicketID {
		t.Errorf("the origin saw %v", in.Header)
	}
	if in.Header.Get("Cookie") != "" || strings.Contains(fmt.Sprint(in.Header), c.Value) {
		t.Errorf("the origin saw the secret: %v", in.Header)
	}
	if sum := s.summary("premiere"); sum.Active != 1 || sum.LastSeq != 1 {
		t.Errorf("%+v", sum)
	}
	// The token is signed once for a renewal, not once for a request.
	alice.open("/")
	if again := got.last(t).Header.Get("X-Usher-Token"); again != in.Header.Get("X-Usher-Token") {
		t.Error("the token was signed anew")
	}
}

func TestOthersWaitInPlace(t *testing.T) {
	var got seen
	s := build(t, nil, behind("premiere", 1, newOrigin(t, got.shop)))
	alice, bob := s.browser(), s.browser()
	alice.open("/")
	r := bob.open("/seats?row=4")
	isPage(t, r, 202, "/seats?row=4")
	if !strings.Contains(r.header.Get("X-Robots-Tag"), "noindex") {
		t.Error("the page may be indexed")
	}
	ticket := bob.cookie("usher-premiere")
	if ticket == "" || strings.Contains(string(r.body), ticket) {
		t.Error("no cookie, or the secret in the page")
	}
	for range 100 { // cases/room 3: refreshing costs nothing
		isPage(t, bob.open("/seats?row=4"), 202, "/seats?row=4")
	}
	if bob.cookie("usher-premiere") != ticket || s.summary("premiere").LastSeq != 2 {
		t.Error("a refresh took another ticket")
	}
	r = bob.fetch("GET", "/api")
	r.is(t, 401, "not_admitted")
	doc := r.doc(t)
	if doc["state"] != "waiting" || doc["place"] != 1.0 || doc["waiting"] != 1.0 || doc["poll_after_ms"].(float64) < 1000 || r.header.Get("Retry-After") == "" {
		t.Errorf("%v %v", doc, r.header)
	}
	if got.len() != 1 {
		t.Errorf("the origin was sent %d requests", got.len())
	}
	// A form that is sent while waiting is refused, and no 2xx. cases/room 25
	isPage(t, bob.send("POST", "/buy", "seat=4", navigation("Content-Type", "application/x-www-form-urlencoded")...), 401, `"state":"waiting"`)
	s.do("GET", "/seats", "", navigation("Sec-Purpose", "prefetch", "Cookie", "usher-premiere="+ticket)...).is(t, 503, "prefetch")

	isOK(t, alice.send("GET", "/thanks", ""))
	if r := bob.open("/seats?row=4"); r.status != 200 || string(r.body) != "shop GET /seats?row=4" {
		t.Fatalf("%d %.200s", r.status, r.body)
	}
}

func isOK(t testing.TB, r reply) {
	t.Helper()
	if r.status != 200 {
		t.Fatalf("%d: %.300s", r.status, r.body)
	}
}

func TestEndFreesTheSlotAtOnce(t *testing.T) {
	var got seen
	s := build(t, nil, behind("premiere", 1, newOrigin(t, got.shop)))
	alice, bob := s.browser(), s.browser()
	alice.open("/")
	bob.open("/")
	// What visitors send is not believed.
	alice.send("GET", "/", "", "Usher-Session", "end", "usher_session", "end")
	if s.summary("premiere").Waiting != 1 {
		t.Fatal("a visitor's own header ended the session")
	}
	r := alice.send("POST", "/thanks", "")
	isOK(t, r)
	if r.header.Get("Usher-Session") != "" {
		t.Error("the header reached the visitor")
	}
	old := alice.cookie("usher-premiere")
	if sum := s.summary("premiere"); sum.Waiting != 0 || sum.Active != 1 { // when the answer is read, it has happened
		t.Errorf("%+v", sum)
	}
	isOK(t, bob.open("/"))
	// The last page's own files still come; nothing else does, and the next page queues.
	isOK(t, alice.fetch("GET", "/thanks.css"))
	if in := got.last(t); in.Header.Get(admission.HeaderToken) != "" {
		t.Error("a ticket that has ended brought an admission")
	}
	alice.fetch("POST", "/buy").is(t, 410, "ticket_ended")
	isPage(t, alice.open("/"), 202, "")
	if alice.cookie("usher-premiere") == old {
		t.Error("no new ticket for the next page")
	}
	alice.fetch("GET", "/thanks.css").is(t, 401, "not_admitted")
}

// The very first answer may end the session: the ticket it came with is set all the same, for the page's own files.
func TestFirstAnswerEnds(t *testing.T) {
	var got seen
	s := build(t, nil, behind("premiere", 1, newOrigin(t, got.shop)))
	alice := s.browser()
	isOK(t, alice.open("/thanks"))
	if alice.cookie("usher-premiere") == "" || s.summary("premiere").Active != 0 {
		t.Errorf("cookie %q, %+v", alice.cookie("usher-premiere"), s.summary("premiere"))
	}
	isOK(t, alice.fetch("GET", "/thanks.css"))
}

func TestEndedTickets(t *testing.T) {
	var got seen
	s := build(t, nil, behind("premiere", 1, newOrigin(t, got.shop), "/premiere"))
	alice, bob := s.browser(), s.browser()
	alice.open("/premiere")
	alice.send("POST", "/.usher/v1/rooms/premiere/leave", "").is(t, 204, "")
	bob.open("/premiere")
	n := got.len()
	r := alice.fetch("GET", "/premiere/api")
	r.is(t, 410, "ticket_ended")
	if doc := r.doc(t); doc["state"] != "ended" || doc["reason"] != "left" {
		t.Errorf("%v", doc)
	}
	if r.header.Get("Set-Cookie") != "" { // a page may have taken a new ticket meanwhile
		t.Error("a late answer to a fetch touched the cookie")
	}
	r = alice.send("POST", "/premiere/buy", "seat=4", navigation()...)
	isPage(t, r, 410, `"state":"ended"`)
	isPage(t, r, 410, "/premiere")
	old := alice.cookie("usher-premiere")
	isPage(t, alice.open("/premiere"), 202, "")
	if alice.cookie("usher-premiere") == old || s.summary("premiere").LastSeq != 3 {
		t.Error("no new ticket")
	}
	if got.len() != n {
		t.Error("the origin was asked")
	}
}

func TestWithoutTicket(t *testing.T) {
	var got seen
	c := behind("premiere", 5, newOrigin(t, got.shop))
	c.CORS = []string{"https://app.test"}
	s := build(t, nil, c)
	for _, tc := range []struct {
		name   string
		method string
		header []string
		status int
		code   string
	}{
		{"fetch", "GET", []string{"Sec-Fetch-Mode", "cors", "Accept", "*/*"}, 401, "ticket_missing"},
		{"axios", "GET", []string{"Accept", "application/json, text/plain, */*"}, 401, "ticket_missing"}, // cases/room 10
		{"problem", "GET", []string{"Accept", "application/problem+json"}, 401, "ticket_missing"},
		{"style", "GET", []string{"Accept", "text/css,*/*;q=0.1", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "style"}, 401, "ticket_missing"}, // cases/room 23
		{"image", "GET", []string{"Accept", "image/avif,image/webp,*/*;q=0.8", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, 401, "ticket_missing"},
		{"post", "POST", []string{"Content-Type", "application/json"}, 401, "ticket_missing"},
		{"invalid", "GET", []string{"Usher-Ticket", "AQ" + strings.Repeat("x", 66)}, 401, "ticket_invalid"},
		{"another's id", "GET", []string{"Usher-Ticket", strings.Repeat("a", 26)}, 401, "ticket_invalid"}, // cases/room 16
		{"bearer is the origin's", "GET", []string{"Authorization", "Bearer x"}, 401, "ticket_missing"},
		{"prefetch", "GET", navigation("Sec-Purpose", "prefetch"), 503, "prefetch"},
		{"foreign fetch", "GET", []string{"Origin", "https://evil.test", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Site", "cross-site"}, 401, "ticket_missing"},
		{"websocket", "GET", []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}, 401, "ticket_missing"},
		{"foreign preflight", "OPTIONS", []string{"Origin", "https://evil.test", "Access-Control-Request-Method", "POST"}, 403, "cross_site"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := s.do(tc.method, "/seats", "", tc.header...)
			r.is(t, tc.status, tc.code)
			if r.header.Get("Set-Cookie") != "" || r.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%v", r.header)
			}
		})
	}
	head := s.do("HEAD", "/seats", "", navigation()...)
	if head.status != 401 {
		t.Errorf("HEAD: %d", head.status)
	}
	isPage(t, s.do("POST", "/buy", "seat=4", navigation()...), 401, `"state":"ended"`)
	if got.len() != 0 || s.summary("premiere").LastSeq != 0 {
		t.Fatalf("%d requests passed, %d tickets were taken", got.len(), s.summary("premiere").LastSeq)
	}
	// A listed page may ask, and may read the refusal. cases/room 10
	r := s.do("GET", "/seats", "", "Origin", "https://app.test", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Site", "cross-site")
	r.is(t, 401, "ticket_missing")
	if r.header.Get("Access-Control-Allow-Origin") != "https://app.test" || !strings.Contains(strings.Join(r.header["Vary"], ","), "Origin") {
		t.Errorf("%v", r.header)
	}
	isOK(t, s.do("OPTIONS", "/seats", "", "Origin", "https://app.test", "Access-Control-Request-Method", "POST"))
	if in := got.last(t); in.Method != "OPTIONS" || in.Header.Get("Access-Control-Request-Method") != "POST" || in.Header.Get("X-Usher-Token") != "" {
		t.Errorf("%s %v", in.Method, in.Header)
	}
}

func TestTicketInAHeader(t *testing.T) { // cases/room 11
	var got seen
	s := build(t, nil, behind("premiere", 1, newOrigin(t, got.shop)))
	r := s.do("POST", "/.usher/v1/rooms/premiere/enter", "")
	r.is(t, 200, "")
	secret := r.secret(t)
	for range 3 {
		r = s.do("GET", "/api", "", "Usher-Ticket", secret, "Accept", "application/json", "Authorization", "Bearer of-the-origin")
		isOK(t, r)
		if r.header.Get("Set-Cookie") != "" {
			t.Error("a cookie for one who uses none")
		}
	}
	in := got.last(t)
	if in.Header.Get("Usher-Ticket") != "" || in.Header.Get("Authorization") != "Bearer of-the-origin" {
		t.Errorf("%v", in.Header)
	}
	other := s.do("POST", "/.usher/v1/rooms/premiere/enter", "").secret(t)
	s.do("GET", "/api", "", "Usher-Ticket", secret, "Cookie", "usher-premiere="+other).is(t, 400, "ticket_conflict")
}

func TestOnePageIsOneVisitor(t *testing.T) { // cases/room 23
	var got seen
	s := build(t, nil, behind("premiere", 5, newOrigin(t, got.shop)))
	alice := s.browser()
	isOK(t, alice.open("/"))
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			r := alice.fetch("GET", fmt.Sprintf("/asset/%d.js", i))
			if r.status != 200 {
				t.Errorf("%d: %s", r.status, r.body)
			}
		})
	}
	wg.Wait()
	if sum := s.summary("premiere"); sum.Active != 1 || sum.LastSeq != 1 || got.len() != 41 {
		t.Errorf("%d active, %d tickets, %d requests", sum.Active, sum.LastSeq, got.len())
	}
}

func TestNoCookiesNoLoopInFrontOfAnOrigin(t *testing.T) { // cases/room 11
	var got seen
	s := build(t, nil, behind("premiere", 2, newOrigin(t, got.shop)))
	hops := 0
	forgetful := &http.Client{Timeout: plain.Timeout, CheckRedirect: func(*http.Request, []*http.Request) error { hops++; return nil }}
	var last int
	for range 4 {
		resp, err := forgetful.Do(request(t, s.public.URL, "GET", "/", "", navigation()...))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		last = resp.StatusCode
	}
	if hops != 0 || last != 202 {
		t.Errorf("%d redirects, at last %d", hops, last)
	}
}

func TestMostSpecificRoom(t *testing.T) {
	var gotSite, gotSale, gotVIP seen
	site, sale, vip := behind("site", 5, newOrigin(t, gotSite.shop), "/shop"), behind("sale", 5, newOrigin(t, gotSale.shop), "/shop/sale"), behind("vip", 5, newOrigin(t, gotVIP.shop), "/shop/sale/vip")
	inner := behind("inner", 5, nil, "/shop/inner")
	s := build(t, nil, site, sale, vip, inner)
	for _, tc := range []struct {
		path, room string
		origin     *seen
	}{
		{"/shop", "site", &gotSite}, {"/shop/", "site", &gotSite}, {"/shop/sales", "site", &gotSite}, {"/shop/sale", "sale", &gotSale}, {"/SHOP/Sale/x", "sale", &gotSale},
		{"/shop/sale/vip/1", "vip", &gotVIP}, {"/shopping", "", &gotSite}, {"/", "", &gotSite}, {"/robots.txt", "", &gotSite},
		{"/shop/inner", "inner", &gotSite}, // no origin of its own: that of the host
	} {
		n := tc.origin.len()
		r := s.browser().open(tc.path)
		if r.status != 200 || tc.origin.len() != n+1 {
			t.Errorf("%s: %d %.100s", tc.path, r.status, r.body)
			continue
		}
		if got := tc.origin.last(t).Header.Get("X-Usher-Room"); got != tc.room {
			t.Errorf("%s went through room %q, want %q", tc.path, got, tc.room)
		}
		if (r.cookie("usher-"+tc.room) != nil) != (tc.room != "") {
			t.Errorf("%s: cookies %v", tc.path, r.header["Set-Cookie"])
		}
	}
}

func TestNothingBehind(t *testing.T) {
	s := build(t, nil, behind("premiere", 5, nil, "/premiere"))
	s.do("GET", "/other", "").is(t, 404, "not_found")
	r := s.do("GET", "/premiere", "", navigation()...)
	r.is(t, 404, "no_origin")
	if s.summary("premiere").LastSeq != 0 {
		t.Error("people queue for nothing")
	}
	if r := s.do("CONNECT", "/premiere", ""); r.status != 405 {
		t.Errorf("CONNECT: %d", r.status)
	}
}

func TestRefusedVisitorsGetNo2xx(t *testing.T) { // cases/room 25
	for _, tc := range []struct {
		name   string
		change func(*room.Config)
		state  string
		status int
		code   string
	}{
		{"closed", nil, room.StateClosed, 403, "room_closed"},
		{"not open", func(c *room.Config) { c.Schedule.OpensAt = room.Time{Time: time.Now().Add(time.Hour)} }, "", 403, "room_not_open"},
		{"full", func(c *room.Config) { c.Queue.Order = room.Reject }, "", 429, "room_full"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got seen
			c := behind("premiere", 1, newOrigin(t, got.shop))
			if tc.change != nil {
				tc.change(&c)
			}
			s := build(t, nil, c)
			if tc.code == "room_full" {
				isOK(t, s.browser().open("/"))
			}
			if tc.state != "" {
				if r := s.api("POST", "/admin/v1/rooms/premiere/state", `{"state":"`+tc.state+`","message":"Come back at nine."}`); r.status >= 300 {
					t.Fatalf("%d %s", r.status, r.body)
				}
			}
			n := got.len()
			r := s.do("GET", "/", "", navigation()...)
			isPage(t, r, tc.status, "")
			if tc.state != "" && !strings.Contains(string(r.body), "Come back at nine.") {
				t.Error("without the operator's message")
			}
			if r.header.Get("Set-Cookie") != "" || got.len() != n {
				t.Error("a cookie, or a request to the origin")
			}
		})
	}
}

func TestPausedRoomKeepsThoseInside(t *testing.T) { // cases/room 26
	var got seen
	s := build(t, nil, behind("premiere", 1, newOrigin(t, got.shop)))
	alice, bob := s.browser(), s.browser()
	alice.open("/")
	if r := s.api("POST", "/admin/v1/rooms/premiere/state", `{"state":"paused","message":"Five minutes."}`); r.status >= 300 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	isOK(t, alice.open("/"))
	isPage(t, bob.open("/"), 202, "Five minutes.")
}

func TestTokenSaysNoMoreThanItMust(t *testing.T) {
	var got seen
	s := build(t, func(o *web.Options) { o.PublicURL = "http://tickets.test" }, behind("premiere", 1, newOrigin(t, got.shop)))
	s.browser().open("/")
	parts := strings.Split(got.last(t).Header.Get("X-Usher-Token"), ".")
	if len(parts) != 3 {
		t.Fatalf("%q", parts)
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		Iss, Aud, Sub, Jti string
		Iat, Nbf, Exp      int64
	}
	if err := json.Unmarshal(raw, &claims); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	if claims.Iss != "http://tickets.test" || claims.Aud != "premiere" || claims.Sub != got.last(t).Header.Get("X-Usher-Ticket-Id") || claims.Exp-claims.Iat > 300 || claims.Jti == "" {
		t.Errorf("%s", raw)
	}
}
