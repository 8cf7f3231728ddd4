package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

func main() {
	rounds := flag.Int("rounds", 5, "rounds of each measurement")
	seconds := flag.Float64("seconds", 2, "length of each")
	callers := flag.Int("callers", 1024, "callers at once")
	only := flag.String("only", "", "one of: enter, places, bulk")
	big := flag.Int("waiting", 1_000_000, "how many wait in the largest room")
	flag.Parse()
	if err := run(*rounds, *callers, *big, time.Duration(*seconds*float64(time.Second)), *only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(rounds, callers, big int, each time.Duration, only string) error {
	e, err := newEnv()
	if err != nil {
		return err
	}
	defer e.close()
	if only == "" || only == "enter" {
		if err := enter(e, rounds, callers, each); err != nil {
			return fmt.Errorf("enter: %w", err)
		}
	}
	if only == "" || only == "places" {
		for _, n := range []int{100_000, big} {
			if err := places(e, n); err != nil {
				return fmt.Errorf("places: %w", err)
			}
		}
	}
	if only == "" || only == "bulk" {
		if err := bulk(e, 100_000); err != nil {
			return fmt.Errorf("bulk: %w", err)
		}
	}
	return nil
}

// load lets callers do something for a while and returns how often a second, and the answers' median and p99.
func load(callers int, each time.Duration, do func(ctx context.Context, caller, n int) error) (rate float64, p50, p99 time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), each+30*time.Second)
	defer cancel()
	start := time.Now()
	var done atomic.Int64
	var failed atomic.Pointer[error]
	took := make([][]time.Duration, callers)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for n := 0; time.Since(start) < each; n++ {
				began := time.Now()
				if err := do(ctx, c, n); err != nil {
					failed.Store(&err)
					return
				}
				done.Add(1)
				took[c] = append(took[c], time.Since(began))
			}
		})
	}
	wg.Wait()
	if e := failed.Load(); e != nil {
		return 0, 0, 0, *e
	}
	rate = float64(done.Load()) / time.Since(start).Seconds()
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) > 0 {
		p50, p99 = all[len(all)/2], all[len(all)*99/100]
	}
	return rate, p50, p99, nil
}

func median(list []float64) float64 {
	list = slices.Clone(list)
	slices.Sort(list)
	return list[len(list)/2]
}

func table() *tabwriter.Writer { return tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0) }
