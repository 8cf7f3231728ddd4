package web

import (
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/ushergo/usher/room"
)

// rooms makes a table of rooms from pairs: id, path.
func rooms(pairs ...string) *table {
	t := &table{rooms: map[string]*entry{}, hosts: map[string][]rule{}}
	for i := 0; i < len(pairs); i += 2 {
		t.addRules(&entry{cfg: room.Config{ID: pairs[i], Match: []room.Match{{Path: pairs[i+1]}}}})
	}
	t.sort()
	return t
}

func parsePath(t testing.TB, requestURI string) *url.URL {
	t.Helper()
	u, err := url.ParseRequestURI(requestURI)
	if err != nil {
		t.Skipf("net/http refuses %q: %v", requestURI, err)
	}
	return u
}

func TestPathsOfOnePage(t *testing.T) { // cases/room 12
	alone := rooms("sale", "/sale", "vip", "/vip")
	nested := rooms("site", "/", "sale", "/sale")
	korean := rooms("site", "/", "show", "/공연")
	for _, tc := range []struct {
		rooms *table
		path  string
		want  string // "": no room; "400": refused
	}{
		{alone, "/sale", "sale"}, {alone, "/Sale", "sale"}, {alone, "/sale/", "sale"}, {alone, "//sale", "sale"}, {alone, "/%73ale", "sale"},
		{alone, "/sale;x", "sale"}, {alone, "/x/../sale", "sale"}, {alone, "/sale?x=/vip", "sale"}, {alone, "/sale/a/b.js", "sale"},
		{alone, "///sale", "sale"}, {alone, "/./sale", "sale"}, {alone, "/x/%2e%2e/sale", "sale"}, {alone, "/x/.%2E/sale", "sale"}, {alone, "/%2573ale", "sale"},
		{alone, "/sale%2fx", "sale"}, {alone, "/%2fsale", "sale"}, {alone, "/x%2f..%2fsale", "sale"}, {alone, "/x%5c..%5csale", "sale"}, {alone, `/\sale`, "sale"},
		{alone, "/;a/sale", "sale"}, {alone, "/x/..;a/sale", "sale"}, {alone, "/x;a/..;b/sale;c", "sale"}, {alone, "/%3bx/sale", "sale"}, {alone, "/sale%3Fx", "sale"},
		{alone, "/sale%23x", "sale"}, {alone, "/sale.", "sale"}, {alone, "/sale%20", "sale"}, {alone, "/sale..", "sale"}, {alone, "/sale%20.%20/x", "sale"},
		{alone, "/%25%37%33ale", "sale"}, {alone, "/%252573ale", "sale"}, {alone, "/x/%252e%252e/sale", "sale"},
		{alone, "/", ""}, {alone, "/sales", ""}, {alone, "/onsale", ""}, {alone, "/100%25", ""}, {alone, "/a%20b;c=d/e..f/.well-known", ""}, {alone, "/a/b/../c", ""},
		{alone, "/sale/../vip", "400"}, {alone, "/sale/..%2fvip", "400"}, {alone, "/vip/..;/sale", "400"}, {alone, "/sale%2f..%2fvip", "400"}, {alone, "/vip/%252e%252e/sale", "400"},
		{alone, "/..", "400"}, {alone, "/../sale", "400"}, {alone, "/a/../../sale", "400"}, {alone, "/a%5c..%5c..%5csale", "400"}, {alone, "/..;/sale", "400"},
		{alone, "/sale%00", "400"}, {alone, "/sale%0d%0a", "400"}, {alone, "/sale%2500", "400"}, {alone, "/%7f", "400"},
		{nested, "/sale", "sale"}, {nested, "/%73ale", "sale"}, {nested, "/x", "site"}, {nested, "/x//y/../z;a", "site"}, {nested, "/sale/a//b;c", "sale"},
		{nested, "//sale", "400"}, {nested, "/sale;x", "400"}, {nested, "/x/../sale", "400"}, {nested, "/sale%2fx", "400"}, {nested, "/sale/..", "400"}, {nested, "/%2573ale", "400"},
		{korean, "/%EA%B3%B5%EC%97%B0/1", "show"}, {korean, "/공연", "show"}, {korean, "/%EA%B3%B5", "site"},
		{alone, "http://h/sale", "sale"}, {nested, "http://h", "site"}, {alone, "mailto:sale", "400"},
		{alone, "/" + strings.Repeat("a/", 3000) + "..", "400"}, {alone, "/" + strings.Repeat("a", 9000), ""}, {alone, "/%" + strings.Repeat("25", 40) + "41", "400"},
	} {
		u := parsePath(t, tc.path)
		e, p := tc.rooms.decide("h", u)
		got := ""
		if p != nil {
			got = "400"
			if p.status != 400 || p.code != "path_ambiguous" {
				t.Errorf("%s: %+v", tc.path, p)
			}
		} else if e != nil {
			got = e.cfg.ID
		}
		if got != tc.want {
			t.Errorf("%.80s: %q, want %q", tc.path, got, tc.want)
		}
	}
}

func TestPathsByCase(t *testing.T) {
	tab := rooms("sale", "/Sale")
	tab.any[0].folds, tab.any[0].path = false, "/Sale"
	for path, want := range map[string]bool{"/Sale": true, "/sale": false, "/SALE": false, "/%53ale": true} {
		e, p := tab.decide("h", parsePath(t, path))
		if p != nil || (e != nil) != want {
			t.Errorf("%s: %v %v", path, e, p)
		}
	}
}

// originsRead reads a path as some servers do, each by steps of its own; it is no part of what is tested.
var originsRead = map[string]func(raw string) string{
	"go":      func(raw string) string { return clean(once(raw)) },
	"express": func(raw string) string { return once(raw) },
	"nginx": func(raw string) string {
		return clean(once(strings.Split(raw, "#")[0]))
	},
	"tomcat":  func(raw string) string { return clean(once(noParams(raw))) },
	"spring":  func(raw string) string { return noParams(clean(once(raw))) },
	"iis":     func(raw string) string { return windows(clean(strings.ReplaceAll(once(raw), `\`, "/"))) },
	"twice":   func(raw string) string { return clean(once(clean(once(raw)))) },
	"thrice":  func(raw string) string { return clean(once(once(once(raw)))) },
	"late ?":  func(raw string) string { s, _, _ := strings.Cut(clean(once(raw)), "?"); return s },
	"jetty":   func(raw string) string { return clean(once(noParams(once(raw)))) },
	"windows": func(raw string) string { return clean(windows(strings.ReplaceAll(once(once(raw)), `\`, "/"))) },
}

func once(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		if len(s) > 2 && s[0] == '%' {
			if v, err := url.PathUnescape(s[:3]); err == nil {
				b.WriteString(v)
				s = s[3:]
				continue
			}
		}
		b.WriteByte(s[0])
		s = s[1:]
	}
	return b.String()
}

func clean(s string) string { return path.Clean("/" + s) }

func noParams(s string) string {
	segments := strings.Split(s, "/")
	for i := range segments {
		segments[i] = strings.Split(segments[i], ";")[0]
	}
	return strings.Join(segments, "/")
}

func windows(s string) string {
	segments := strings.Split(s, "/")
	for i, seg := range segments {
		if strings.Trim(seg, ".") != "" {
			segments[i] = strings.TrimRight(seg, ". ")
		}
	}
	return strings.Join(segments, "/")
}

// FuzzPaths looks for a path that some origin takes for a page of a room, and usher for none or another's.
func FuzzPaths(f *testing.F) {
	for _, s := range []string{"/sale", "//sale", "/%73ale", "/sale;x", "/x/../sale", "/vip/..;/sale", "/a%2f..%2fsale", "/%252e%252e/sale", `/x\..\sale`, "/sale. /x", "/SALE%3f", "/sale%2500", "/s%61le/%2e/"} {
		f.Add(s)
	}
	tab := rooms("sale", "/sale", "vip", "/vip/box")
	nested := rooms("site", "/", "sale", "/sale", "in", "/sale/in")
	f.Fuzz(func(t *testing.T, raw string) {
		if raw == "" || raw[0] != '/' || strings.ContainsAny(raw, "? \r\n") {
			t.Skip()
		}
		u := parsePath(t, raw)
		for _, rooms := range []*table{tab, nested} {
			e, p := rooms.decide("h", u)
			if p != nil {
				continue // refused is safe
			}
			for name, read := range originsRead {
				got := rooms.match("h", read(raw))
				if got != nil && got != e {
					t.Errorf("%s reads %q as %q, room %s; usher says %v", name, raw, read(raw), got.cfg.ID, e)
				}
			}
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	tab := rooms("site", "/", "sale", "/sale", "vip", "/vip")
	for name, path := range map[string]string{"plain": "/sale/seats/4", "korean": "/sale/%EA%B3%B5%EC%97%B0", "odd": "/x/..//sale;a/%2e"} {
		u, _ := url.ParseRequestURI(path)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = tab.decide("h", u)
			}
		})
	}
}
