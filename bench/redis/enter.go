package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/room"
)

// enter compares enters with plain ZADDs of as many bytes' members.
func enter(e *env, rounds, callers int, each time.Duration) error {
	names := []string{"plain ZADD, pipelined", "enter, gathered", "enter, one a call", "status, gathered", "enter again, gathered"}
	rates, cpus, p50s, p99s := make([][]float64, len(names)), make([][]float64, len(names)), make([]time.Duration, len(names)), make([]time.Duration, len(names))
	for range rounds {
		for i := range names {
			if i == 3 || i == 4 {
				continue // on what the gathered enters left
			}
			if err := e.flush(); err != nil {
				return err
			}
			opts := redis.RoomOptions{}
			if i == 2 {
				opts.Batch = 1
			}
			s, err := e.rooms(opts, config(1))
			if err != nil {
				return err
			}
			for range 2 { // from here on everybody waits
				if _, err := s.Do(context.Background(), "bench", newEnter()); err != nil {
					return err
				}
			}
			var score atomic.Int64
			mine := make([][]*room.Command, callers)
			refs := make([][]room.Ref, callers)
			do := func(ctx context.Context, c, n int) error {
				cmd := newEnter()
				res, err := s.Do(ctx, "bench", cmd)
				if err == nil {
					err = res.Err
				}
				mine[c], refs[c] = append(mine[c], cmd), append(refs[c], res.View.Ref)
				return err
			}
			if i == 0 {
				do = func(ctx context.Context, c, n int) error {
					var id [16]byte
					rand.Read(id[:])
					k := strconv.FormatInt(score.Add(1), 10)
					return e.client.Do(ctx, e.client.B().Arbitrary("ZADD").Keys("plain").Args(k, string(id[:])).Build()).Error()
				}
			}
			measure := func(i int, do func(context.Context, int, int) error) error {
				before, err := e.cpu()
				if err != nil {
					return err
				}
				var n atomic.Int64
				rate, p50, p99, err := load(callers, each, func(ctx context.Context, c, k int) error { n.Add(1); return do(ctx, c, k) })
				if err != nil {
					return err
				}
				after, err := e.cpu()
				rates[i], p50s[i], p99s[i] = append(rates[i], rate), p50, p99
				cpus[i] = append(cpus[i], float64(after-before)/1e3/float64(n.Load()))
				return err
			}
			if err := measure(i, do); err != nil {
				return err
			}
			if i == 1 {
				if err := measure(3, func(ctx context.Context, c, n int) error {
					res, err := s.Do(ctx, "bench", &room.Command{Op: room.OpStatus, Ref: refs[c][n%len(refs[c])]})
					if err == nil {
						err = res.Err
					}
					return err
				}); err != nil {
					return err
				}
				if err := measure(4, func(ctx context.Context, c, n int) error {
					res, err := s.Do(ctx, "bench", mine[c][n%len(mine[c])])
					if err == nil && res.View.Created {
						err = fmt.Errorf("a second ticket for one request")
					}
					return err
				}); err != nil {
					return err
				}
			}
			if err := s.Close(); err != nil {
				return err
			}
		}
	}
	fmt.Printf("enter: %d callers, median of %d rounds of %v\n\n", callers, rounds, each)
	w := table()
	fmt.Fprintln(w, "what\ta second\tof plain ZADD\tp50\tp99\tRedis CPU each")
	for i, name := range names {
		ratio := make([]float64, rounds)
		for r := range ratio {
			ratio[r] = rates[i][r] / rates[0][r]
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%v\t%v\t%.1f µs\n", name, median(rates[i]), median(ratio), p50s[i].Round(10*time.Microsecond), p99s[i].Round(10*time.Microsecond), median(cpus[i]))
	}
	w.Flush()
	fmt.Println()
	return nil
}
