package httpflight

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// A directive that is there must be seen, whatever stands before it that can be read.
func FuzzCacheControl(f *testing.F) {
	for _, s := range []string{"", "private", "no-store", "max-age=1, private", `x="a,b", private`, `x="no-store"`, `x="\"", no-store`, `="`, "a=b=c,", `x="a" y`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		before := unsharedControl(line)
		for _, d := range []string{"private", "no-store", "PRIVATE", `private="x"`, "no-store=1"} {
			if !unsharedControl(line+","+d) && !unsharedControl(line+`",`+d) {
				t.Errorf("%q, then %s: not seen", line, d)
			}
			if !unsharedControl(d + "," + line) {
				t.Errorf("%s, then %q: not seen", d, line)
			}
		}
		if strings.ContainsAny(line, `"=`) {
			return
		}
		// Without arguments it is a plain list.
		plain := slices.ContainsFunc(strings.Split(line, ","), func(d string) bool {
			d = strings.ToLower(strings.Trim(d, " \t"))
			return d == "private" || d == "no-store"
		})
		if plain != before {
			t.Errorf("%q: %v, want %v", line, before, plain)
		}
	})
}

// Two requests have one key only if all that counts is the same.
func FuzzKey(f *testing.F) {
	f.Add("/a", "p=1&q=2", "x", "y", "/a", "q=2&p=1", "x", "y")
	f.Add("/", "p=1&p=2", "a 1:b", "", "/", "p=1%26p=2", "a", "1:b")
	f.Add("/%2f", "p", "", "\n", "//", "p=", "\n", "")
	k := newKeyer(Options{Query: []string{"p", "q"}, Headers: []string{"A", "B"}}.withDefaults())
	f.Fuzz(func(t *testing.T, path1, q1, a1, b1, path2, q2, a2, b2 string) {
		make := func(path, q, a, b string) *http.Request {
			r := httptest.NewRequest("GET", "/", nil)
			r.URL = &url.URL{Path: path, RawQuery: q}
			r.Header = http.Header{"A": {a}, "B": {b, a}}
			return r
		}
		r1, r2 := make(path1, q1, a1, b1), make(path2, q2, a2, b2)
		key1, ok1 := k.key(r1)
		key2, ok2 := k.key(r2)
		if !ok1 || !ok2 {
			return
		}
		same := path1 == path2 && a1 == a2 && b1 == b2
		v1, v2 := r1.URL.Query(), r2.URL.Query()
		for _, p := range []string{"p", "q"} {
			same = same && v1.Has(p) == v2.Has(p) && slices.Equal(v1[p], v2[p])
		}
		if same != (key1 == key2) {
			t.Errorf("same %v, keys\n%+v\n%+v", same, key1, key2)
		}
	})
}

// What is called ignored never reaches the origin, what is not always does.
func FuzzCookies(f *testing.F) {
	f.Add("usher-a=1; id=2;;x", "usher-")
	f.Add(";=; usher-", "")
	k := newKeyer(Options{}.withDefaults())
	f.Fuzz(func(t *testing.T, one, two string) {
		h := http.Header{"Cookie": {one, two}}
		cred := k.credentials(h)
		was := names(h)
		k.stripIgnored(h)
		for _, n := range names(h) {
			if k.ignored(n) {
				t.Errorf("%q passed on", n)
			}
		}
		var want []string
		for _, n := range was {
			if !k.ignored(n) {
				want = append(want, n)
			}
		}
		if got := names(h); !slices.Equal(got, want) {
			t.Errorf("kept %q, want %q", got, want)
		}
		if !cred && len(h["Cookie"]) > 0 && len(want) > 0 {
			t.Errorf("no credentials, but %q", h)
		}
	})
}

func names(h http.Header) (ns []string) {
	for _, line := range h["Cookie"] {
		for c := range strings.SplitSeq(line, ";") {
			if c = strings.TrimSpace(c); c != "" {
				n, _, _ := strings.Cut(c, "=")
				ns = append(ns, n)
			}
		}
	}
	return ns
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for v, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-1": 0, "x": 0, "99999999999": 0,
		now.Add(time.Minute).Format(http.TimeFormat): time.Minute, now.Add(-time.Minute).Format(http.TimeFormat): 0,
	} {
		if got := retryAfter(v, now); got != want {
			t.Errorf("%q: %v, want %v", v, got, want)
		}
	}
}
