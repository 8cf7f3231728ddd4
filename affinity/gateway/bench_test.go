package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/engine/memory"
)

// BenchmarkOverhead prints how much longer a request takes through the gateway than through httputil.ReverseProxy alone
// with the same transport and the same instance behind it, in turns of one run.
func BenchmarkOverhead(b *testing.B) {
	d := memory.NewDirectory(nil)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer app.Close()
	owner := affinity.Identity{Instance: "a", Epoch: 1}
	for i := range 100 {
		key := fmt.Sprint("k", i)
		got, err := d.Claim(context.Background(), affinity.Claim{Space: "site", Key: key, Owner: owner, Addr: app.URL, Token: key, Build: time.Hour})
		if err != nil {
			b.Fatal(err)
		}
		_, err = d.Refresh(context.Background(), affinity.Refresh{Space: "site", Owner: owner, TTL: time.Hour, Items: []affinity.Item{{Key: key, Generation: got.Row.Generation, Ready: true}}})
		if err != nil {
			b.Fatal(err)
		}
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 512, IdleConnTimeout: 4 * time.Second, DisableCompression: true}
	o := opts(d)
	o.Transport, o.Health = transport, gateway.Health{}
	g, err := gateway.New(o)
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	to, _ := url.Parse(app.URL)
	fronts := []*httptest.Server{
		httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(pr *httputil.ProxyRequest) {
			pr.SetURL(to)
			pr.SetXForwarded()
		}}),
		httptest.NewServer(g),
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	round := func(url string, n int) float64 {
		const callers = 16
		began := time.Now()
		var wg sync.WaitGroup
		for c := range callers {
			wg.Go(func() {
				for i := range n / callers {
					res, err := client.Get(fmt.Sprint(url, "/?account=k", (c+i)%100))
					if err != nil {
						b.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			})
		}
		wg.Wait()
		return float64(time.Since(began)) / float64(n)
	}
	for b.Loop() {
		var ratios []float64
		for range 9 {
			alone := round(fronts[0].URL, 1600)
			ratios = append(ratios, round(fronts[1].URL, 1600)/alone)
		}
		slices.Sort(ratios)
		b.ReportMetric(ratios[len(ratios)/2], "×alone")
	}
	for _, f := range fronts {
		f.CloseClientConnections()
		f.Close()
	}
}
