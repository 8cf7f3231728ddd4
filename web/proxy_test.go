package web_test

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/admission"
	"github.com/ushergo/usher/web"
)

// raw sends bytes to the public listener and returns the connection and a reader of what comes back.
func (s *site) raw(text string) (net.Conn, *bufio.Reader) {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.public.URL, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		s.t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// inside makes a site with one room and a visitor who is inside.
func inside(t testing.TB, change func(*web.Options), h http.HandlerFunc) (*site, string) {
	t.Helper()
	s := build(t, change, behind("premiere", 2, newOrigin(t, h)))
	return s, s.do("POST", "/.usher/v1/rooms/premiere/enter", "").secret(t)
}

// What clients say in usher's name stays behind, however it is spelled; what is the visitor's goes on.
func TestOnlyUsherSpeaksForUsher(t *testing.T) {
	var got seen
	s, ticket := inside(t, nil, got.shop)
	_, r := s.raw("POST /premiere?a=1;b=%zz HTTP/1.1\r\nHost: tickets.test\r\n" +
		"X-Usher-Room: evil\r\nx_usher_ticket_id: evil\r\nX-USHER_TOKEN: evil\r\nX-Usher-Anything: evil\r\nX.Usher.Room: evil\r\nX-usher_Room: evil\r\nUsher-Ticket: " + ticket + "\r\n" +
		"Connection: close, X-Usher-Token, X-Usher-Room, X-Mine-Alone\r\nX-Mine-Alone: 1\r\n" +
		"X-Original-URL: /admin\r\nx_rewrite_url: /admin\r\nX-Mine: 2\r\n" +
		"Cookie: a=1;usher-premiere=" + ticket + " ; b=\"x; y\";__Host-usher-premiere=z; usher-premiere.pass=p\r\nCookie: usher-premiere=" + ticket + "\r\nCookie: usher-theme=dark; usher-=1; __Host-usher-other=1\r\n" +
		"Transfer-Encoding: chunked\r\nTrailer: X-Usher-Token\r\n\r\n3\r\nabc\r\n0\r\nX-Usher-Token: evil\r\n\r\n")
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("%d %s", resp.StatusCode, b)
	}
	in := got.last(t)
	if in.RequestURI != "/premiere?a=1;b=%zz" || in.Host != "tickets.test" {
		t.Errorf("%s for %s", in.RequestURI, in.Host)
	}
	if text := fmt.Sprint(in.Header, in.Trailer); strings.Contains(text, "evil") || strings.Contains(text, ticket) || strings.Contains(text, "/admin") {
		t.Errorf("%s", text)
	}
	for _, name := range []string{admission.HeaderRoom, admission.HeaderTicketID, admission.HeaderToken} {
		if len(in.Header[name]) != 1 {
			t.Errorf("%s: %q", name, in.Header[name])
		}
	}
	if in.Header.Get("X-Mine") != "2" || in.Header.Get("X-Mine-Alone") != "" {
		t.Errorf("%v", in.Header)
	}
	if c := in.Header["Cookie"]; len(c) != 2 || c[0] != `a=1; b="x; y"` || c[1] != "usher-theme=dark; usher-=1; __Host-usher-other=1" {
		t.Errorf("cookies %q", c)
	}
}

// Where no room stands in front, nothing of ours goes on either.
func TestPassingByCarriesNothing(t *testing.T) {
	var got seen
	c := behind("premiere", 2, newOrigin(t, got.shop), "/premiere")
	s := build(t, nil, c)
	ticket := s.do("POST", "/.usher/v1/rooms/premiere/enter", "").secret(t)
	isOK(t, s.do("GET", "/about", "", "X-Usher-Token", "evil", "Usher-Ticket", ticket, "Cookie", "usher-premiere="+ticket, "Cookie", "mine=1"))
	in := got.last(t)
	if in.Header.Get("X-Usher-Token") != "" || in.Header.Get("Usher-Ticket") != "" || len(in.Header["Cookie"]) != 1 || in.Header.Get("Cookie") != "mine=1" {
		t.Errorf("%v", in.Header)
	}
	// An origin cannot end sessions where it has none, and its word about it stays inside.
	r := s.do("GET", "/about/thanks", "", "Cookie", "usher-premiere="+ticket)
	if r.header.Get("Usher-Session") != "" || s.summary("premiere").Active != 1 {
		t.Errorf("%v", r.header)
	}
	if r.header.Get("Cache-Control") != "" {
		t.Errorf("Cache-Control %q on a page that anybody may see", r.header.Get("Cache-Control"))
	}
}

func TestForwardedHeaders(t *testing.T) {
	var got seen
	for _, tc := range []struct {
		name    string
		trusted bool
		send    []string
		want    map[string]string
	}{
		{"a stranger's are replaced", false, []string{"X-Forwarded-For", "1.2.3.4", "X-Forwarded-Proto", "https", "X-Forwarded-Host", "evil.test", "X_Forwarded_For", "1.2.3.4", "X-Real-IP", "1.2.3.4", "X-Forwarded-Uri", "/x", "Forwarded", "for=1.2.3.4"},
			map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "tickets.test", "X-Real-Ip": "", "X-Forwarded-Uri": "", "Forwarded": "", "X_forwarded_for": ""}},
		{"a trusted proxy's are passed on", true, []string{"X-Forwarded-For", "203.0.113.9, 10.0.0.1", "X-Forwarded-Proto", "https", "X-Forwarded-Host", "Tickets.test:443", "X-Real-IP", "203.0.113.9"},
			map[string]string{"X-Forwarded-For": "203.0.113.9, 10.0.0.1, 127.0.0.1", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "Tickets.test:443", "X-Real-Ip": "203.0.113.9"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := build(t, func(o *web.Options) {
				if !tc.trusted {
					o.TrustedProxies = nil
				}
			}, behind("premiere", 9, newOrigin(t, got.shop)))
			r := s.do("GET", "/", "", navigation(append(tc.send, "Host", "tickets.test")...)...)
			isOK(t, r)
			in := got.last(t)
			for name, want := range tc.want {
				if v := strings.Join(in.Header[name], "|"); v != want {
					t.Errorf("%s: %q, want %q", name, v, want)
				}
			}
			if in.Host != tc.want["X-Forwarded-Host"] {
				t.Errorf("Host %q", in.Host)
			}
			if name := map[bool]string{false: "usher-premiere", true: "__Host-usher-premiere"}[tc.trusted]; r.cookie(name) == nil || r.cookie(name).Secure != tc.trusted {
				t.Errorf("cookies %v", r.header["Set-Cookie"])
			}
		})
	}
}

func TestPathIsForwardedAsItCame(t *testing.T) {
	var got seen
	s, ticket := inside(t, nil, got.shop)
	for _, path := range []string{"/a%2Fb%2fc", "/a|b^c`d{e}", "/%41%7e~", "/a//b/../c;x=1?q=a;b&c=%zz+%20", "//double", "/?", "/x?", "/ümlaut", "/a%20b", "/*", "/a[0]"} {
		_, r := s.raw("GET " + path + " HTTP/1.1\r\nHost: t.test\r\nUsher-Ticket: " + ticket + "\r\nConnection: close\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		b, _ := io.ReadAll(resp.Body)
		if want := "shop GET " + path; resp.StatusCode != 200 || string(b) != want {
			t.Errorf("%d %q, want %q", resp.StatusCode, b, want)
		}
	}
}

func TestAnswersAreMadePrivate(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		for name, v := range r.URL.Query() {
			w.Header()[http.CanonicalHeaderKey(name)] = v
		}
	}
	for _, tc := range []struct{ send, want string }{
		{"", "private"},
		{"public, max-age=60", "max-age=60, private"},
		{"s-maxage=10,MAX-AGE=5, Public", "MAX-AGE=5, private"},
		{"no-store", "no-store"},
		{`private="x,public", no-cache="a, b"`, `no-cache="a, b", private`},
		{"immutable", "immutable, private"},
		{",,", "private"},
	} {
		s, ticket := inside(t, nil, h)
		r := s.do("GET", "/?cache-control="+strings.NewReplacer(" ", "%20", `"`, "%22", ",", "%2C", "=", "%3D").Replace(tc.send)+"&cdn-cache-control=public&surrogate-control=max-age%3D9&x-accel-expires=9&cloudflare-cdn-cache-control=a", "", "Usher-Ticket", ticket)
		if got := strings.Join(r.header["Cache-Control"], "|"); got != tc.want {
			t.Errorf("%q became %q, want %q", tc.send, got, tc.want)
		}
		for name := range r.header {
			if strings.Contains(name, "Cdn-") || strings.HasPrefix(name, "Surrogate") || strings.HasPrefix(name, "X-Accel") {
				t.Errorf("%s stayed", name)
			}
		}
	}
	c := behind("premiere", 2, newOrigin(t, h))
	c.SharedCache = true
	s := build(t, nil, c)
	alice := s.browser()
	if r := alice.open("/?cache-control=public"); r.header.Get("Cache-Control") != "private" { // it carries her ticket
		t.Errorf("with a ticket: %q", r.header.Get("Cache-Control"))
	}
	if r := alice.open("/?cache-control=public"); r.header.Get("Cache-Control") != "public" {
		t.Errorf("shared_cache: %q", r.header.Get("Cache-Control"))
	}
}

func TestBodiesBothWays(t *testing.T) {
	const size = 20 << 20
	s, ticket := inside(t, nil, func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, err := io.Copy(sum, r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Length", fmt.Sprint(r.ContentLength))
		_, _ = io.Copy(w, io.LimitReader(zeros{}, n))
		w.Header().Set("X-Sum", fmt.Sprintf("%x", sum.Sum(nil)))
	})
	want := sha256.New()
	_, _ = io.Copy(want, io.LimitReader(zeros{}, size))
	for _, chunked := range []bool{false, true} {
		req := request(t, s.public.URL, "POST", "/upload", "", "Usher-Ticket", ticket, "Expect", "100-continue")
		req.Body, req.ContentLength = io.NopCloser(io.LimitReader(zeros{}, size)), size
		if chunked {
			req.ContentLength = -1
		}
		resp, err := plain.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil || n != size || resp.Trailer.Get("X-Sum") != fmt.Sprintf("%x", want.Sum(nil)) || resp.Header.Get("X-Length") != fmt.Sprint(req.ContentLength) {
			t.Errorf("chunked %v: %d bytes, %v, trailer %v, length %s", chunked, n, err, resp.Trailer, resp.Header.Get("X-Length"))
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A client that waits for leave to send its body gets it from the origin, and is not asked for a body that
// nobody wants.
func TestExpectContinue(t *testing.T) {
	s, ticket := inside(t, nil, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "got %s", b)
	})
	conn, r := s.raw("POST / HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 3\r\nUsher-Ticket: " + ticket + "\r\n\r\n")
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("%q %v", line, err)
	}
	_, _ = r.ReadString('\n')
	_, _ = io.WriteString(conn, "abc")
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(resp.Body); string(b) != "got abc" {
		t.Errorf("%s", b)
	}
	_, r = s.raw("POST / HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "401") {
		t.Errorf("%q %v", line, err)
	}
}

// Two lengths, a length beside chunks, a space before the colon: nothing that two servers would read
// differently reaches the origin, and nothing hidden in it does.
func TestSmuggling(t *testing.T) {
	var got seen
	s, ticket := inside(t, nil, got.shop)
	for name, head := range map[string]string{
		"two lengths":      "Content-Length: 3\r\nContent-Length: 44\r\n",
		"length in list":   "Content-Length: 3, 44\r\n",
		"chunked twice":    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
		"odd encoding":     "Transfer-Encoding: xchunked\r\n",
		"space in name":    "Transfer-Encoding : chunked\r\n",
		"length + chunked": "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
		"folded":           "X-A: b\r\n Transfer-Encoding: chunked\r\n",
		"bare LF":          "X-A: b\nTransfer-Encoding: chunked\r\n",
		"plus":             "Content-Length: +3\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, r := s.raw("POST /front HTTP/1.1\r\nHost: t\r\nUsher-Ticket: " + ticket + "\r\n" + head + "\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: t\r\nUsher-Ticket: " + ticket + "\r\n\r\n")
			_, _ = http.ReadResponse(r, nil)
		})
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	for _, in := range got.list { // a request of its own in the same connection is one that was decided about
		if in.RequestURI == "/smuggled" && in.Header.Get(admission.HeaderToken) == "" {
			t.Errorf("reached the origin unseen: %v", in.Header)
		}
		if len(in.TransferEncoding) > 0 && in.Header.Get("Content-Length") != "" {
			t.Errorf("both lengths: %v", in.Header)
		}
	}
}
