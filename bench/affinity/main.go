// Command affinity compares requests through a gateway with those through an httputil.ReverseProxy alone: the same
// transport, the same instance behind it, the same callers, in turns of one run. The gateway finds the key, knows the owner
// from its cache, signs what it tells the instance, and watches the instance's pulse.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/engine/memory"
)

func main() {
	rounds := flag.Int("rounds", 15, "turns of each")
	n := flag.Int("n", 4800, "requests of a turn")
	flag.Parse()
	if err := run(*rounds, *n); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const (
	callers  = 16
	sessions = 100
)

func run(rounds, n int) error {
	instance := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "hello")
	}))
	defer instance.Close()
	d, err := directory(instance.URL)
	if err != nil {
		return err
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 512, IdleConnTimeout: time.Minute, DisableCompression: true}
	g, err := gateway.New(gateway.Options{
		Space: "site", Directory: d, Key: gateway.Key{Query: "account"}, Secret: "a secret of this bench", Transport: transport,
	})
	if err != nil {
		return err
	}
	defer g.Close()
	to, err := url.Parse(instance.URL)
	if err != nil {
		return err
	}
	alone := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(pr *httputil.ProxyRequest) {
		pr.SetURL(to)
		pr.SetXForwarded()
	}})
	defer alone.Close()
	through := httptest.NewServer(g)
	defer through.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	defer transport.CloseIdleConnections()

	fmt.Printf("%d callers, %d requests a turn, medians of %d turns each\n", callers, n, rounds)
	for _, kind := range []struct {
		name string
		body string
	}{{"GET", ""}, {"POST of 2 KiB, kept to be sent again", strings.Repeat("x", 2<<10)}} {
		var wallA, wallB, cpuA, cpuB, wall, cpu []float64
		for range rounds {
			wa, ca, err := turn(client, alone.URL, n, kind.body)
			if err != nil {
				return err
			}
			wb, cb, err := turn(client, through.URL, n, kind.body)
			if err != nil {
				return err
			}
			wallA, wallB, cpuA, cpuB = append(wallA, wa), append(wallB, wb), append(cpuA, ca), append(cpuB, cb)
			wall, cpu = append(wall, wb/wa), append(cpu, cb/ca)
		}
		fmt.Printf("%s\n  httputil.ReverseProxy  %7.1f µs  1.00, of CPU %7.1f µs  1.00\n  gateway                %7.1f µs  %.2f, of CPU %7.1f µs  %.2f\n",
			kind.name, median(wallA), median(cpuA), median(wallB), median(wall), median(cpuB), median(cpu))
	}
	return nil
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// directory has sessions that are ready at the instance.
func directory(addr string) (affinity.Store, error) {
	d := memory.NewDirectory(nil)
	owner := affinity.Identity{Instance: "a", Epoch: 1}
	ctx := context.Background()
	for i := range sessions {
		key := fmt.Sprint("k", i)
		got, err := d.Claim(ctx, affinity.Claim{Space: "site", Key: key, Owner: owner, Addr: addr, Token: key, Build: time.Hour})
		if err != nil {
			return nil, err
		}
		if _, err = d.Refresh(ctx, affinity.Refresh{
			Space: "site", Owner: owner, TTL: time.Hour, Items: []affinity.Item{{Key: key, Generation: got.Row.Generation, Ready: true}},
		}); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// turn gives the time of a request and the CPU time of all that it takes, client and instance included, in µs. The second
// counts on a machine that does other things too.
func turn(client *http.Client, base string, n int, body string) (wall, cpu float64, err error) {
	began, used := time.Now(), cpuTime()
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range n / callers {
				if err := ask(client, fmt.Sprint(base, "/?account=k", (c+i)%sessions), body); err != nil {
					errs[c] = err
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, 0, err
		}
	}
	return float64(time.Since(began).Microseconds()) / float64(n), float64((cpuTime() - used).Microseconds()) / float64(n), nil
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func ask(client *http.Client, url, body string) error {
	var res *http.Response
	var err error
	if body == "" {
		res, err = client.Get(url)
	} else {
		res, err = client.Post(url, "text/plain", strings.NewReader(body))
	}
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return err
}
