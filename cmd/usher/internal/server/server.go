package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/cmd/usher/internal/keep"
	"github.com/ushergo/usher/cmd/usher/internal/routes"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
	"github.com/ushergo/usher/web"
	"github.com/ushergo/usher/web/svc"
)

// Option is something that a configuration file does not hold.
type Option func(*options)

type options struct {
	version string
	spans   sdktrace.SpanExporter
}

// Version is shown in metrics, traces and the admin API.
func Version(v string) Option { return func(o *options) { o.version = v } }

// Spans switches traces on and sends them to exp; see OTLP. A nil exp changes
// nothing. The server shuts exp down.
func Spans(exp sdktrace.SpanExporter) Option { return func(o *options) { o.spans = exp } }

// Server is a running usher. Its methods may be called from any goroutine.
type Server struct {
	cfg           *config.Config // as started; rooms as last applied
	log           *slog.Logger
	node, version string
	leaving       atomic.Bool                // asked to drain, or stopping
	shown         atomic.Pointer[web.Server] // front, once it is there
	start         time.Time
	engine        engine
	rooms         *room.Rooms
	keys          *token.Keys
	token         config.Secret
	gates         *gates
	shared        *collapse
	routes        *routes.Routes
	keep          *keep.Keep // nil: no keeper: section
	stopKeep      context.CancelFunc
	keepEnded     chan error
	relays        *carriers // nil: none are configured
	front         *web.Server
	traces        *sdktrace.TracerProvider

	public, admin *listener
	scaler        *scaler // nil: none is configured
	pods          *pods

	stopBackground context.CancelFunc
	background     sync.WaitGroup

	reloading sync.Mutex
	stopOnce  sync.Once
	stopErr   error
	done      chan struct{}
	failed    chan error // a listener broke
}

// listener is one of the two, with what serves on it.
type listener struct {
	net.Listener
	srv  *http.Server
	cert *certificate
}

// Start brings up a node with cfg, which must be valid. ctx bounds the start
// alone. log must not be nil.
func Start(ctx context.Context, cfg *config.Config, log *slog.Logger, opts ...Option) (*Server, error) {
	o := options{version: "(devel)"}
	for _, opt := range opts {
		opt(&o)
	}
	s := &Server{cfg: cfg, log: log, start: time.Now(), done: make(chan struct{}), failed: make(chan error, 3)}
	if err := s.up(ctx, o); err != nil {
		s.down()
		return nil, mendDisk(err)
	}
	s.announce()
	return s, nil
}

// up does everything in the order in which failures are cheap: what names and
// ports can say before what reads a large log.
func (s *Server) up(ctx context.Context, opts options) error {
	raiseFileLimit(s.log)
	for _, w := range s.cfg.Warnings() {
		s.log.Warn(w.Error())
	}
	s.version = opts.version
	var err error
	if s.node, err = nodeID(s.cfg); err != nil {
		return err
	}
	if s.public, err = openListener(ctx, s.cfg.Public.Listen, s.cfg.Public.TLS, "public", "--listen (public.listen)"); err != nil {
		return err
	}
	if s.admin, err = openListener(ctx, s.cfg.Admin.Listen, s.cfg.Admin.TLS, "admin", "--admin-listen (admin.listen)"); err != nil {
		return err
	}
	if s.scaler, err = openScaler(ctx, s.cfg.Keda); err != nil {
		return err
	}
	if s.cfg.Engine.Kind == "memory" {
		if err := makeDataFolder(s.cfg.Engine.Dir); err != nil {
			return err
		}
	}
	if err := s.engine.connect(ctx, s); err != nil {
		return err
	}
	if s.keys, err = s.engine.openKeys(ctx, s.cfg); err != nil {
		return err
	}
	token, tokenPath, made, err := adminToken(s.cfg)
	if err != nil {
		return err
	}
	s.token = token
	if tokenPath != "" {
		s.log.Info("the admin token is kept in a file, mode 0600", "file", tokenPath, "made", made)
	}

	registry := newRegistry()
	var tracer trace.Tracer // nil: no traces
	if s.traces = newTracing(opts.spans, opts.version, s.node); s.traces != nil {
		tracer = s.traces.Tracer(tracerName)
	}
	observer := web.NewObserver(registry, tracer)
	if err := s.engine.open(ctx, s, observer); err != nil {
		return err
	}
	if err := s.openRooms(ctx, observer, registry); err != nil {
		return err
	}
	s.gates, err = openGates(s.cfg, s.engine.gates, s.log, registry)
	if err != nil {
		return err
	}
	if err := s.openRelays(ctx, registry); err != nil {
		return err
	}
	s.shared = newCollapse()
	if err := s.shared.apply(s.cfg.Rooms); err != nil {
		return err
	}
	registry.MustRegister(s.shared)
	options := web.Options{
		Collapse: s.shared, BeforeOrigin: s.gates.front.handler, Health: s.gates.store.Health,
		Rooms: s.rooms, Keys: s.keys, Observer: observer,
		PublicURL: s.visitorURL(), TrustedProxies: s.cfg.TrustedProxies, AdminToken: s.token.Reveal(),
		Registry: registry, Logger: s.log, Tracer: tracer,
		NodeID: s.node, Version: opts.version, DrainFor: s.cfg.Node.Drain,
	}
	if s.engine.nodes != nil {
		options.Fleet = fleet{s.engine.nodes}
	}
	options.Routes, options.Directory = func() []web.Route { return s.routes.List() }, s.engine.directory
	if s.relays != nil {
		options.Relays = s.relays
	}
	if s.front, err = web.New(options); err != nil {
		return err
	}
	if s.shown.Store(s.front); s.leaving.Load() {
		s.front.DrainSoon()
	}

	var connections *svc.Connections
	if s.cfg.Keeper.On {
		s.keep, err = keep.Open(ctx, keep.Options{Config: s.cfg, Redis: s.engine.redis.client, Registry: registry, Logger: s.log})
		if err != nil {
			return err
		}
		connections = s.keep.Connections()
	}
	services, err := svc.New(svc.Options{Tokens: reveal(s.cfg.Service.Tokens), Gate: s.gates.service, Connections: connections, Logger: s.log})
	if err != nil {
		return err
	}
	services.Handle("/svc/v1/affinity/", gateway.API(s.engine.directory))
	if s.routes, err = routes.New(s.cfg.Routes, s.cfg.TrustedProxies, s.engine.directory, s.log); err != nil {
		return err
	}
	registry.MustRegister(s.routes)

	background, stop := context.WithCancel(context.Background())
	s.stopBackground = stop
	s.background.Go(func() { s.keepKeys(background) })
	s.startKeep()
	s.serve(s.public, s.routes.Handler(s.front.Public()))
	s.serve(s.admin, services.Mount(s.front.Admin()))
	s.serveScaler()
	return nil
}

func reveal(secrets []config.Secret) []string {
	var out []string
	for _, secret := range secrets {
		out = append(out, secret.Reveal())
	}
	return out
}

func openListener(ctx context.Context, addr string, conf config.TLS, what, flag string) (*listener, error) {
	cert, err := loadCertificate(conf, what+".tls")
	if err != nil {
		return nil, err
	}
	l, err := listen(ctx, addr, what, flag)
	if err != nil {
		return nil, err
	}
	return &listener{Listener: l, cert: cert}, nil
}

// makeDataFolder makes the folder where there is none, and sees whether it can
// be written to, so that the first to fail says so and not the last.
func makeDataFolder(dir string) error {
	const mend = "name another with --data (engine.dir), or run usher as a user who may"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("the data folder %s cannot be made: %w; %s", dir, err, mend)
	}
	f, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return fmt.Errorf("the data folder %s cannot be written to: %w; %s", dir, err, mend)
	}
	_, err = f.Write(make([]byte, 4096)) // a full disk takes names, and no bytes
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close(), os.Remove(f.Name())); err != nil {
		return fmt.Errorf("the data folder %s cannot be written to: %w", dir, err)
	}
	return nil
}

// mendDisk adds what helps against a full disk, whoever found it first.
func mendDisk(err error) error {
	if (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) && !strings.Contains(err.Error(), "the disk is full") {
		return fmt.Errorf("%w; make room on that disk, or name a folder on another with --data (engine.dir; for keys keys.dir)", err)
	}
	return err
}

// KeyFolder is where a node with that configuration keeps its keys.
func KeyFolder(cfg *config.Config) string {
	if cfg.Keys.Dir != "" {
		return cfg.Keys.Dir
	}
	return filepath.Join(cfg.Engine.Dir, "keys")
}

func nodeID(cfg *config.Config) (string, error) {
	if cfg.Node.ID != "" {
		return cfg.Node.ID, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("this machine has no name: %w; set node.id", err)
	}
	random := make([]byte, 3)
	rand.Read(random)
	return host + "-" + hex.EncodeToString(random), nil
}

// serve answers on l until shut down.
func (s *Server) serve(l *listener, h http.Handler) {
	l.srv = &http.Server{
		Handler:           h,
		ConnContext:       web.ConnContext,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		// Bodies and answers have no time of their own here: uploads and streams
		// through the proxy take what they take. The handlers bound the rest.
		ErrorLog: httpLog(s.log),
	}
	s.background.Go(func() {
		var err error
		if l.cert != nil {
			l.srv.TLSConfig = l.cert.tlsConfig()
			err = l.srv.ServeTLS(l.Listener, "", "")
		} else {
			err = l.srv.Serve(l.Listener)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("listening on %s ended: %w", l.Addr(), err)
		}
	})
}

func (s *Server) announce() {
	attrs := []any{"public", s.PublicURL(), "admin", s.AdminURL(), "node", s.node, "engine", s.cfg.Engine.Kind}
	s.log.Info("usher is up", append(append(attrs, place(s.cfg)...), "rooms", len(s.rooms.List()), "took", time.Since(s.start).Round(time.Millisecond).String())...)
	if !loopback(s.Addr()) && s.cfg.Public.URL == "" && s.public.cert == nil {
		s.log.Info("visitors come in by plain http; put a TLS proxy in front and name its address in public.url, or give public.tls")
	}
}

// Addr is the public listener's address, with the port it really has.
func (s *Server) Addr() string { return s.public.Addr().String() }

// AdminAddr is the admin listener's address.
func (s *Server) AdminAddr() string { return s.admin.Addr().String() }

// PublicURL is where a browser on this machine finds the public listener.
func (s *Server) PublicURL() string { return s.public.url() }

// AdminURL is where a client on this machine finds the admin listener.
func (s *Server) AdminURL() string { return s.admin.url() }

func (l *listener) url() string {
	scheme := "http://"
	if l.cert != nil {
		scheme = "https://"
	}
	host, port, err := net.SplitHostPort(l.Addr().String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return scheme + net.JoinHostPort("127.0.0.1", port)
	}
	return scheme + l.Addr().String()
}

// visitorURL is the address that redirects and tokens are built on.
func (s *Server) visitorURL() string {
	if s.cfg.Public.URL != "" {
		return s.cfg.Public.URL
	}
	return s.PublicURL()
}

// AdminToken is the token that the admin API asks for.
func (s *Server) AdminToken() config.Secret { return s.token }

// Rooms are the rooms of this node.
func (s *Server) Rooms() *room.Rooms { return s.rooms }

// Wait returns when the server has stopped: nil after Shutdown, else why a
// listener broke.
func (s *Server) Wait() error {
	select {
	case err := <-s.failed:
		s.down()
		return err
	case <-s.done:
		return s.stopErr
	}
}
