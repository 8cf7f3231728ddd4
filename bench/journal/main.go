package main

import (
	"cmp"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"
)

// A store appends one record and returns when that record is durable. It is called
// by many goroutines.
type store interface {
	append(rec []byte) error
	close() error
}

type candidate struct {
	name string
	open func(dir string) (store, error)
}

var candidates = []candidate{
	{"own journal", openOwn},
	{"memory engine: whole enters", openEngine},
	{"raft-wal, an entry per group", openRaftWALGroup},
	{"raft-wal, an entry per record", openRaftWALRecord},
	{"pebble, Set+Sync per record", openPebbleSet},
	{"pebble, a batch per group", openPebbleBatch},
	{"sqlite FULL, a transaction per group", openSQLite},
}

// sample is one turn of one candidate.
type sample struct {
	rate     float64 // records per second
	p50, p99 time.Duration
	cpu      time.Duration // user and system time per record
}

func main() {
	log.SetFlags(0)
	dir := flag.String("dir", ".", "folder on the disk to measure; a tmpfs proves nothing")
	callersFlag := flag.String("callers", "1,64,512", "numbers of concurrent callers")
	turn := flag.Duration("turn", 200*time.Millisecond, "length of one turn")
	rounds := flag.Int("rounds", 13, "turns of each candidate; the median counts")
	only := flag.String("only", "", "measure only candidates whose name contains this")
	flag.Parse()

	var callers []int
	for s := range strings.SplitSeq(*callersFlag, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			log.Fatalf("-callers: %q is not a positive number", s)
		}
		callers = append(callers, n)
	}
	root, err := os.MkdirTemp(*dir, "journal-bench-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)

	fmt.Printf("%s, %d CPUs, %s/%s; records of 64 to 100 bytes; %d turns of %v, median\n\n",
		runtime.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, *rounds, *turn)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "callers\tstore\trecords/s\tratio\tp50\tp99\tCPU/record")
	for _, n := range callers {
		samples := make([][]sample, len(candidates))
		for round := range *rounds {
			for i, c := range candidates {
				if !strings.Contains(c.name, *only) {
					continue
				}
				s, err := measure(c, filepath.Join(root, fmt.Sprintf("%d-%d-%d", n, round, i)), n, *turn)
				if err != nil {
					log.Printf("%s: %v", c.name, err)
					continue
				}
				samples[i] = append(samples[i], s)
			}
		}
		var base float64
		for i, c := range candidates {
			if len(samples[i]) == 0 {
				continue
			}
			slices.SortFunc(samples[i], func(a, b sample) int { return cmp.Compare(a.rate, b.rate) })
			m := samples[i][len(samples[i])/2]
			if base == 0 {
				base = m.rate
			}
			fmt.Fprintf(w, "%d\t%s\t%.0f\t%.2f\t%v\t%v\t%v\n", n, c.name, m.rate, m.rate/base,
				m.p50.Round(10*time.Microsecond), m.p99.Round(10*time.Microsecond), m.cpu.Round(10*time.Nanosecond))
		}
	}
	w.Flush()
}

func measure(c candidate, dir string, callers int, turn time.Duration) (sample, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return sample{}, err
	}
	defer os.RemoveAll(dir)
	s, err := c.open(dir)
	if err != nil {
		return sample{}, err
	}
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		all      []time.Duration
		firstErr error
		counting atomic.Bool
		stop     atomic.Bool
	)
	for i := range callers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(i)))
			buf := make([]byte, 100)
			var took []time.Duration
			for !stop.Load() {
				rec := buf[:64+rnd.IntN(37)]
				for j := 0; j < len(rec); j += 8 {
					rec[j] = byte(rnd.Uint64())
				}
				start := time.Now()
				if err := s.append(rec); err != nil {
					mu.Lock()
					if firstErr == nil {
						firstErr = err
					}
					mu.Unlock()
					return
				}
				if counting.Load() {
					took = append(took, time.Since(start))
				}
			}
			mu.Lock()
			all = append(all, took...)
			mu.Unlock()
		})
	}
	time.Sleep(turn / 5) // warm up
	cpu := cpuTime()
	begin := time.Now()
	counting.Store(true)
	time.Sleep(turn)
	counting.Store(false)
	span := time.Since(begin)
	cpu = cpuTime() - cpu
	stop.Store(true)
	wg.Wait()
	if err := s.close(); err != nil && firstErr == nil {
		firstErr = err
	}
	if firstErr != nil || len(all) == 0 {
		return sample{}, firstErr
	}
	slices.Sort(all)
	return sample{
		rate: float64(len(all)) / span.Seconds(),
		p50:  all[len(all)/2],
		p99:  all[len(all)*99/100],
		cpu:  cpu / time.Duration(len(all)),
	}, nil
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
