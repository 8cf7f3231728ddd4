// Command flight compares the flight package with its peers, all in one run, and prints a table. Figures are medians
// over rounds in which every peer has its turn, because the machine may be busy with other things.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ushergo/usher/flight"
)

func main() {
	rounds := flag.Int("rounds", 21, "rounds of each measurement")
	only := flag.String("only", "", "one of: uncontended, joiners, abandoned, storm, failing, http")
	flag.Parse()
	for _, m := range []struct {
		name string
		run  func(rounds int)
	}{
		{"uncontended", uncontended}, {"joiners", joiners}, {"abandoned", abandoned}, {"storm", storm}, {"failing", failing}, {"http", func(n int) { overHTTP(min(n, 5)) }},
	} {
		if *only == "" || *only == m.name {
			m.run(*rounds)
		}
	}
}

func median(xs []float64) float64 {
	slices.Sort(xs)
	return xs[len(xs)/2]
}

// cost answers what one of the n things that f does costs: CPU time of the process, which unlike the clock does not count
// what else the machine is busy with, and memory.
func cost(n int, f func()) (ns, bytes, allocs float64) {
	var a, b runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&a)
	start := cpu()
	f()
	d := cpu() - start
	runtime.ReadMemStats(&b)
	k := float64(n)
	return float64(d) / k, float64(b.TotalAlloc-a.TotalAlloc) / k, float64(b.Mallocs-a.Mallocs) / k
}

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u) //nolint:errcheck // it cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

type sample struct{ ns, bytes, allocs []float64 }

func (s *sample) add(ns, bytes, allocs float64) {
	s.ns, s.bytes, s.allocs = append(s.ns, ns), append(s.bytes, bytes), append(s.allocs, allocs)
}

// uncontended: one caller, nothing else. Inline where the peer does so when the context cannot be cancelled.
func uncontended(rounds int) {
	const n = 100_000
	one := func(context.Context) (int, error) { return 1, nil }
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type line struct {
		name   string
		detach bool
		get    getter
		forget func(string)
		sample
	}
	var lines []*line
	for _, p := range peers() {
		if p.name == "flight" || !p.leaves {
			g, f := p.make()
			lines = append(lines, &line{name: p.name + ", inline", get: g, forget: f})
		}
		if p.leaves {
			g, f := p.make()
			lines = append(lines, &line{name: p.name + ", detached", detach: true, get: g, forget: f})
		}
	}
	base := map[bool]string{false: "x/sync Do, inline", true: "resenje, detached"}
	ratios := map[string][]float64{}
	for range rounds {
		round := map[string]float64{}
		for _, l := range lines {
			c := context.Background()
			if l.detach {
				c = ctx
			}
			ns, b, a := cost(n, func() {
				for range n {
					l.get(c, "key", one)
					l.forget("key")
				}
			})
			l.add(ns, b, a)
			round[l.name] = ns
		}
		for _, l := range lines {
			ratios[l.name] = append(ratios[l.name], round[l.name]/round[base[l.detach]])
		}
	}
	fmt.Printf("\n### Uncontended, one load a call (%d rounds of %d)\n\n", rounds, n)
	fmt.Println("| | CPU ns | B | allocs | median ratio to x/sync Do (inline) or resenje (detached) |\n|---|---|---|---|---|")
	for _, l := range lines {
		fmt.Printf("| %s | %.0f | %.0f | %.1f | %.2f |\n", l.name, median(l.ns), median(l.bytes), median(l.allocs), median(ratios[l.name]))
	}
}

// joiners: 1,000 goroutines wait for one load; the cost of a waiter, her goroutine included.
func joiners(rounds int) {
	const n = 1000
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ps := peers()
	samples := make([]sample, len(ps))
	for range rounds {
		for i, p := range ps {
			get, forget := p.make()
			forget("key")
			var loads atomic.Int64
			end := make(chan struct{})
			load := func(context.Context) (int, error) { loads.Add(1); <-end; return 1, nil }
			samples[i].add(cost(n, func() {
				var in, wg sync.WaitGroup
				in.Add(n)
				for range n {
					wg.Go(func() {
						in.Done()
						get(ctx, "key", load)
					})
				}
				in.Wait()
				for range 20 { // let the last ones get from the line above into their wait
					runtime.Gosched()
				}
				close(end)
				wg.Wait()
			}))
		}
	}
	fmt.Printf("\n### 1,000 joiners of one load, per joiner with her goroutine (%d rounds)\n\n", rounds)
	fmt.Println("| | CPU ns | B | allocs |\n|---|---|---|---|")
	for i, p := range ps {
		fmt.Printf("| %s | %.0f | %.0f | %.2f |\n", p.name, median(samples[i].ns), median(samples[i].bytes), median(samples[i].allocs))
	}
}

// abandoned: what callers who left hold while the load is stuck.
func abandoned(int) {
	const n = 100_000
	fmt.Printf("\n### Memory held per caller who left, load stuck (%d callers)\n\n| | B |\n|---|---|\n", n)
	for _, p := range peers() {
		if !p.leaves {
			fmt.Printf("| %s | cannot leave |\n", p.name)
			continue
		}
		get, _ := p.make()
		end, started := make(chan struct{}), make(chan struct{})
		go get(context.Background(), "key", func(context.Context) (int, error) { close(started); <-end; return 1, nil })
		<-started
		heap := func() float64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return float64(m.HeapAlloc)
		}
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		before := heap()
		for range n {
			get(&leaver{Context: gone}, "key", nil)
		}
		fmt.Printf("| %s | %.1f |\n", p.name, (heap()-before)/n)
		close(end)
		runtime.KeepAlive(get)
	}
}

// leaver leaves after she joined: at the door she has no error yet.
type leaver struct {
	context.Context
	asked bool
}

func (l *leaver) Err() error {
	if !l.asked {
		l.asked = true
		return nil
	}
	return l.Context.Err()
}

// storm: 2,000 different keys at once; how many loads the origin sees at one time.
func storm(int) {
	const n = 2000
	fmt.Printf("\n### %d different keys at once, loads of 5 ms\n\n| | at once at the origin | loads | refused | ms in all |\n|---|---|---|---|---|\n", n)
	run := func(name string, get getter) {
		var now, most, loads, refused atomic.Int64
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var wg sync.WaitGroup
		start := time.Now()
		for i := range n {
			wg.Go(func() {
				_, err := get(ctx, strconv.Itoa(i), func(context.Context) (int, error) {
					loads.Add(1)
					c := now.Add(1)
					for m := most.Load(); c > m && !most.CompareAndSwap(m, c); m = most.Load() {
					}
					time.Sleep(5 * time.Millisecond)
					now.Add(-1)
					return 1, nil
				})
				if errors.Is(err, flight.ErrBusy) {
					refused.Add(1)
				}
			})
		}
		wg.Wait()
		fmt.Printf("| %s | %d | %d | %d | %.0f |\n", name, most.Load(), loads.Load(), refused.Load(), float64(time.Since(start))/1e6)
	}
	for _, p := range peers() {
		get, _ := p.make()
		run(p.name, get)
	}
	for _, pending := range []int{n, 500} {
		g := flight.New(flight.Options[string, int]{Budget: flight.Budget{Concurrency: 32, MaxPending: pending}})
		run(fmt.Sprintf("flight, budget 32, pending %d", pending), func(ctx context.Context, key string, load func(context.Context) (int, error)) (int, error) {
			return g.Do(ctx, key, load)
		})
	}
}

// failing: 100 callers, each asking again 1 ms after a failure, for 2 s; loads of 5 ms that all fail.
func failing(int) {
	fmt.Printf("\n### A failing key, 100 callers who retry after 1 ms, 2 s\n\n| | origin calls/s | answers/s |\n|---|---|---|\n")
	run := func(name string, get getter) {
		var loads, answers atomic.Int64
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				for ctx.Err() == nil {
					get(ctx, "key", func(context.Context) (int, error) {
						loads.Add(1)
						time.Sleep(5 * time.Millisecond)
						return 0, errors.New("down")
					})
					answers.Add(1)
					time.Sleep(time.Millisecond)
				}
			})
		}
		wg.Wait()
		fmt.Printf("| %s | %.1f | %d |\n", name, float64(loads.Load())/2, answers.Load()/2)
	}
	for _, p := range peers() {
		get, _ := p.make()
		if p.name == "flight" {
			p.name = "flight, back-off off"
		}
		run(p.name, get)
	}
	g := flight.New(flight.Options[string, int]{})
	run("flight", func(ctx context.Context, key string, load func(context.Context) (int, error)) (int, error) {
		return g.Do(ctx, key, load)
	})
}
