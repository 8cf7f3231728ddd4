package page_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/web/page"
)

func ours(t testing.TB) *page.Pages {
	t.Helper()
	p, err := page.New("")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func render(t testing.TB, p *page.Pages, s page.State) string {
	t.Helper()
	var b bytes.Buffer
	if err := p.Render(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

func TestNegotiate(t *testing.T) {
	have := []string{"en", "ko", "ja"}
	for header, want := range map[string]string{
		"":                                   "en",
		"ko":                                 "ko",
		"ko-KR,ko;q=0.9,en-US;q=0.8":         "ko",
		"en-US,en;q=0.9,ko;q=0.8":            "en",
		"fr,ja;q=0.3,ko;q=0.4":               "ko",
		"fr-FR, de;q=0.9":                    "en",
		"ja;q=0.1, *;q=0.5":                  "en",
		"en;q=0, *":                          "ko",
		"en;q=0,ko;q=0,*;q=0.2":              "ja",
		"JA-jp":                              "ja",
		"ko;q=0":                             "en",
		"ko;q=nonsense,ja;q=0.1":             "ja",
		"ko;q=2,ja;q=0.5":                    "ja",
		"ko;q=NaN,ja;q=0.5":                  "ja",
		" , ;q=1, ja":                        "ja",
		"ko ; q = 0.2 , ja ; q = 0.9":        "ja",
		strings.Repeat("x,", 100_000) + "ja": "en", // bounded work
		"korean":                             "en",
		"ko_KR":                              "en",
		"zh-Hans-CN;q=1,ja-JP-u-ca-japanese": "ja",
		"en;q=0.5,ko;q=0.5":                  "en",
		"*":                                  "en",
		"ko;level=1;q=0.4,en;q=0.3":          "ko",
	} {
		if got := page.Negotiate(header, have); got != want {
			t.Errorf("%.40q: %s, want %s", header, got, want)
		}
	}
	if got := page.Negotiate("pt", []string{"de", "pt-BR"}); got != "pt-BR" {
		t.Errorf("pt: %s", got)
	}
	if got := page.Negotiate("pt", []string{"de"}); got != "de" {
		t.Errorf("nothing fits, no English: %s", got)
	}
}

func TestLanguageOfThePage(t *testing.T) {
	p := ours(t)
	for lang, words := range map[string]string{"en": "You are in line", "ko-KR,ko;q=0.9": "순서를 기다리고 있습니다", "ja": "順番をお待ち"} {
		s := render(t, p, page.State{Room: "premiere", Lang: lang, View: page.View{State: page.Waiting}})
		if !strings.Contains(s, `<html lang="`+lang[:2]+`">`) || !strings.Contains(s, words) {
			t.Errorf("%s: the page speaks something else", lang)
		}
	}
}

// Whatever a room, an operator or a link says stays text: no element, no attribute, no end of a script.
func TestEscapes(t *testing.T) {
	p := ours(t)
	evil := `</script></title></style><img src=x onerror=alert(1)>"'&{{.}}` + "\u2028`"
	for _, state := range page.States() {
		s := render(t, p, page.State{
			Room: evil, Name: evil, Lang: evil, Next: evil, Again: evil, APIBase: evil, Order: evil, Theme: evil, Nonce: "n0nce",
			View: page.View{State: state, Reason: evil, TicketID: evil, Message: evil, Draw: evil, Place: ptr(int64(5))},
		})
		if strings.Contains(s, "<img src=x") {
			t.Errorf("%s: an element came of it", state)
		}
		if got := strings.Count(strings.ToLower(s), "</script>"); got != 3 {
			t.Errorf("%s: %d ends of scripts, want 3", state, got)
		}
		if got := strings.Count(strings.ToLower(s), "</style>"); got != 2 {
			t.Errorf("%s: %d ends of styles, want 2", state, got)
		}
		if _, script, _ := strings.Cut(s, `id="usher-data"`); strings.Contains(script, "\u2028") {
			t.Errorf("%s: a line separator reached the script", state)
		}
	}
}

// cases/room 22
func TestNextStaysOnTheSite(t *testing.T) {
	p := ours(t)
	for _, next := range []string{"https://evil.test", "//evil.test", `/\evil.test`, `\\evil.test`, "javascript:alert(1)", "/a\nb", "/a\tb", "", "evil"} {
		s := render(t, p, page.State{Room: "premiere", Next: next, View: page.View{State: page.Admitted}})
		if strings.Contains(s, "evil") || strings.Contains(s, "javascript:") || !strings.Contains(s, `content="0;url=/"`) {
			t.Errorf("%q got through", next)
		}
	}
	s := render(t, p, page.State{Room: "premiere", Next: "/premiere/seats?row=7&x=%2F", View: page.View{State: page.Admitted}})
	if !strings.Contains(s, `content="0;url=/premiere/seats?row=7&amp;x=%2F"`) {
		t.Error("a good next was changed")
	}
}

// cases/room 27: a plain refresh, and only where scripts do not run.
func TestRefreshOnlyWithoutScripts(t *testing.T) {
	p := ours(t)
	noscript := regexp.MustCompile(`(?s)<noscript>.*?</noscript>`)
	for _, c := range []struct {
		state   string
		refresh int
		next    string
		want    string
	}{
		{page.Waiting, 0, "/", `content="15"`}, {page.Waiting, 7, "/", `content="7"`}, {page.Paused, 0, "/", `content="15"`},
		{page.Prequeue, 0, "/", `content="15"`}, {page.NotOpen, 0, "/", `content="30"`}, {page.Full, 0, "/", `content="30"`},
		{page.Admitted, 0, "/in", `content="0;url=/in"`}, {page.Origin, 0, "/in", `content="15"`}, {page.Origin, 0, "", ""},
		{page.Ended, 0, "/", ""}, {page.Gone, 0, "/", ""}, {page.Waiting, -1, "/", ""}, {page.Waiting, 1 << 30, "/", `content="300"`},
	} {
		s := render(t, p, page.State{Room: "premiere", Refresh: c.refresh, Next: c.next, View: page.View{State: c.state}})
		if strings.Contains(noscript.ReplaceAllString(s, ""), "http-equiv") {
			t.Errorf("%s: a refresh outside noscript", c.state)
		}
		if has := strings.Contains(s, `http-equiv="refresh"`); has != (c.want != "") || !strings.Contains(s, c.want) {
			t.Errorf("%s %d %q: want refresh %q", c.state, c.refresh, c.next, c.want)
		}
	}
}

// cases/room 2 and 23: nothing about a visitor is stored by a cache, and the page fetches nothing.
func TestWrite(t *testing.T) {
	p := ours(t)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := p.Write(w, r, http.StatusAccepted, page.State{Room: "premiere", RetryAfter: 9, View: page.View{State: page.Waiting, Place: ptr(int64(1234))}}); err != nil {
			t.Error(err)
		}
	})
	r := httptest.NewRequest("GET", "/wait/premiere", nil)
	r.Header.Set("Accept-Language", "ja")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	for k, want := range map[string]string{
		"Cache-Control": "no-store", "X-Robots-Tag": "noindex, nofollow", "Content-Language": "ja", "Retry-After": "9",
		"Content-Type": "text/html; charset=utf-8", "X-Content-Type-Options": "nosniff",
	} {
		if got := w.Header().Get(k); got != want {
			t.Errorf("%s: %q, want %q", k, got, want)
		}
	}
	body := w.Body.String()
	if w.Code != http.StatusAccepted || !strings.Contains(body, "1,234") {
		t.Errorf("%d", w.Code)
	}
	csp := w.Header().Get("Content-Security-Policy")
	nonce := regexp.MustCompile(`script-src 'nonce-([^']{20,})'`).FindStringSubmatch(csp)
	if nonce == nil || strings.Contains(csp, "unsafe") {
		t.Fatal(csp)
	}
	for _, tag := range regexp.MustCompile(`<(script|style)[^>]*>`).FindAllString(body, -1) {
		if !strings.Contains(tag, nonce[1]) && !strings.Contains(tag, "application/json") {
			t.Errorf("%s has no nonce", tag)
		}
	}
	if m := regexp.MustCompile(`<[^>]* (on[a-z]+|style)=`).FindString(body); m != "" {
		t.Errorf("inline: %s", m)
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(body, -1) {
		if !strings.HasPrefix(m[1], "data:") && m[1] != "" {
			t.Errorf("the page would fetch %s", m[1])
		}
	}

	again := httptest.NewRecorder()
	h.ServeHTTP(again, r)
	if again.Header().Get("Content-Security-Policy") == csp {
		t.Error("the nonce was used twice")
	}
	head := httptest.NewRecorder()
	h.ServeHTTP(head, httptest.NewRequest("HEAD", "/wait/premiere", nil))
	if head.Body.Len() != 0 || head.Header().Get("Content-Length") == "" {
		t.Error("HEAD: headers alone")
	}
}

func TestTitles(t *testing.T) {
	p := ours(t)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		s    page.State
		want string
	}{
		{page.State{Room: "premiere", View: page.View{State: page.Waiting, Place: ptr(int64(1234))}}, "#1,234 · Premiere"},
		{page.State{Room: "summer-sale", View: page.View{State: page.Waiting}}, "In line · Summer Sale"},
		{page.State{Room: "x", Name: "Big & <Best>", View: page.View{State: page.Admitted}}, "Your turn! · Big &amp; &lt;Best&gt;"},
		{page.State{Room: "x", View: page.View{State: page.Prequeue, At: now, OpensAt: ptr(now.Add(90 * time.Second))}}, "00:01:30 · X"},
		{page.State{Room: "x", View: page.View{State: "nonsense"}}, "One moment · X"},
	} {
		if s := render(t, p, c.s); !strings.Contains(s, "<title>"+c.want+"</title>") {
			t.Errorf("want title %s", c.want)
		}
	}
}

func TestPreview(t *testing.T) {
	srv := httptest.NewServer(page.Preview("browsertest/testdata/folder"))
	defer srv.Close()
	get := func(path string) (int, string) {
		r, err := http.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(b)
	}
	_, index := get("/?lang=de&width=1440")
	for _, s := range page.Samples(time.Now()) {
		if !strings.Contains(index, "/"+s.Name+"?lang=de") {
			t.Errorf("the index lacks %s", s.Name)
		}
		if code, body := get("/" + s.Name + "?lang=ko&theme=dark"); code != 200 || !strings.Contains(body, `"preview":true`) {
			t.Errorf("%s: %d", s.Name, code)
		}
	}
	if code, _ := get("/nothing"); code != 404 {
		t.Errorf("an unknown state: %d", code)
	}
}

func BenchmarkRender(b *testing.B) {
	p := ours(b)
	s := page.State{Room: "premiere", Nonce: "n", View: page.View{State: page.Waiting, TicketID: "t", Place: ptr(int64(1234)), Waiting: ptr(int64(99400)), At: time.Now()}}
	var buf bytes.Buffer
	b.ReportAllocs()
	for b.Loop() {
		buf.Reset()
		if err := p.Render(&buf, s); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(buf.Len()))
}
