package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/flight"
	"github.com/ushergo/usher/flight/shared"
)

// TestWhichDeviceProtects is a table to be read: what the database sees in which case, under which device.
func TestWhichDeviceProtects(t *testing.T) {
	devices := []device{nothing, alone, budgeted, together}
	for _, row := range []struct {
		situation string
		measure   func(fleet) string
		want      [4]string // nothing, flight, flight with a budget of 8, flight/shared with that budget
	}{
		{"one key, one process, 100 callers: queries", queries(1, 100, 1), [4]string{"100", "1", "1", "1"}},
		{"one key, 10 processes, 10 callers each: queries", queries(10, 10, 1), [4]string{"100", "10", "10", "1"}},
		{"100 keys, one process: queries at once", atOnce(1, 100, 100), [4]string{"100", "100", "8", "8"}},
		{"100 keys, 10 processes, all ask for all: queries at once", within(80), [4]string{"1000", "1000", "<=80", "<=80"}},
		{"the same: queries in all", queries(10, 100, 100), [4]string{"1000", "1000", "1000", "100"}},
		{"1,000 keys, one process: refused at once", refusals, [4]string{"0", "0", "792", "792"}},
		{"a late load after a sale: what the cache then says", lateWriter, [4]string{"free", "sold", "sold", "sold"}},
	} {
		for i, d := range devices {
			synctest.Test(t, func(t *testing.T) {
				if got := row.measure(fleet{t, d}); got != row.want[i] {
					t.Errorf("%s, under %s: %s, want %s", row.situation, d.name, got, row.want[i])
				}
			})
		}
		t.Logf("%-58s %s", row.situation, strings.Join(row.want[:], "\t"))
	}
}

// device makes one process's way to the database. fill is called with what was read, as a cache's writer.
type device struct {
	name string
	make func(store shared.Store, fill func(key, val string)) process
}

type process struct {
	get    func(ctx context.Context, key string, load flight.Load[string]) (string, error)
	forget func(key string)
	close  func()
}

var budget = flight.Budget{Concurrency: 8, MaxPending: 200}

var nothing = device{"nothing", func(_ shared.Store, fill func(k, v string)) process {
	return process{func(ctx context.Context, key string, load flight.Load[string]) (string, error) {
		v, err := load(ctx)
		if err == nil {
			fill(key, v)
		}
		return v, err
	}, func(string) {}, func() {}}
}}

func group(o flight.Options[string, string]) process {
	g := flight.New(o)
	return process{
		func(ctx context.Context, key string, load flight.Load[string]) (string, error) {
			return g.Do(ctx, key, load)
		},
		g.Forget, func() { g.Close(context.Background()) },
	}
}

var alone = device{"flight", func(_ shared.Store, fill func(k, v string)) process {
	return group(flight.Options[string, string]{Fill: fill})
}}

var budgeted = device{"flight with a budget", func(_ shared.Store, fill func(k, v string)) process {
	return group(flight.Options[string, string]{Fill: fill, Budget: budget})
}}

var together = device{"flight/shared", func(store shared.Store, fill func(k, v string)) process {
	g := shared.New(store, "seats", shared.Options[string]{Local: flight.Options[string, string]{Fill: fill, Budget: budget}})
	return process{
		func(ctx context.Context, key string, load flight.Load[string]) (string, error) {
			return g.Do(ctx, key, load)
		},
		func(key string) { g.Forget(context.Background(), key) }, func() { g.Close(context.Background()) },
	}
}}

// fleet measures one device.
type fleet struct {
	t *testing.T
	d device
}

// crowd lets callers of each process ask at the same moment, caller i for key i modulo keys; a query takes a second.
func (f fleet) crowd(processes, callers, keys int) (queries, most, refused int) {
	store := memory.NewFlights(nil)
	var mu sync.Mutex
	now := 0
	load := func(context.Context) (string, error) {
		mu.Lock()
		queries, now = queries+1, now+1
		most = max(most, now)
		mu.Unlock()
		time.Sleep(time.Second)
		mu.Lock()
		now--
		mu.Unlock()
		return "v", nil
	}
	var ps []process
	for range processes {
		ps = append(ps, f.d.make(store, func(string, string) {}))
	}
	synctest.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range ps {
		for i := range callers {
			wg.Go(func() {
				_, err := p.get(ctx, fmt.Sprint("show", i%keys), load)
				mu.Lock()
				defer mu.Unlock()
				if errors.Is(err, flight.ErrBusy) {
					refused++
				} else if err != nil {
					f.t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	for _, p := range ps {
		p.close()
	}
	return queries, most, refused
}

func queries(processes, callers, keys int) func(fleet) string {
	return func(f fleet) string {
		n, _, _ := f.crowd(processes, callers, keys)
		return fmt.Sprint(n)
	}
}

func atOnce(processes, callers, keys int) func(fleet) string {
	return func(f fleet) string {
		_, n, _ := f.crowd(processes, callers, keys)
		return fmt.Sprint(n)
	}
}

// within is atOnce of ten processes, who do not share the work evenly: only whether it keeps to what their budgets allow.
func within(bound int) func(fleet) string {
	return func(f fleet) string {
		_, n, _ := f.crowd(10, 100, 100)
		if n <= bound {
			return fmt.Sprintf("<=%d", bound)
		}
		return fmt.Sprint(n)
	}
}

func refusals(f fleet) string {
	_, _, n := f.crowd(1, 1000, 1000)
	return fmt.Sprint(n)
}

// lateWriter: a reading begins, the seat is sold and the cache cleared, the reading ends and is put into the cache; then
// somebody reads through the cache.
func lateWriter(f fleet) string {
	var mu sync.Mutex
	seat, cache := "free", map[string]string{}
	p := f.d.make(memory.NewFlights(nil), func(k, v string) {
		mu.Lock()
		defer mu.Unlock()
		cache[k] = v
	})
	synctest.Wait()
	read := func() string {
		mu.Lock()
		v, ok := cache["show"]
		mu.Unlock()
		if ok {
			return v
		}
		v, err := p.get(context.Background(), "show", func(context.Context) (string, error) {
			mu.Lock()
			v := seat
			mu.Unlock()
			time.Sleep(time.Second)
			return v, nil
		})
		if err != nil {
			f.t.Error(err)
		}
		return v
	}
	late := make(chan string)
	go func() { late <- read() }()
	synctest.Wait()
	mu.Lock()
	seat = "sold"
	mu.Unlock()
	p.forget("show")
	mu.Lock()
	delete(cache, "show")
	mu.Unlock()
	<-late
	defer p.close()
	return read()
}
