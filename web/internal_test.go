package web

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ushergo/usher/room"
)

func TestNegotiation(t *testing.T) { // cases/room 10
	const chrome = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
	for _, tc := range []struct {
		accept, mode string
		page, wait   bool // on any address; on the page's own
	}{
		{chrome, "", true, true},
		{chrome, "navigate", true, true},
		{"*/*", "navigate", true, true},
		{"", "", false, true},
		{"*/*", "", false, true},
		{"application/json, text/plain, */*", "", false, false},
		{"application/json, text/plain, */*", "cors", false, false},
		{"application/problem+json", "", false, false},
		{"application/problem+json, text/html;q=0.5", "", false, false},
		{"text/html;q=0.5, application/json;q=0.4", "", true, true},
		{"text/html;q=0.4, application/json;q=0.5", "", false, false},
		{"text/html, application/json", "", false, false},
		{"text/html;q=0", "", false, false},
		{"text/*;q=0.9, application/json;q=0.1", "", true, true},
		{"text/html;q=x, */*;q=0.1", "", false, false},
		{"image/avif,image/webp,*/*", "no-cors", false, false},
		{"*/*", "cors", false, false},
		{"TEXT/HTML", "", true, true},
		{strings.Repeat("text/html,", 1000), "", false, false},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if tc.accept != "" {
			r.Header.Set("Accept", tc.accept)
		}
		if tc.mode != "" {
			r.Header.Set("Sec-Fetch-Mode", tc.mode)
		}
		if got := wantsPage(r); got != tc.page {
			t.Errorf("Accept %.60q, mode %q: page %v, want %v", tc.accept, tc.mode, got, tc.page)
		}
		if got := acceptsPage(r); got != tc.wait {
			t.Errorf("Accept %.60q, mode %q: wait %v, want %v", tc.accept, tc.mode, got, tc.wait)
		}
	}
}

func bare(public string, trusted ...string) *Server {
	u, _ := url.Parse(public)
	s := &Server{public: u, publicHost: hostOnly(u.Host)}
	for _, p := range trusted {
		s.opts.TrustedProxies = append(s.opts.TrustedProxies, netip.MustParsePrefix(p))
	}
	return s
}

func TestClientAddress(t *testing.T) {
	s := bare("http://usher.test", "10.0.0.0/8", "fd00::/8")
	for _, tc := range []struct {
		remote, xff, want string
	}{
		{"203.0.113.9:1", "", "203.0.113.9"},
		{"203.0.113.9:1", "198.51.100.1", "203.0.113.9"}, // a stranger's word
		{"10.0.0.1:1", "198.51.100.1", "198.51.100.1"},
		{"10.0.0.1:1", "6.6.6.6, 198.51.100.1", "198.51.100.1"}, // the visitor wrote the first
		{"10.0.0.1:1", "6.6.6.6, 198.51.100.1, 10.0.0.2", "198.51.100.1"},
		{"10.0.0.1:1", "10.0.0.3, 10.0.0.2", "10.0.0.3"},
		{"10.0.0.1:1", "6.6.6.6, junk, 10.0.0.2", "10.0.0.2"},
		{"10.0.0.1:1", "", "10.0.0.1"},
		{"10.0.0.1:1", "[2001:db8::1]:4711", "2001:db8::1"},
		{"10.0.0.1:1", "::ffff:198.51.100.1", "198.51.100.1"},
		{"[fd00::1]:1", "2001:db8::1", "2001:db8::1"},
		{"[::ffff:10.0.0.1]:1", "198.51.100.1", "198.51.100.1"},
		{"10.0.0.1:1", strings.Repeat("10.0.0.2,", 100) + "10.0.0.2", "10.0.0.2"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tc.remote
		if tc.xff != "" {
			r.Header.Set("X-Forwarded-For", tc.xff)
		}
		if c := s.client(r); c.addr.String() != tc.want {
			t.Errorf("%s, %.60s: %s, want %s", tc.remote, tc.xff, c.addr, tc.want)
		}
	}
}

func TestSchemeAndHost(t *testing.T) {
	for _, tc := range []struct {
		remote, host, proto, xhost string
		https                      bool
		want                       string
	}{
		{"203.0.113.9:1", "A.test:8080", "https", "b.test", false, "a.test"},
		{"10.0.0.1:1", "a.test", "https", "b.test", true, "b.test"},
		{"10.0.0.1:1", "a.test", "http", "", false, "a.test"},
		{"10.0.0.1:1", "a.test", "http, https", "evil.test, b.test", true, "b.test"},
		{"10.0.0.1:1", "a.test", "", "b test/", false, "a.test"},
		{"10.0.0.1:1", "[::1]:8080", "", "", false, "::1"},
		{"10.0.0.1:1", "a.test.", "", "", false, "a.test"},
		{"203.0.113.9:1", "public.test", "", "", true, "public.test"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr, r.Host = tc.remote, tc.host
		for k, v := range map[string]string{"X-Forwarded-Proto": tc.proto, "X-Forwarded-Host": tc.xhost} {
			if v != "" {
				r.Header.Set(k, v)
			}
		}
		c := bare("https://public.test", "10.0.0.0/8").client(r)
		if c.https != tc.https || c.host != tc.want {
			t.Errorf("%+v: https %v, host %s", tc, c.https, c.host)
		}
	}
}

func TestNextStaysHere(t *testing.T) { // cases/room 22
	s := bare("https://tickets.test")
	c := client{https: true, host: "tickets.test", hostRaw: "tickets.test"}
	for next, want := range map[string]string{
		"":                                 "",
		"/premiere?a=b&c=%2f%2fevil":       "/premiere?a=b&c=%2f%2fevil",
		"https://tickets.test/premiere":    "/premiere",
		"https://tickets.test":             "/",
		"https://tickets.test?x=1":         "/?x=1",
		"https://TICKETS.test:443/x#y":     "/x#y",
		"/%09/evil.test":                   "/%09/evil.test",
		"/\u00e9t\u00e9":                   "/\u00e9t\u00e9",
		"https://tickets.test//evil":       "!",
		"https://evil.test":                "!",
		"http://tickets.test/premiere":     "!", // would drop the encryption
		"//evil.test":                      "!",
		"/\\evil.test":                     "!",
		"\\\\evil.test":                    "!",
		"/\t/evil.test":                    "!",
		" //evil.test":                     "!",
		"/x\r\nSet-Cookie: a=b":            "!",
		"javascript:alert(1)":              "!",
		"data:text/html,x":                 "!",
		"https:evil.test":                  "!",
		"https:/evil.test":                 "!",
		"https:///evil.test":               "!",
		"https://tickets.test@evil.test":   "!",
		"https://tickets.test.evil.test":   "!",
		"https://evil.test#@tickets.test/": "!",
		"HTTPS://evil.test":                "!",
		"premiere":                         "!",
		"?x":                               "!",
		"/" + strings.Repeat("a", 5000):    "!",
	} {
		got, ok := safeNext(next, s, &c)
		if !ok {
			got = "!"
		}
		if got != want {
			t.Errorf("%.60q: %q, want %q", next, got, want)
		}
	}
}

// Whatever comes out of safeNext is resolved by a browser to this site.
func TestNextByURLParser(t *testing.T) {
	s := bare("https://tickets.test")
	c := client{https: true, host: "tickets.test", hostRaw: "tickets.test"}
	base, _ := url.Parse("https://tickets.test/wait/premiere")
	rapid.Check(t, func(t *rapid.T) {
		next := rapid.StringOfN(rapid.RuneFrom([]rune("/\\:@.?#evil\t\r\n%09 htps")), 0, 30, -1).Draw(t, "next")
		got, ok := safeNext(next, s, &c)
		if !ok || got == "" {
			return
		}
		u, err := base.Parse(strings.ReplaceAll(got, "\\", "/"))
		if err == nil && (u.Host != "tickets.test" || u.Scheme != "https") {
			t.Fatalf("%q became %q, which leads to %s", next, got, u)
		}
	})
}

func TestLimiter(t *testing.T) {
	now := time.Unix(0, 0)
	l := newLimiter(EnterLimit{Burst: 500, PerSecond: 10}, func() time.Time { return now })
	school := netip.MustParseAddr("203.0.113.1")
	for i := range 500 {
		if !l.take(school, false) {
			t.Fatalf("pupil %d was turned away", i)
		}
	}
	if l.take(school, false) {
		t.Error("the 501st was let in")
	}
	if !l.take(netip.MustParseAddr("203.0.113.2"), false) {
		t.Error("another address was turned away")
	}
	if now = now.Add(time.Second); !l.take(school, false) {
		t.Error("nothing came back in a second")
	}
	l.back(school)
	for i := range 10 {
		if !l.take(school, false) {
			t.Fatalf("%d of 10 came back", i)
		}
	}
	if l.take(school, false) {
		t.Error("more came back than were due")
	}
	a, b := netip.MustParseAddr("2001:db8:1:1::1"), netip.MustParseAddr("2001:db8:1:1:ffff::2")
	for range 500 {
		l.take(a, false)
	}
	if l.take(b, false) {
		t.Error("a /64 is one household")
	}
	for _, free := range []string{"127.0.0.1", "::1", "10.1.2.3", "192.168.0.1", "fd00::1", "fe80::1"} {
		for range 1000 {
			if !l.take(netip.MustParseAddr(free), false) {
				t.Fatalf("%s was limited", free)
			}
		}
	}
	// Memory is bounded, whoever comes.
	var raw [16]byte
	raw[0] = 0x20
	for i := range 200_000 {
		raw[2], raw[3], raw[4] = byte(i>>16), byte(i>>8), byte(i)
		l.take(netip.AddrFrom16(raw), false)
	}
	n := 0
	for i := range l.shards {
		n += len(l.shards[i].buckets)
	}
	if n > 16*maxBuckets {
		t.Errorf("%d buckets", n)
	}
	if l.take(b, false) {
		t.Error("an emptied bucket was pushed out before full ones")
	}
}

func TestMatchMostSpecific(t *testing.T) {
	mk := func(id string, fold bool, ms ...room.Match) *entry {
		return &entry{cookieHTTP: id, cfg: room.Config{ID: id, Match: ms, CaseSensitive: !fold}}
	}
	tab := &table{rooms: map[string]*entry{}, hosts: map[string][]rule{}}
	for _, e := range []*entry{
		mk("site", true, room.Match{Host: "a.test", Path: "/"}),
		mk("sale", true, room.Match{Host: "A.test", Path: "/Sale/"}),
		mk("vip", true, room.Match{Host: "a.test", Path: "/sale/vip"}),
		mk("case", false, room.Match{Host: "b.test", Path: "/Sale"}),
		mk("any", true, room.Match{Path: "/sale"}),
	} {
		tab.addRules(e)
	}
	tab.sort()
	for _, tc := range []struct{ host, path, want string }{
		{"a.test", "/", "site"}, {"a.test", "/x", "site"}, {"a.test", "/sale", "sale"}, {"a.test", "/SALE/x", "sale"},
		{"a.test", "/sales", "site"}, {"a.test", "/sale/vip", "vip"}, {"a.test", "/sale/vipx", "sale"},
		{"b.test", "/Sale", "case"}, {"b.test", "/sale", "any"}, {"b.test", "/x", ""},
		{"c.test", "/sale/1", "any"}, {"c.test", "/", ""},
	} {
		got := ""
		if e := tab.match(tc.host, tc.path); e != nil {
			got = e.cfg.ID
		}
		if got != tc.want {
			t.Errorf("%s%s: %q, want %q", tc.host, tc.path, got, tc.want)
		}
	}
}

// What is written by hand is what encoding/json writes.
func TestVisitEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := room.Visit{
			At: rapid.Int64Range(0, 4e15).Draw(t, "at"), Place: rapid.Int64Range(0, 1e6).Draw(t, "place"), Waiting: rapid.Int64Range(0, 1e6).Draw(t, "waiting"),
			RoomState: rapid.SampledFrom([]string{"open", "paused"}).Draw(t, "state"), Message: rapid.String().Draw(t, "message"),
			PollAfter: time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "poll")), PresenceAfter: time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "presence")),
		}
		v.Seq, v.Pos = rapid.Uint64().Draw(t, "seq"), rapid.Uint64Range(0, 3).Draw(t, "pos")
		copy(v.ID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		v.State = rapid.SampledFrom([]room.TicketState{room.Waiting, room.Active}).Draw(t, "ticket")
		if rapid.Bool().Draw(t, "eta") {
			v.ETA = &room.ETA{LowS: rapid.Int64().Draw(t, "low"), HighS: 2, Basis: "measured"}
		}
		var adm *admission
		doc := visitDoc{
			Room: "premiere", TicketID: v.ID.String(), State: v.State.String(), Seq: v.Seq, Waiting: v.Waiting, ETA: v.ETA,
			PollAfterMS: v.PollAfter.Milliseconds(), PresenceAfterMS: v.PresenceAfter.Milliseconds(), RoomState: v.RoomState, Message: v.Message,
			At: room.FormatAt(v.At),
		}
		if v.Pos != 0 {
			doc.Pos = &v.Pos
		}
		if v.State == room.Active {
			adm = &admission{Token: "a.b.c", ExpiresAt: "2026-01-02T03:04:05Z", RenewAfterMS: 7}
			doc.Admission, doc.Place = adm, &v.Place
		} else if v.Place != 0 {
			doc.Place = &v.Place
		}
		if rapid.Bool().Draw(t, "secret") {
			doc.Ticket = "secret"
		}
		want, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		if got := appendVisit(nil, "premiere", &v, doc.Ticket, adm); string(got) != string(want) {
			t.Fatalf("got  %s\nwant %s", got, want)
		}
	})
}

func TestETABetweenPlaces(t *testing.T) {
	n := &room.Now{ETAs: []room.PlaceETA{{Place: 1, ETA: room.ETA{LowS: 1, HighS: 2}}, {Place: 2, ETA: room.ETA{LowS: 10, HighS: 20}}, {Place: 4, ETA: room.ETA{LowS: 30, HighS: 60}}}}
	for place, want := range map[int64]int64{0: -1, 1: 1, 2: 10, 3: 20, 4: 30, 9: 30} {
		got := int64(-1)
		if e := etaAt(n, place); e != nil {
			got = e.LowS
		}
		if got != want {
			t.Errorf("place %d: %d, want %d", place, got, want)
		}
	}
	if etaAt(&room.Now{}, 1) != nil {
		t.Error("an ETA without basis")
	}
}

func TestPrefetchAndFrames(t *testing.T) {
	for _, tc := range []struct {
		header []string
		enters bool
	}{
		{nil, true},
		{[]string{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Sec-Fetch-Site", "cross-site"}, true}, // a link
		{[]string{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe", "Sec-Fetch-Site", "same-origin"}, true},
		{[]string{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe", "Sec-Fetch-Site", "cross-site"}, false},
		{[]string{"Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, false},
		{[]string{"Sec-Purpose", "prefetch"}, false},
		{[]string{"Sec-Purpose", "prefetch;prerender"}, false},
		{[]string{"Purpose", "prefetch"}, false},
		{[]string{"X-Moz", "prefetch"}, false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		for i := 0; i < len(tc.header); i += 2 {
			r.Header.Set(tc.header[i], tc.header[i+1])
		}
		if got := entersByGet(r); got != tc.enters {
			t.Errorf("%v: %v", tc.header, got)
		}
	}
	if entersByGet(httptest.NewRequest(http.MethodHead, "/", nil)) {
		t.Error("HEAD enters")
	}
}
