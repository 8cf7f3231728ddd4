// Transcribe is the command of the example: a worker, an upstream, or the script that hurts workers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ushergo/usher/examples/transcribe"
	"github.com/ushergo/usher/keeper/keepertest"
)

const usage = `transcribe worker --store redis:127.0.0.1:6379 --sink sqlite:messages.db    one worker, until SIGTERM
transcribe upstream --listen 127.0.0.1:9100 --rate 10                      numbered messages at ws://…/{stream}?from=&fence=
transcribe chaos --kills 10                                                workers and what happens to them (needs redis-server)
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch args := os.Args[2:]; os.Args[1] {
	case "worker":
		err = transcribe.WorkerMain(ctx, args, os.Stderr)
	case "upstream":
		err = upstream(ctx, args)
	case "chaos":
		err = chaos(ctx, args)
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "transcribe:", err)
		os.Exit(1)
	}
}

func upstream(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("upstream", flag.ExitOnError)
	listen := fs.String("listen", "127.0.0.1:9100", "address")
	u := &keepertest.Upstream{}
	fs.Float64Var(&u.Rate, "rate", 10, "messages a second and stream")
	fs.DurationVar(&u.Drop, "drop", 0, "mean life of a connection; 0: none is dropped")
	fs.IntVar(&u.Size, "size", 120, "bytes of a message")
	_ = fs.Parse(args)
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Printf("ws://%s/{stream}?from={number}&fence={fence}\n", l.Addr())
	srv := &http.Server{Handler: u, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
		u.Close()
	}()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func chaos(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("chaos", flag.ExitOnError)
	kills := fs.Int("kills", 10, "SIGKILLs")
	stops := fs.Int("stops", 2, "SIGSTOPs, for two leases")
	partitions := fs.Int("partitions", 2, "partitions, for two leases")
	redeploys := fs.Int("redeploys", 3, "SIGTERMs")
	workers := fs.Int("workers", 3, "worker processes")
	streams := fs.Int("streams", 12, "connections")
	rate := fs.Float64("rate", 50, "messages a second and stream")
	drop := fs.Duration("drop", 10*time.Second, "mean life of a connection at the upstream")
	lease := fs.Duration("lease", 2*time.Second, "lease of the workers")
	verbose := fs.Bool("v", false, "show the workers' logs")
	_ = fs.Parse(args)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "transcribe")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	socket, closeRedis, err := transcribe.StartRedis(ctx, dir)
	if err != nil {
		return err
	}
	defer closeRedis()
	var log io.Writer
	if *verbose {
		log = os.Stderr
	}
	f, err := transcribe.NewFleet(ctx, transcribe.FleetOptions{
		Command: func(args ...string) *exec.Cmd { return exec.Command(self, args...) },
		Store:   "redis:{addr}", StoreNetwork: "unix", StoreAddr: socket,
		Sink: "sqlite:" + filepath.Join(dir, "messages.db"), Workers: *workers, Streams: *streams, Lease: *lease, Rate: *rate, Drop: *drop, Log: log,
	})
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := f.Chaos(ctx, transcribe.Harms(*kills, *stops, *partitions, *redeploys))
	r.Print(os.Stdout)
	return errors.Join(err, r.Faults())
}
