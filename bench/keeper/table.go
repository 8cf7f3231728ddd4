package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/ushergo/usher/engine/dynamodb"
	"github.com/ushergo/usher/internal/faultproxy"
)

const eachEvery = 5 * time.Second

// cost prints the tables. Fleets run side by side, each in tables of its own.
func cost(ctx context.Context, long time.Duration) error {
	emu, err := faultproxy.Start("dynalite")
	if err != nil {
		return err
	}
	defer emu.Close()
	for k, v := range map[string]string{"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"} {
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	client, err := dynamodb.Client(ctx, dynamodb.Settings{Region: "us-east-1", Endpoint: emu.URL})
	if err != nil {
		return err
	}
	sizes := []int{100, 500, 2000}
	type result struct {
		steady, redeploy, each usage
		fleet                  *fleet
		err                    error
	}
	results := make([]result, len(sizes))
	var wg sync.WaitGroup
	for i, n := range sizes {
		wg.Go(func() {
			r := &results[i]
			r.steady, r.redeploy, r.fleet, r.err = run(ctx, client, n, false, time.Second, long)
		})
	}
	var moving *fleet
	var cursorErr error
	wg.Go(func() { _, _, moving, cursorErr = run(ctx, client, 100, true, time.Second, min(long, 30*time.Second)) })
	wg.Wait()
	if cursorErr != nil {
		return cursorErr
	}
	for i, n := range sizes {
		r := &results[i]
		if r.err == nil {
			r.each, r.err = each(ctx, client, n, eachEvery, min(long, 30*time.Second))
		}
		if r.err != nil {
			return fmt.Errorf("%d connections: %w", n, r.err)
		}
	}
	flushed := moving.methods()["Flush"]
	unit := flushed.WriteUnits / float64(max(flushed.Requests, 1)) // of one cursor

	fmt.Printf("3 workers, lease 20 s, beat 5 s; requests to dynalite counted over %v, units as it reported them\n", long)
	fmt.Printf("prices: %.3f and %.3f $ per million write and read units on demand; %.5f and %.5f $ an hour provisioned, %.0f %% used; month of %d h\n\n",
		perMillionWrites, perMillionReads, writeUnitHour, readUnitHour, 100*used, hours)
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "connections\trequests/s\twrite units/s\tread units/s\t$ a month on demand\tprovisioned\tone beat per connection: write units/s\t$ on demand\tprovisioned\tas much\t")
	for i, n := range sizes {
		s, e := results[i].steady, results[i].each
		fmt.Fprintf(tw, "%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.1f\t%.2f\t%.2f\t%.0f ×\t\n", n, s.requests, s.writes, s.reads, s.onDemand(), s.provisioned(),
			e.writes, e.onDemand(), e.provisioned(), e.onDemand()/s.onDemand())
	}
	_ = tw.Flush()
	fmt.Println("\nthe requests of all workers since the start, by method:")
	for i, n := range sizes {
		fmt.Printf("  %d connections\n", n)
		printMethods(results[i].fleet)
	}
	fmt.Println("\na redeploy of one worker of three, beside what goes on anyway:")
	for i, n := range sizes {
		r := results[i].redeploy
		fmt.Printf("  %d connections: %.0f requests, %.0f write units, %.0f read units, %.5f $\n", n, r.requests, r.writes, r.reads, (r.writes*perMillionWrites+r.reads*perMillionReads)/1e6)
	}
	fmt.Printf("\ncursors of connections that get messages all the time (%.3f write units a connection and flush, of %d counted), $ a month on demand:\n", unit, flushed.Requests)
	tw = tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "connections\tflush 1 s\t10 s\t60 s\t")
	for _, n := range sizes {
		fmt.Fprintf(tw, "%d\t", n)
		for _, flush := range []float64{1, 10, 60} {
			u := usage{writes: unit * float64(n) / flush}
			fmt.Fprintf(tw, "%.2f\t", u.onDemand())
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}
