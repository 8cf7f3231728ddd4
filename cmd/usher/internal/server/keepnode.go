package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/rueidis"

	"github.com/ushergo/usher/cmd/usher/internal/keep"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/web/svc"
)

// KeepNode is a running worker without waiting rooms. Its methods may be called from any goroutine.
type KeepNode struct {
	cfg    *config.Config
	log    *slog.Logger
	admin  *listener
	scaler *scaler // nil: no keda: section
	redis  rueidis.Client
	keep   *keep.Keep
	cancel context.CancelFunc
	once   sync.Once
	ended  chan error // of the worker
	broke  chan error // of the listener
}

// StartKeep brings up a worker with cfg, which must be valid and have a keeper: section. ctx bounds the start alone.
func StartKeep(ctx context.Context, cfg *config.Config, log *slog.Logger) (*KeepNode, error) {
	n := &KeepNode{cfg: cfg, log: log, ended: make(chan error, 1), broke: make(chan error, 1)}
	if err := n.up(ctx); err != nil {
		_ = n.down()
		return nil, mendDisk(err)
	}
	return n, nil
}

func (n *KeepNode) up(ctx context.Context) (err error) {
	raiseFileLimit(n.log)
	if n.admin, err = openListener(ctx, n.cfg.Admin.Listen, n.cfg.Admin.TLS, "admin", "--admin-listen (admin.listen)"); err != nil {
		return err
	}
	if n.scaler, err = openScaler(ctx, n.cfg.Keda); err != nil {
		return err
	}
	if n.cfg.Engine.Kind == "memory" {
		if err := makeDataFolder(n.cfg.Engine.Dir); err != nil {
			return err
		}
	} else if n.redis, err = redis.Connect(ctx, RedisConfig(n.cfg)); err != nil {
		return err
	}
	registry := newRegistry()
	if n.keep, err = keep.Open(ctx, keep.Options{Config: n.cfg, Redis: n.redis, Registry: registry, Logger: n.log}); err != nil {
		return err
	}
	services, err := svc.New(svc.Options{Tokens: reveal(n.cfg.Service.Tokens), Connections: n.keep.Connections(), Logger: n.log})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	token, file, made, err := adminToken(n.cfg)
	if err != nil {
		return err
	}
	if file != "" {
		n.log.Info("the admin token is kept in a file, mode 0600", "file", file, "made", made)
	}
	if len(n.cfg.Service.Tokens) == 0 {
		n.log.Warn("service.tokens is empty: nobody may add connections or look at them; set USHER_SERVICE_TOKENS")
	}
	mux.Handle("GET /metrics", asOperator(token, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})))
	mux.HandleFunc("GET /health/live", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /health/ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := n.keep.Health(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	n.admin.srv = &http.Server{
		Handler: services.Mount(mux), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: httpLog(n.log),
	}
	go func() {
		if n.admin.cert != nil {
			n.admin.srv.TLSConfig = n.admin.cert.tlsConfig()
			n.broke <- n.admin.srv.ServeTLS(n.admin.Listener, "", "")
		} else {
			n.broke <- n.admin.srv.Serve(n.admin.Listener)
		}
	}()
	if n.scaler != nil {
		n.scaler.answer(keepDemands{n.keep})
		go func() { _ = n.scaler.srv.Serve(n.scaler.Listener) }()
		n.log.Info("KEDA is answered", "listen", n.scaler.Addr().String(), "tls", n.scaler.cert != nil)
	}
	run, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	go func() { n.ended <- n.keep.Run(run, n.cfg.Node.Drain) }()
	n.log.Info("usher keep is up", "admin", n.AdminURL(), "worker", n.keep.Name())
	return nil
}

// asOperator lets in who has the admin token.
func asOperator(token config.Secret, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token.Reveal()))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(given))
		if !strings.EqualFold(kind, "Bearer") || subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="usher admin"`)
			http.Error(w, "this asks for Authorization: Bearer and the admin token", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// AdminURL is where a client on this machine finds the admin listener.
func (n *KeepNode) AdminURL() string { return n.admin.url() }

// Stop begins a graceful stop; Wait returns when it is over, within node.drain and a few seconds.
func (n *KeepNode) Stop() {
	n.once.Do(func() {
		n.log.Info("stopping: everything is given back", "drain", n.cfg.Node.Drain.String())
		n.cancel()
	})
}

// Wait returns when the worker has stopped: nil after Stop, else why it ended.
func (n *KeepNode) Wait() error {
	var err error
	select {
	case err = <-n.ended:
	case err = <-n.broke:
		err = fmt.Errorf("listening on %s ended: %w", n.admin.Addr(), err)
		n.cancel()
		err = errors.Join(err, <-n.ended)
	}
	return errors.Join(err, n.down())
}

func (n *KeepNode) down() error {
	var err error
	if n.admin != nil {
		if n.admin.srv != nil {
			_ = n.admin.srv.Close()
		} else {
			_ = n.admin.Close()
		}
	}
	last, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	n.scaler.shutdown(last)
	if n.keep != nil {
		err = n.keep.Close()
	}
	if n.redis != nil {
		n.redis.Close()
	}
	return err
}
