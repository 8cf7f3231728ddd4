package cinema_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/ushergo/usher/examples/cinema"
)

func TestHostileInput(t *testing.T) {
	s := open(t, cinema.Options{})
	path := firstShowing(t, s, "/premiere")
	b := &browser{site: s}
	for _, seat := range []string{"A0", "A13", "K1", "a1", "A01", "A1'; DROP TABLE claims;--", "<script>", "A1\x00", strings.Repeat("A", 3000), "좌석"} {
		if res := b.hold(path, seat); res.StatusCode != http.StatusBadRequest {
			t.Errorf("seat %.20q: %d", seat, res.StatusCode)
		}
		if res := b.pay(path, seat); res.StatusCode != http.StatusBadRequest {
			t.Errorf("pay %.20q: %d", seat, res.StatusCode)
		}
	}
	want(t, b.hold(path, ""), http.StatusUnprocessableEntity)
	if res := b.hold(path, strings.Repeat("A", 1<<20)); res.StatusCode != http.StatusBadRequest {
		t.Errorf("a megabyte of seat: %d", res.StatusCode)
	}
	for _, p := range []string{"/premiere/showings/0", "/premiere/showings/-1", "/premiere/showings/01", "/premiere/showings/9999999999999999999999",
		"/premiere/showings/1%20OR%201=1", "/premiere/thanks/x", "/premiere/thanks/AAAAAAAAAA", "/films/nothing", "/films/%00", "/films/..%2f..%2fetc", "/nothing"} {
		if res := b.get(p); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", p, res.StatusCode)
		}
	}
	for _, c := range []string{"cinema=x", "cinema=" + strings.Repeat("A", 5000), `cinema="; a=b`, ";;;=,"} {
		evil := &browser{site: s, cookie: c}
		if res := evil.get("/bookings"); res.StatusCode != http.StatusOK || len(res.Cookies()) != 1 {
			t.Errorf("cookie %.20q: %d, %d cookies set", c, res.StatusCode, len(res.Cookies()))
		}
	}
	evil := &browser{site: s, header: http.Header{"X-Usher-Ticket-Id": {"<script>alert(1)</script>"}}}
	want(t, evil.hold(path, "J12"), http.StatusSeeOther)
	res := evil.get(evil.pay(path, "J12").Header.Get("Location"))
	if strings.Contains(text(t, res), "alert(1)") {
		t.Error("a ticket id of a foreign shape was printed")
	}
}

// The premiere has no second path: a room that matches /premiere covers it all.
func TestNoAliasPastTheRoom(t *testing.T) { // cases/room 12
	s := open(t, cinema.Options{})
	path := firstShowing(t, s, "/premiere")
	alias := strings.Replace(path, "/premiere", "/films/the-last-tide", 1)
	b := &browser{site: s}
	want(t, b.get("/films/the-last-tide"), http.StatusNotFound)
	want(t, b.get(alias), http.StatusNotFound)
	want(t, b.hold(alias, "A1"), http.StatusNotFound)
	// Nor does another film's path reach a showing of the premiere.
	other := strings.Replace(path, "/premiere", "/films/paper-lantern", 1)
	want(t, b.get(other), http.StatusNotFound)
	want(t, b.hold(other, "A1"), http.StatusNotFound)
}

func TestFormsAreSafeFromOtherSites(t *testing.T) {
	s := open(t, cinema.Options{})
	path := firstShowing(t, s, "/premiere")
	for name, c := range map[string]struct {
		header http.Header
		code   int
	}{
		"cross site":        {http.Header{"Sec-Fetch-Site": {"cross-site"}}, 403},
		"sibling host":      {http.Header{"Sec-Fetch-Site": {"same-site"}}, 403},
		"foreign origin":    {http.Header{"Origin": {"https://evil.test"}}, 403},
		"null origin":       {http.Header{"Origin": {"null"}}, 403},
		"own page":          {http.Header{"Sec-Fetch-Site": {"same-origin"}, "Origin": {"http://tickets.test"}}, 303},
		"own origin":        {http.Header{"Origin": {"http://tickets.test"}}, 303},
		"through a proxy":   {http.Header{"Origin": {"https://shop.test"}, "X-Forwarded-Host": {"shop.test"}}, 303},
		"foreign, by proxy": {http.Header{"Origin": {"https://evil.test"}, "X-Forwarded-Host": {"shop.test"}}, 403},
	} {
		b := &browser{site: s, header: c.header}
		if res := b.hold(path, "A1"); res.StatusCode != c.code {
			t.Errorf("%s: %d, want %d", name, res.StatusCode, c.code)
		}
		b.do("POST", path+"/release", url.Values{})
	}
	c := (&browser{site: s}).get("/").Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Secure {
		t.Errorf("cookie on http: %v", c)
	}
	b := &browser{site: s, header: http.Header{"X-Forwarded-Proto": {"https"}}}
	if c := b.get("/").Cookies()[0]; !c.Secure {
		t.Errorf("cookie on https: %v", c)
	}
}

func TestPagesAskNobodyElse(t *testing.T) {
	s := open(t, cinema.Options{})
	b := &browser{site: s}
	path := firstShowing(t, s, "/premiere")
	foreign := regexp.MustCompile(`(?i)(?:src|href|action)="?https?:|url\(|@import|<script|\sstyle=`)
	for _, p := range []string{"/", "/premiere", path, "/bookings", "/nothing"} {
		res := b.get(p)
		if page := text(t, res); foreign.MatchString(page) {
			t.Errorf("%s has %q", p, foreign.FindString(page))
		}
		if res.Header.Get("Cache-Control") != "no-store" || !strings.Contains(res.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: headers %v", p, res.Header)
		}
	}
}

func TestLanguage(t *testing.T) {
	s := open(t, cinema.Options{})
	for accept, lang := range map[string]string{
		"": "en", "ko": "ko", "ko-KR,ko;q=0.9,en;q=0.8": "ko", "en-US,en;q=0.9,ko;q=0.8": "en", "fr,ko;q=0.5": "ko",
		"ja": "en", "ko;q=0,en;q=0.1": "en", "ko;q=x": "en", "KO-kr": "ko", ",,;;q=": "en",
	} {
		b := &browser{site: s, header: http.Header{"Accept-Language": {accept}}}
		if got := b.get("/").Header.Get("Content-Language"); got != lang {
			t.Errorf("%q: %s, want %s", accept, got, lang)
		}
	}
}

func TestSeatsAreAFieldsetOfRadios(t *testing.T) {
	s := open(t, cinema.Options{})
	path := firstShowing(t, s, "/premiere")
	want(t, (&browser{site: s}).hold(path, "B5"), http.StatusSeeOther)
	page := text(t, (&browser{site: s}).get(path))
	if n := strings.Count(page, `type="radio" name="seat"`); n != 120 {
		t.Errorf("%d radios", n)
	}
	if !strings.Contains(page, `value="B5" disabled`) || !strings.Contains(page, "Row B, seat 5, taken") || !strings.Contains(page, "<legend") {
		t.Error("a taken seat is not disabled and named, or the group has no legend")
	}
}
