package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/ushergo/usher/gate"
)

func main() {
	rounds := flag.Int("rounds", 3, "rounds of each measurement")
	seconds := flag.Float64("seconds", 0.5, "length of each")
	only := flag.String("only", "", "one of: pairs, waiters, held")
	flag.Parse()
	if err := run(*rounds, time.Duration(*seconds*float64(time.Second)), *only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(rounds int, each time.Duration, only string) error {
	e, err := newEnv()
	if err != nil {
		return err
	}
	defer e.close()
	for _, m := range []struct {
		name string
		run  func(*env, int, time.Duration) error
	}{{"pairs", pairs}, {"waiters", waiters}, {"held", held}} {
		if only == "" || only == m.name {
			if err := m.run(e, rounds, each); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
		}
	}
	return nil
}

// load lets callers make pairs for a while and returns pairs a second and the answers' p99.
func load(callers int, each time.Duration, pair func(ctx context.Context, caller int) error) (rate float64, p99 time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), each)
	defer cancel()
	start := time.Now()
	var done atomic.Int64
	var failed atomic.Pointer[error]
	took := make([][]time.Duration, callers)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				if err := pair(ctx, c); err != nil {
					if time.Since(start) < each-20*time.Millisecond { // else it is only that the time is up
						failed.Store(&err)
					}
					return
				}
				done.Add(1)
				took[c] = append(took[c], time.Since(began))
			}
		})
	}
	wg.Wait()
	if e := failed.Load(); e != nil {
		return 0, 0, *e
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) > 0 {
		p99 = all[len(all)*99/100]
	}
	return float64(done.Load()) / time.Since(start).Seconds(), p99, nil
}

func median[T ~int64 | ~float64](xs []T) T {
	slices.Sort(xs)
	return xs[len(xs)/2]
}

func pairs(e *env, rounds int, each time.Duration) error {
	for _, where := range []string{"a key for each caller", "one key for all, one permit"} {
		tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(tw, "%s\tcallers\tpairs/s\tp99 ms\tof the floor\t\n", where)
		for _, callers := range []int{1, 8, 64, 512} {
			list := e.peers()
			rates, tails := make([][]float64, len(list)), make([][]time.Duration, len(list))
			for round := range rounds {
				for i, p := range list {
					key := func(c int) string { return "bench:" + p.name + ":" + strconv.Itoa(c) }
					if where[0] == 'o' {
						if !p.locks {
							continue
						}
						one := fmt.Sprintf("bench:one:%s:%d:%d", p.name, callers, round) // what a cut round left locked disturbs none
						key = func(int) string { return one }
					}
					rate, tail, err := load(callers, each, func(ctx context.Context, c int) error { return p.pair(ctx, key(c)) })
					if err != nil {
						return fmt.Errorf("%s, %d callers: %w", p.name, callers, err)
					}
					rates[i], tails[i] = append(rates[i], rate), append(tails[i], tail)
				}
			}
			floor := 0.0
			for i, p := range list {
				if p.name == "floor" && len(rates[i]) > 0 {
					floor = median(rates[i])
				}
			}
			for i, p := range list {
				if len(rates[i]) == 0 {
					continue
				}
				ratio := "-"
				if floor > 0 {
					ratio = fmt.Sprintf("%.2f", median(rates[i])/floor)
				}
				fmt.Fprintf(tw, "%s\t%d\t%.0f\t%.2f\t%s\t\n", p.name, callers, median(rates[i]), float64(median(tails[i]).Microseconds())/1000, ratio)
			}
		}
		if err := tw.Flush(); err != nil {
			return err
		}
		fmt.Println()
	}
	return nil
}

// cpu is what this process and a server have used.
func cpu(server int) time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	own := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	if server == 0 {
		return own
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", server))
	if err != nil {
		return own
	}
	f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	utime, _ := strconv.Atoi(f[11])
	stime, _ := strconv.Atoi(f[12])
	return own + time.Duration(utime+stime)*10*time.Millisecond
}

func waiters(e *env, _ int, _ time.Duration) error {
	const n, watch = 1000, 4 * time.Second
	fmt.Printf("%d waiters, nothing happens, %v: CPU of one core, Redis's included\n", n, watch)
	for _, s := range []struct {
		name   string
		store  gate.Store
		server int
	}{{"memory", e.memory, 0}, {"redis", e.redis, e.pid()}} {
		for _, keys := range []int{1, n} {
			g, err := gate.New(s.store, gate.Options{Permits: 1, Lease: time.Hour})
			if err != nil {
				return err
			}
			key := func(i int) string { return fmt.Sprintf("wait:%d:%d", keys, i%keys) }
			for i := range keys {
				if _, err := g.Acquire(context.Background(), key(i)); err != nil {
					return err
				}
			}
			for i := range n {
				go func() { _, _ = g.Acquire(context.Background(), key(i), gate.Wait(time.Hour)) }()
			}
			for g.Stats().Waiting < n {
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(time.Second)
			before := cpu(s.server)
			time.Sleep(watch)
			fmt.Printf("%8s, %4d keys: %.2f %%\n", s.name, keys, 100*float64(cpu(s.server)-before)/float64(watch))
			g.Close()
		}
	}
	fmt.Println()
	return nil
}

func held(e *env, rounds int, each time.Duration) error {
	const n = 100_000
	fmt.Printf("%d permits of the key are held: pairs/s of 64 callers beside those on an empty key\n", n)
	for _, s := range []struct {
		name  string
		store gate.Store
	}{{"memory", e.memory}, {"redis", e.redis}} {
		g, err := gate.New(s.store, gate.Options{Lease: time.Hour})
		if err != nil {
			return err
		}
		ctx := context.Background()
		for _, key := range []string{"held:none", "held:many"} {
			if _, err := g.Set(ctx, key, 1_000_000); err != nil {
				return err
			}
		}
		for range n / 500 {
			if _, err := g.Acquire(ctx, "held:many", gate.N(500)); err != nil {
				return err
			}
		}
		var none, many []float64
		for range rounds {
			for key, to := range map[string]*[]float64{"held:none": &none, "held:many": &many} {
				rate, _, err := load(64, each, func(ctx context.Context, _ int) error { return pairOf(ctx, g, key) })
				if err != nil {
					return err
				}
				*to = append(*to, rate)
			}
		}
		fmt.Printf("%8s: empty %.0f, held %.0f, ratio %.2f\n", s.name, median(none), median(many), median(many)/median(none))
		g.Close()
	}
	return nil
}

func pairOf(ctx context.Context, g *gate.Gate, key string) error {
	p, err := g.Acquire(ctx, key, gate.Wait(time.Minute), gate.Lease(30*time.Second))
	if err != nil {
		return err
	}
	return p.Release(ctx)
}
