//go:build unix

package web_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ushergo/usher/web"
)

// BenchmarkProxy is an admitted visitor's request beside a ReverseProxy alone with the same transport, and the
// origin without either. Compare within one run: go test -run xxx -bench Proxy -cpu 2 ./web
func BenchmarkProxy(b *testing.B) {
	body := []byte("a page of some bytes, as a script would fetch it")
	origin := newOrigin(b, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(body) })
	to, _ := url.Parse(origin.URL)
	bare := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:    func(r *httputil.ProxyRequest) { r.SetURL(to); r.SetXForwarded(); r.Out.Host = r.In.Host },
		BufferPool: new(benchPool),
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, MaxIdleConnsPerHost: 512, DisableCompression: true,
		},
	})
	defer bare.Close()
	s := build(b, func(o *web.Options) { o.TrustedProxies = nil; o.Logger = nil }, behind("premiere", 1, origin))
	secret := s.do("POST", "/.usher/v1/rooms/premiere/enter", "").secret(b)
	for _, tc := range []struct{ name, url string }{{"origin", origin.URL}, {"bare", bare.URL}, {"usher", s.public.URL}} {
		b.Run(tc.name, func(b *testing.B) {
			client := &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}
			defer client.CloseIdleConnections()
			req, _ := http.NewRequest("GET", tc.url+"/seats/4", nil)
			req.Header.Set("Cookie", "theme=dark; usher-premiere="+secret+"; lang=ko")
			req.Header.Set("Accept", chrome)
			b.ReportAllocs()
			before := cpu()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					resp, err := client.RoundTrip(req.Clone(b.Context()))
					if err != nil {
						b.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if resp.StatusCode != 200 {
						b.Errorf("%d", resp.StatusCode)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
			b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-µs/req") // of client, proxy and origin
		})
	}
}

// cpu is what the process has used: on a busy machine it says more than the time that went by.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

type benchPool struct{ sync.Pool }

func (p *benchPool) Get() []byte {
	if b, ok := p.Pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 32<<10)
}

func (p *benchPool) Put(b []byte) { p.Pool.Put(&b) }
