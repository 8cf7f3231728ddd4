package flight_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ushergo/usher/flight"
)

// Callers of one key share one load.
func Example() {
	var g flight.Group[flight.Key, string]
	loads := 0
	all := make(chan struct{})

	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // hers, not the load's
			defer cancel()
			g.Do(ctx, flight.Key{Space: "page", Name: "home"}, func(ctx context.Context) (string, error) {
				loads++
				<-all
				return "welcome", nil
			})
		})
	}
	for g.Stats().Waiters < 100 {
		time.Sleep(time.Millisecond)
	}
	close(all)
	wg.Wait()
	fmt.Println("loads:", loads)
	// Output: loads: 1
}

// A budget bounds what the origin sees, whatever is asked for; what finds no place is refused at once.
func ExampleBudget() {
	g := flight.New(flight.Options[int, string]{Budget: flight.Budget{
		Concurrency: 2, MaxPending: 1,
		Classes: map[string]flight.Share{"checkout": {Reserve: 1}}, // a crowd of others leaves one load for it
	}})
	end := make(chan struct{})
	load := func(context.Context) (string, error) { <-end; return "", nil }
	ask := func(key int, class string) error {
		done := make(chan error, 1)
		go func() {
			_, err := g.DoWith(context.Background(), key, flight.With{Class: class}, load)
			done <- err
		}()
		for {
			select {
			case err := <-done:
				return err
			case <-time.After(time.Millisecond):
				if s := g.Stats(); s.Running+s.Pending == key {
					return nil // under way
				}
			}
		}
	}
	fmt.Println("first:", ask(1, "browse"))
	fmt.Println("second waits:", ask(2, "browse"))
	fmt.Println("third is busy:", errors.Is(ask(3, "browse"), flight.ErrBusy))
	fmt.Println("checkout runs:", ask(3, "checkout"), g.Stats().Running)
	close(end)
	g.Close(context.Background())
	// Output:
	// first: <nil>
	// second waits: <nil>
	// third is busy: true
	// checkout runs: <nil> 2
}

// A load whose value is for its caller alone says so, and lets the others go.
func ExampleNotShareable() {
	var g flight.Group[string, string]
	r, err := g.DoWith(context.Background(), "basket", flight.With{}, func(context.Context) (string, error) {
		return "yours", flight.NotShareable(time.Minute)
	})
	fmt.Println(r.Value, err)
	// Output: yours <nil>
}
