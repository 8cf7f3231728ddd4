package web

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
)

// stub is an origin and the network to it, for nothing.
type stub struct{ body []byte }

func (s stub) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"text/plain"}, "Date": {"Fri, 02 Jan 2026 03:04:05 GMT"}},
		ContentLength: int64(len(s.body)), Body: io.NopCloser(bytes.NewReader(s.body)),
	}, nil
}

type nobody struct{ h http.Header }

func (n nobody) Header() http.Header         { return n.h }
func (n nobody) Write(b []byte) (int, error) { return len(b), nil }
func (n nobody) WriteHeader(int)             {}
func (n nobody) FlushError() error           { return nil }

// BenchmarkGate is what usher adds to a ReverseProxy for an admitted visitor's request, without any network. The
// whole of a proxied request costs ten times as much; see BenchmarkProxy.
func BenchmarkGate(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	engine, err := memory.Open(b.TempDir(), memory.Options{NoSync: true})
	must(err)
	defer engine.Close()
	rooms, err := room.Open(ctx, engine, room.Options{})
	must(err)
	defer rooms.Close()
	c := room.DefaultConfig("premiere")
	c.Capacity.Active, c.Origin, c.Match = 1, "http://origin.test", []room.Match{{Path: "/"}}
	rm, err := rooms.Configure(ctx, c, 0)
	must(err)
	keys, err := token.Open(b.TempDir() + "/keys")
	must(err)
	s, err := New(Options{Rooms: rooms, Keys: keys})
	must(err)
	defer s.Close()
	origin := stub{make([]byte, 200)}
	s.gate.proxy.transport = origin
	visit, err := rm.Enter(ctx, room.Ref{}, [16]byte{})
	must(err)
	e, _ := s.entry(ctx, "premiere")
	to, _ := url.Parse(c.Origin)
	bare := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.SetXForwarded() }, Transport: origin, BufferPool: &bufferPool{}}

	req := httptest.NewRequest("GET", "/seats/4", nil)
	req.Header = http.Header{
		"Cookie": {"theme=dark; usher-premiere=" + s.seal(e, &visit) + "; lang=ko"}, "Accept": {"text/html,*/*;q=0.8"}, "User-Agent": {"Mozilla/5.0"},
		"Accept-Language": {"ko"}, "Accept-Encoding": {"gzip, br"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}, "Sec-Fetch-Site": {"same-origin"}, "Referer": {"http://origin.test/"},
	}
	req = req.WithContext(ctx)
	for _, tc := range []struct {
		name string
		h    http.Handler
	}{{"bare", bare}, {"usher", s.Public()}} {
		b.Run(tc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				tc.h.ServeHTTP(nobody{http.Header{}}, req)
			}
		})
	}
}
