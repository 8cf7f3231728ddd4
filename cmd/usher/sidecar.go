package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/affinitymetrics"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/affinity/sidecar"
	"github.com/ushergo/usher/cmd/usher/internal/server"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/keylock"
)

type sidecarFlags struct {
	sidecar.Options
	listen, metrics, key, redis, usher, level, format string
	hold, wait, drain                                 time.Duration
}

func newSidecarCmd() *cobra.Command {
	var f sidecarFlags
	cmd := &cobra.Command{
		Use:   "sidecar",
		Short: "Run beside one instance of a service whose sessions live in its memory",
		Long: `sidecar stands in front of one instance of a service in any language. It claims a
session key for this instance before the service sees the request, lets one request of a
key through at a time, and brings requests of sessions that live elsewhere to their owner.

The service says what happened in a header of its answers, which clients do not see:
  Usher-Session: open; key=alice       the session is here now
  Usher-Session: close; key=alice      it is gone

The directory of sessions is in Redis (--redis) or behind an usher (--usher, with a token
of service.tokens in USHER_SERVICE_TOKEN). What sidecars tell each other is signed with
USHER_AFFINITY_SECRET, the same for all.`,
		Example: `  usher sidecar --app http://127.0.0.1:3000 --key header:X-Account --redis 127.0.0.1:6379 --peers
  usher sidecar --app http://127.0.0.1:3000 --key cookie:account --usher http://127.0.0.1:8081 --listen 0.0.0.0:3100 --addr 10.0.0.7:3100`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.App, "app", "", "the service, as http://127.0.0.1:3000 (required)")
	flags.StringVar(&f.listen, "listen", "127.0.0.1:3100", "address of the sidecar")
	flags.StringVar(&f.metrics, "metrics-listen", "", "address of /metrics for Prometheus, as 127.0.0.1:3101 (default: none)")
	flags.StringVar(&f.Addr, "addr", "", "address at which the others reach it (default: --listen)")
	flags.StringVar(&f.key, "key", "", "where requests have their session's key: header:NAME, cookie:NAME, query:NAME, path:/accounts/{key} or json:FIELD; several with commas (required)")
	flags.StringVar(&f.Space, "space", "app", "name that the instances of the service have in common")
	flags.StringVar(&f.Instance, "instance", "", "name of this instance (default: host name and port)")
	flags.StringVar(&f.redis, "redis", "", "Redis that holds the directory, as 127.0.0.1:6379; password in USHER_REDIS_PASSWORD")
	flags.StringVar(&f.usher, "usher", "", "usher whose service API holds the directory, as http://127.0.0.1:8081")
	flags.BoolVar(&f.Peers, "peers", false, "bring requests of other instances' sessions to them: behind a balancer that knows nothing of sessions")
	flags.StringVar(&f.Close, "close", "", "path of the service that is told to close a session, as /usher/close")
	flags.IntVar(&f.MaxSessions, "max-sessions", 0, "most sessions here; 0: no limit")
	flags.DurationVar(&f.Idle, "idle", 30*time.Minute, "a session that nobody used for so long ends")
	flags.DurationVar(&f.hold, "max-hold", time.Minute, "a request that takes longer loses its session")
	flags.DurationVar(&f.wait, "max-wait", 30*time.Second, "how long a request waits for its turn")
	flags.DurationVar(&f.drain, "drain", 30*time.Second, "how long sessions have to end at a stop")
	flags.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&f.format, "log-format", "", "text or json (default text in a terminal, else json)")
	return cmd
}

// parseKey reads --key.
func parseKey(s string) (gateway.Key, error) {
	var k gateway.Key
	for part := range strings.SplitSeq(s, ",") {
		kind, name, ok := strings.Cut(strings.TrimSpace(part), ":")
		to := map[string]*string{"header": &k.Header, "cookie": &k.Cookie, "query": &k.Query, "path": &k.Path, "json": &k.JSON}[kind]
		if !ok || name == "" || to == nil {
			return k, fmt.Errorf("--key %q: write header:NAME, cookie:NAME, query:NAME, path:/accounts/{key} or json:FIELD", part)
		}
		*to = name
	}
	return k, nil
}

func (f *sidecarFlags) directory(ctx context.Context) (affinity.Store, func(), error) {
	switch {
	case (f.redis == "") == (f.usher == ""):
		return nil, nil, &usageError{errors.New("where is the directory? Give --redis or --usher, one of them")}
	case f.usher != "":
		token := os.Getenv("USHER_SERVICE_TOKEN")
		if token == "" {
			return nil, nil, &usageError{errors.New("--usher needs a token of service.tokens in USHER_SERVICE_TOKEN")}
		}
		return gateway.NewRemote(f.usher, token, nil), func() {}, nil
	}
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: strings.Split(f.redis, ","), Password: os.Getenv("USHER_REDIS_PASSWORD"), DisableCache: true,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("redis %s: %w", f.redis, err)
	}
	return redis.NewDirectory(c), c.Close, ctx.Err()
}

func (f *sidecarFlags) run(cmd *cobra.Command) error {
	log, err := server.NewLogger(cmd.ErrOrStderr(), f.level, f.format)
	if err != nil {
		return &usageError{err}
	}
	return inLog(log, f.serve(cmd, log))
}

func (f *sidecarFlags) serve(cmd *cobra.Command, log *slog.Logger) (err error) {
	if f.App == "" {
		return &usageError{errors.New("--app is missing: the service, as http://127.0.0.1:3000")}
	}
	if f.Options.Key, err = parseKey(f.key); err != nil {
		return &usageError{err}
	}
	if f.Secret = os.Getenv("USHER_AFFINITY_SECRET"); len(f.Secret) < 16 {
		return &usageError{errors.New("USHER_AFFINITY_SECRET is missing or shorter than 16 characters; make one with openssl rand -hex 24 and give it to all sidecars and gateways")}
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d, free, err := f.directory(ctx)
	if err != nil {
		return err
	}
	defer free()
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fmt.Errorf("--listen %s: %w", f.listen, err)
	}
	defer l.Close()
	var figures net.Listener
	if f.metrics != "" {
		if figures, err = net.Listen("tcp", f.metrics); err != nil {
			return fmt.Errorf("--metrics-listen %s: %w", f.metrics, err)
		}
		defer figures.Close()
	}
	f.Directory, f.Logger = d, log
	f.Lock = keylock.Options{MaxHold: f.hold, MaxWait: f.wait}
	if f.Addr == "" {
		f.Addr = l.Addr().String()
	}
	if f.Instance == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("this machine has no name: %w; give --instance", err)
		}
		_, port, _ := net.SplitHostPort(f.Addr)
		f.Instance = host + "-" + port
	}
	s, err := sidecar.New(f.Options)
	if err != nil {
		return err
	}
	// Readiness says whether new sessions can be made. Liveness, which probes of gateways use, is answered by the sidecar.
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health/ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Health(); err != nil {
			http.Error(w, "degraded: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("/", s)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	if figures != nil {
		registry := prometheus.NewRegistry()
		registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
			affinitymetrics.Owner(f.Space, s), affinitymetrics.Gateway(f.Space, s.Gateway))
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
		srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
		defer srv.Close()
		go srv.Serve(figures) //nolint:errcheck // it ends with the sidecar
		log.Info("figures are shown", "listen", figures.Addr().String(), "sidecar", l.Addr().String())
	}
	log.Info("the sidecar is up", "listen", l.Addr().String(), "app", f.App, "space", f.Space, "instance", f.Instance)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	stop() // a second signal ends it at once
	log.Info("stopping: no new sessions; those there are have time to end", "for", f.drain, "sessions", s.Sessions())
	ctx, cancel := context.WithTimeout(context.Background(), f.drain)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil && ctx.Err() == nil {
		log.Warn("the directory was not told", "err", err)
	}
	last, done := context.WithTimeout(context.Background(), 2*time.Second)
	defer done()
	if srv.Shutdown(last) != nil {
		_ = srv.Close()
	}
	return nil
}
