package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/flight/httpflight"
)

// front is one way to stand before the origin.
type front struct {
	name string
	url  string
}

// overHTTP: clients who ask for one page at the same moment, the origin taking 100 ms; through httpflight, through
// nginx with proxy_cache_lock, and through a bare reverse proxy.
func overHTTP(rounds int) {
	var now, most, asked atomic.Int64
	origin := listen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		c := now.Add(1)
		for m := most.Load(); c > m && !most.CompareAndSwap(m, c); m = most.Load() {
		}
		time.Sleep(100 * time.Millisecond)
		now.Add(-1)
		switch r.URL.Query().Get("kind") {
		case "cacheable":
			w.Header().Set("Cache-Control", "max-age=10")
		case "uncacheable":
			w.Header().Set("Cache-Control", "private")
		case "failing":
			w.WriteHeader(http.StatusInternalServerError)
		}
		w.Write(make([]byte, 10_000))
	}))
	u, _ := url.Parse(origin)
	proxy := func() http.Handler {
		return &httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(u) },
			Transport: &http.Transport{MaxIdleConnsPerHost: 2000, DisableCompression: true},
			ErrorLog:  log.New(io.Discard, "", 0),
		}
	}
	fronts := []front{
		{"reverse proxy alone", listen(proxy())},
		{"httpflight", listen(httpflight.Handler(proxy(), httpflight.Options{}))},
		{"httpflight, budget 50", listen(httpflight.Handler(proxy(), httpflight.Options{Concurrency: 50}))},
	}
	if n, stop := nginx(origin); n != "" {
		defer stop()
		fronts = append(fronts, front{"nginx proxy_cache_lock", n})
	} else {
		fmt.Println("\nnginx is not installed: left out")
	}
	fmt.Printf("\n### One page, origin of 100 ms, clients at the same moment (medians of %d rounds)\n\n", rounds)
	fmt.Println("| clients | page | front | origin requests | at once | p50 ms | p99 ms | last ms | not 2xx |\n|---|---|---|---|---|---|---|---|---|")
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2000, MaxIdleConns: 5000, DisableCompression: true}, Timeout: 2 * time.Minute}
	page := 0
	for _, clients := range []int{20, 1000} {
		for _, kind := range []string{"cacheable", "uncacheable", "failing"} {
			results := make([][6][]float64, len(fronts))
			for round := range rounds {
				for i, f := range fronts {
					n := rounds
					if f.name == "nginx proxy_cache_lock" && kind != "cacheable" {
						n = 1 // it takes many seconds
					}
					if round >= n {
						continue
					}
					warm(client, f.url, clients)
					page++
					asked.Store(0)
					most.Store(0)
					took, bad := burst(client, fmt.Sprintf("%s/%d?kind=%s", f.url, page, kind), clients)
					for j, v := range []float64{float64(asked.Load()), float64(most.Load()), took[len(took)/2], took[len(took)*99/100], took[len(took)-1], float64(bad)} {
						results[i][j] = append(results[i][j], v)
					}
				}
			}
			for i, f := range fronts {
				r := results[i]
				fmt.Printf("| %d | %s | %s | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f |\n", clients, kind, f.name,
					median(r[0]), median(r[1]), median(r[2]), median(r[3]), median(r[4]), median(r[5]))
			}
		}
	}
}

func listen(h http.Handler) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go http.Serve(l, h) //nolint:errcheck // until the program ends
	return "http://" + l.Addr().String()
}

// warm opens the connections, so that their making is not measured.
func warm(c *http.Client, url string, n int) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(context.Background(), "OPTIONS", fmt.Sprintf("%s/warm%d", url, i), nil)
			if res, err := c.Do(req); err == nil {
				io.Copy(io.Discard, res.Body) //nolint:errcheck
				res.Body.Close()
			}
		})
	}
	wg.Wait()
}

// burst sends n requests at once and answers how long each took, in ms, sorted.
func burst(c *http.Client, url string, n int) (took []float64, bad int64) {
	took = make([]float64, n)
	var wrong atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		wg.Go(func() {
			res, err := c.Get(url)
			if err == nil {
				io.Copy(io.Discard, res.Body) //nolint:errcheck
				res.Body.Close()
			}
			if err != nil || res.StatusCode/100 != 2 {
				wrong.Add(1)
			}
			took[i] = float64(time.Since(start)) / 1e6
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took, wrong.Load()
}

// nginx starts one of its own in a temporary folder.
func nginx(origin string) (url string, stop func()) {
	bin, err := exec.LookPath("nginx")
	if err != nil {
		return "", nil
	}
	dir, err := os.MkdirTemp("", "flightbench")
	if err != nil {
		log.Fatal(err)
	}
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	addr := l.Addr().String()
	l.Close()
	user := ""
	if os.Getuid() == 0 {
		user = "user root;" // else its workers may not write into the folder
	}
	conf := fmt.Sprintf(`
%[4]s daemon off; worker_processes 2; pid %[1]s/pid; error_log %[1]s/error.log;
events { worker_connections 8192; }
http {
  access_log off;
  client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
  proxy_cache_path %[1]s/cache keys_zone=c:10m;
  upstream o { server %[2]s; keepalive 1000; }
  server {
    listen %[3]s backlog=4096;
    location / {
      proxy_pass http://o; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_cache c; proxy_cache_lock on;
    }
  }
}`, dir, origin[len("http://"):], addr, user)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		log.Fatal(err)
	}
	cmd := exec.Command(bin, "-p", dir, "-c", file)
	cmd.Stderr = io.Discard
	if err := cmd.Start(); err != nil {
		log.Fatal(err)
	}
	for range 200 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return "http://" + addr, func() {
		cmd.Process.Signal(os.Interrupt) //nolint:errcheck
		cmd.Wait()                       //nolint:errcheck
		os.RemoveAll(dir)
	}
}
