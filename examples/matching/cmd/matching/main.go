// Command matching serves jobs that freelancers accept, or storms them to show what the gate is worth.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/examples/matching"
	"github.com/ushergo/usher/gate"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "matching:", err)
		os.Exit(1)
	}
}

func run() error {
	dir := filepath.Join(os.TempDir(), "usher-matching")
	var (
		dsn     = flag.String("db", "sqlite:"+filepath.Join(dir, "jobs.db"), "database: sqlite:FILE, mysql:DSN or postgres://…")
		reader  = flag.String("reader", "", "database for reads, of the same kind")
		conns   = flag.Int("conns", 50, "connections of each pool")
		permits = flag.Int("permits", 20, "how many may try for one job at once; 0: no gate")
		servers = flag.String("redis", "", "Redis that instances share their gate by, HOST:PORT,…; none: in this process")
		listen  = flag.String("listen", "127.0.0.1:9100", "where to serve")
		callers = flag.Int("callers", 500, "storm: how many callers")
		each    = flag.Int("each", 10, "storm: calls of each, where all write")
	)
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: matching [flags] [serve|storm]\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	db, err := matching.Open(ctx, *dsn, *reader, *conns)
	if err != nil {
		return err
	}
	defer db.Close()
	store, closeStore, err := openStore(ctx, *servers, dir)
	if err != nil {
		return err
	}
	defer closeStore()
	switch what := flag.Arg(0); what {
	case "storm":
		return matching.Tables(ctx, os.Stdout, db, *callers, *each, func(n int) (*gate.Gate, error) { return gate.New(store, gate.Options{Permits: n}) })
	case "", "serve":
		return serve(ctx, db, store, *permits, *listen)
	default:
		return fmt.Errorf("%q: say serve or storm", what)
	}
}

func openStore(ctx context.Context, servers, dir string) (gate.Store, func(), error) {
	if servers == "" {
		s, err := memory.OpenGates(dir, memory.GateOptions{})
		if err != nil {
			return nil, nil, err
		}
		return s, func() { _ = s.Close() }, nil
	}
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: strings.Split(servers, ","), DisableCache: true})
	if err != nil {
		return nil, nil, err
	}
	s, err := redis.NewGates(ctx, c, redis.GateOptions{})
	return s, c.Close, err
}

func serve(ctx context.Context, db *matching.DB, store gate.Store, permits int, listen string) error {
	o := matching.Options{OnePermit: permits == 1}
	if permits > 0 {
		g, err := gate.New(store, gate.Options{Permits: permits})
		if err != nil {
			return err
		}
		defer g.Close()
		o.Gate = g
	}
	log := slog.Default()
	srv := &http.Server{Addr: listen, Handler: matching.New(db, o).Handler(log), ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() { done <- srv.ListenAndServe() }()
	log.Info("serving", "on", "http://"+listen)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	bye, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := srv.Shutdown(bye); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}
