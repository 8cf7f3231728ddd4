// Command go is an origin in Go that serves only visitors whom usher has let in.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ushergo/usher/admission"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9000", "address to serve on")
	room := flag.String("room", "main", "the room that visitors must have been let into")
	jwks := flag.String("jwks", "http://127.0.0.1:8080/.usher/.well-known/jwks.json", "where usher publishes its keys")
	flag.Parse()
	if err := run(*listen, *room, *jwks); err != nil {
		fmt.Fprintln(os.Stderr, "origin:", err)
		os.Exit(1)
	}
}

func run(listen, room, jwks string) error {
	admit, err := admission.New(room, jwks)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", front)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {}) // outside: no visitor, no token
	mux.Handle("GET /checkout", admit.Handler(http.HandlerFunc(checkout)))
	mux.Handle("POST /checkout/done", admit.Handler(http.HandlerFunc(done)))

	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Printf(`origin on http://%s
  /          for everybody
  /checkout  only for those whom usher has let into room %q
  usher's keys: %s
`, ln.Addr(), room, jwks)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		<-ctx.Done()
		soon, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(soon)
	}()
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// front is for everybody who comes this far.
func front(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(w, `<!doctype html><title>An origin</title>
<p>This page is for everybody. <a href="/checkout">The checkout</a> is for those whom usher has let in.
<form method="post" action="/checkout/done"><button>Done: let the next one in</button></form>
`)
}

// checkout says whom it serves. The admission is in the context; the headers say the same.
func checkout(w http.ResponseWriter, r *http.Request) {
	a, _ := admission.FromContext(r.Context())
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"room":      a.Room,
		"ticket_id": a.TicketID,
		"header":    r.Header.Get(admission.HeaderTicketID),
		"expires":   a.Expires.Unix(),
	})
}

// done ends a purchase: usher's proxy sees the header and lets the next visitor in.
func done(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Usher-Session", "end")
	w.WriteHeader(http.StatusNoContent)
}
