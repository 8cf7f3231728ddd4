package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	connections := flag.Int("connections", 2000, "connections in all")
	workers := flag.Int("workers", 3, "worker processes")
	rate := flag.Float64("rate", 1, "messages a second and connection")
	size := flag.Int("size", 500, "bytes of a message")
	long := flag.Duration("for", time.Minute, "how long to measure")
	onlyCost := flag.Bool("cost", false, "requests and cost on DynamoDB instead")
	worker := flag.String("worker", "", "run as that worker (the bench starts itself so)")
	addr := flag.String("redis", "", "of a worker")
	sink := flag.String("sink", "", "of a worker")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *worker != "":
		err = work(ctx, *worker, *addr, *sink)
	case *onlyCost:
		err = cost(ctx, *long)
	default:
		err = hold(ctx, *connections, *workers, *rate, *size, *long)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "keeper:", err)
		os.Exit(1)
	}
}
