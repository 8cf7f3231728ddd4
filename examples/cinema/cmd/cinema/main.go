// Command cinema runs the example booking site alone.
//
//	go run ./examples/cinema/cmd/cinema -listen 127.0.0.1:9000
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ushergo/usher/examples/cinema"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	listen := flag.String("listen", "127.0.0.1:9000", "address to serve on")
	file := flag.String("db", "", "SQLite file; empty: a temporary one, removed at the end")
	conns := flag.Int("conns", 4, "size of the database pool: what this site is short of")
	work := flag.Duration("work", 0, "how long each purchase keeps its connection, as a slow payment provider would")
	hold := flag.Duration("hold", 5*time.Minute, "how long a chosen seat stays reserved")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("cinema: takes no arguments, got %q; see -help", flag.Args())
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *file == "" {
		dir, err := os.MkdirTemp("", "cinema-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		*file = filepath.Join(dir, "cinema.db")
	}
	site, err := cinema.Open(ctx, *file, cinema.Options{Conns: *conns, Work: *work, Hold: *hold, Log: slog.Default()})
	if err != nil {
		return err
	}
	defer site.Close()

	ln, err := net.Listen("tcp", *listen)
	if err != nil {
		return fmt.Errorf("cinema: %w; choose another address with -listen", err)
	}
	srv := &http.Server{Handler: site, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10}
	fmt.Printf("cinema: http://%s (premiere: http://%s/premiere), database %s\n", ln.Addr(), ln.Addr(), *file)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop() // a second Ctrl-C ends at once
	grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}
