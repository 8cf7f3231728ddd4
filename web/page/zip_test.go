package page_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/ushergo/usher/web/page"
)

func TestGzip(t *testing.T) {
	custom, err := page.New("browsertest/testdata/folder")
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*page.Pages{"ours": ours(t), "folder": custom} {
		for _, s := range page.Samples(t0) {
			for _, lang := range p.Languages() {
				w := httptest.NewRecorder()
				r := httptest.NewRequest("GET", "/wait/premiere", nil)
				r.Header.Set("Accept-Encoding", "br, gzip;q=0.5")
				s.State.Lang = lang
				s.State.View.Message = string(bytes.Repeat([]byte("x"), 70_000)) // more than one stored block holds
				if err := p.Write(w, r, 202, s.State); err != nil {
					t.Fatal(err)
				}
				if w.Header().Get("Content-Encoding") != "gzip" || w.Header().Get("Content-Length") != strconv.Itoa(w.Body.Len()) {
					t.Fatal(w.Header())
				}
				length := w.Body.Len()
				z, err := gzip.NewReader(w.Body)
				if err != nil {
					t.Fatal(err)
				}
				html, err := io.ReadAll(z) // checks the sum and the length
				if err != nil {
					t.Fatal(name, s.Name, lang, err)
				}
				if !bytes.HasPrefix(html, []byte("<!doctype html>")) || !bytes.HasSuffix(bytes.TrimSpace(html), []byte("</html>")) {
					t.Fatal(name, s.Name, "not a whole page")
				}
				if saved := len(html) - length; saved < 25_000 {
					t.Errorf("%s %s %s: %d of %d bytes saved", name, s.Name, lang, saved, len(html))
				}
			}
		}
	}
	for header, want := range map[string]string{"": "", "br": "", "gzip;q=0": "", "GZIP": "gzip", "deflate, gzip": "gzip"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "/wait/premiere", nil)
		r.Header.Set("Accept-Encoding", header)
		if err := ours(t).Write(w, r, 202, page.State{Room: "x"}); err != nil {
			t.Fatal(err)
		}
		if got := w.Header().Get("Content-Encoding"); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	p := ours(b)
	r := httptest.NewRequest("GET", "/wait/premiere", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	s := page.Samples(t0)[0].State
	n := 0
	for b.Loop() {
		w := httptest.NewRecorder()
		if err := p.Write(w, r, 202, s); err != nil {
			b.Fatal(err)
		}
		n = w.Body.Len()
	}
	b.ReportMetric(float64(n), "bytes/page")
}
