// Command seatmap is a cinema's seat map that a thousand people look at while the database is asked once.
//
//	go run ./examples/seatmap            # then open http://127.0.0.1:8090
//	curl http://127.0.0.1:8090/stats     # calls, and the queries that they cost
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"time"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8090", "address to listen on")
	db := flag.String("db", filepath.Join(os.TempDir(), "seatmap.db"), "SQLite file, made if it is not there")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *listen, *db); err != nil {
		fmt.Fprintln(os.Stderr, "seatmap:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen, db string) error {
	b, err := openBox(db)
	if err != nil {
		return err
	}
	defer b.db.Close()
	if err := b.add(ctx, "tonight", 10, 12); err != nil {
		return err
	}
	s := newSite(b, 5*time.Second)
	srv := &http.Server{Addr: listen, Handler: s, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- srv.ListenAndServe() }()
	fmt.Printf("http://%s\n", listen)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// First the visitors, then the readings that nobody waits for any more, then the database.
	return errors.Join(srv.Shutdown(last), s.maps.Close(last))
}
