// Command keylock compares package keylock with its peers in one run: a lock that nobody else wants, one key that
// everybody wants, many keys used once, and how often somebody is overtaken in the queue of a hot key. Figures are medians
// of rounds in which every peer has its turn.
package main

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/locker"
	"k8s.io/utils/keymutex"

	"github.com/ushergo/usher/keylock"
)

// peer locks a key and returns what unlocks it.
type peer struct {
	name   string
	lock   func(key string)
	unlock func(key string)
	use    func(key string) // lock and unlock, as one does in Go
}

func peers() []peer {
	ours := keylock.New(keylock.Options{MaxWaiting: 1 << 20, MaxWait: -1})
	k8s := keymutex.NewHashed(64)
	moby := locker.New()
	var plain sync.Mutex
	ctx := context.Background()
	var holds sync.Map
	return []peer{
		{
			name: "keylock",
			lock: func(k string) {
				h, err := ours.Lock(ctx, k)
				if err != nil {
					panic(err)
				}
				holds.Store(k, h)
			},
			unlock: func(k string) {
				h, _ := holds.Load(k)
				_ = h.(keylock.Hold).Release()
			},
			use: func(k string) {
				h, err := ours.Lock(ctx, k)
				if err != nil {
					panic(err)
				}
				_ = h.Release()
			},
		},
		{
			name: "k8s keymutex (64)", lock: k8s.LockKey, unlock: func(k string) { _ = k8s.UnlockKey(k) },
			use: func(k string) { k8s.LockKey(k); _ = k8s.UnlockKey(k) },
		},
		{
			name: "moby/locker", lock: moby.Lock, unlock: func(k string) { _ = moby.Unlock(k) },
			use: func(k string) { moby.Lock(k); _ = moby.Unlock(k) },
		},
		{
			name: "sync.Mutex (no keys)", lock: func(string) { plain.Lock() }, unlock: func(string) { plain.Unlock() },
			use: func(string) { plain.Lock(); plain.Unlock() }, //nolint:staticcheck // it is what is measured
		},
	}
}

func main() {
	rounds := flag.Int("rounds", 11, "rounds of each measurement")
	flag.Parse()
	table("uncontended, one key, ns/op", *rounds, func(p peer) float64 {
		const n = 200_000
		began := time.Now()
		for range n {
			p.use("account-1")
		}
		return float64(time.Since(began)) / n
	})
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = "account-" + strconv.Itoa(i)
	}
	table("uncontended, 100,000 keys in turn, ns/op", *rounds, func(p peer) float64 {
		began := time.Now()
		for _, k := range keys {
			p.use(k)
		}
		return float64(time.Since(began)) / float64(len(keys))
	})
	table(fmt.Sprintf("one hot key, 64 callers on %d cores, ns/op", runtime.NumCPU()), *rounds, func(p peer) float64 {
		const callers, each = 64, 500
		var wg sync.WaitGroup
		began := time.Now()
		for range callers {
			wg.Go(func() {
				for range each {
					p.use("hot")
				}
			})
		}
		wg.Wait()
		return float64(time.Since(began)) / (callers * each)
	})
	table("one hot key, overtakes among 500 callers that came one after the other, and again at once", *rounds, overtakes)
}

// overtakes counts grants that went to somebody who began to wait clearly after another who still waits: a
// millisecond, so that it is the lock's order and not the scheduler's. Every holder asks again at once, which is how a
// mutex lets the strong overtake the weak.
func overtakes(p peer) float64 {
	const callers, turns = 50, 10
	var mu sync.Mutex
	waiting := map[int]time.Time{}
	var n atomic.Int64
	var wg sync.WaitGroup
	for id := range callers {
		wg.Go(func() {
			for range turns {
				mu.Lock()
				since := time.Now()
				waiting[id] = since
				mu.Unlock()
				p.lock("hot")
				mu.Lock()
				delete(waiting, id)
				for _, other := range waiting {
					if since.Sub(other) > time.Millisecond {
						n.Add(1)
						break
					}
				}
				mu.Unlock()
				for began := time.Now(); time.Since(began) < 50*time.Microsecond; { // some work
				}
				p.unlock("hot")
			}
		})
	}
	wg.Wait()
	return float64(n.Load())
}

func table(title string, rounds int, measure func(peer) float64) {
	ps := peers()
	got := make([][]float64, len(ps))
	for range rounds {
		for i, p := range ps {
			got[i] = append(got[i], measure(p))
		}
	}
	fmt.Println(title)
	first := 0.0
	for i, p := range ps {
		slices.Sort(got[i])
		m := got[i][len(got[i])/2]
		if i == 0 {
			first = m
		}
		ratio := ""
		if first > 0 {
			ratio = fmt.Sprintf("%6.2f", m/first)
		}
		fmt.Printf("  %-24s %10.1f %s\n", p.name, m, ratio)
	}
	fmt.Println()
}
