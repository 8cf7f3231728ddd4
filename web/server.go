package web

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/web/page"
)

// Prefix is where the API lives on hosts that a room's match names.
const Prefix = "/.usher"

// Server is usher's HTTP side on one node. Safe for concurrent use.
type Server struct {
	opts       Options
	log        *slog.Logger
	public     *url.URL
	publicHost string // without port
	adminSum   [sha256.Size]byte
	started    time.Time

	rooms   atomic.Pointer[table]
	tableMu sync.Mutex
	folders map[string]*page.Pages // by dir; guarded by tableMu
	builtin *page.Pages

	gate       *gate // everything else on hosts that rooms name
	api        *router
	admin      *router
	gateRoute  *route // what gate answers, for metrics
	otherRoute *route // what no route answers
	limit      *limiter
	admissions *admissions
	streams    *streams
	history    *history
	finds      finds
	metrics    *httpMetrics

	drainOnce sync.Once
	draining  chan struct{} // closed when the node is to lose its visitors
	stop      chan struct{} // closed by Close
	stopOnce  sync.Once
	wg        sync.WaitGroup
}

// New makes the server and begins to keep its ten-second samples. Close it when done.
func New(opts Options) (*Server, error) {
	if err := opts.defaults(); err != nil {
		return nil, err
	}
	public, err := parsePublic(opts.PublicURL)
	if err != nil {
		return nil, err
	}
	builtin, err := page.New("")
	if err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, log: opts.Logger, public: public, publicHost: hostOnly(public.Host),
		adminSum: sha256.Sum256([]byte(opts.AdminToken)), started: time.Now(),
		folders: map[string]*page.Pages{}, builtin: builtin,
		limit: newLimiter(opts.Enter, time.Now), admissions: newAdmissions(opts.Keys, opts.PublicURL),
		draining: make(chan struct{}), stop: make(chan struct{}),
	}
	s.streams = newStreams(s)
	s.history = newHistory()
	if s.metrics, err = newHTTPMetrics(s); err != nil {
		return nil, err
	}
	s.api = s.publicRoutes()
	s.admin = s.adminRoutes()
	s.gateRoute = &route{method: "any", path: "gate"}
	s.otherRoute = &route{method: "any", path: "other"}
	s.metrics.time("public", append(s.api.all, s.gateRoute, s.otherRoute)...)
	s.metrics.time("admin", s.admin.all...)
	s.gate = newGate(s)
	s.wg.Go(s.keepHistory)
	return s, nil
}

// Close stops what New began. Streams that are open end.
func (s *Server) Close() {
	s.stopOnce.Do(func() { close(s.stop) })
	s.wg.Wait()
}

// Public is the handler of the visitors' listener.
func (s *Server) Public() http.Handler { return http.HandlerFunc(s.servePublic) }

// Admin is the handler of the operator's listener.
func (s *Server) Admin() http.Handler { return http.HandlerFunc(s.serveAdmin) }

func (s *Server) servePublic(w http.ResponseWriter, r *http.Request) {
	c := s.client(r)
	t := s.table()
	if !t.named(c.host) {
		s.serveAPI(w, r, &c, s.api, r.URL.Path, false)
		return
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, Prefix); ok && strings.HasPrefix(rest, "/") {
		s.serveAPI(w, r, &c, s.api, rest, true)
		return
	}
	if t.originOf(c.host) == nil && s.api.has(r.URL.Path) {
		s.serveAPI(w, r, &c, s.api, r.URL.Path, true) // no origin whose page this could be
		return
	}
	sw, r, span := s.begin(s.gateRoute, w, r, &c)
	defer s.end(s.gateRoute, sw, span)
	sw.within = 2 * s.opts.StallTimeout // before an answer net/http waits for the rest of the body
	r, over := watchBody(w, r, s.opts.StallTimeout)
	defer over()
	s.gate.serve(sw, r, &c, t)
}

// serveAPI answers a path of one of the APIs.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request, c *client, api *router, path string, named bool) {
	rt, id, p := api.find(w, r, path)
	if rt == nil {
		rt = s.otherRoute
		if p == nil {
			p = notFound("there is no such path here; " + s.whereAPI(named))
		}
	}
	sw, r, span := s.begin(rt, w, r, c)
	s.bound(w, r, rt, sw.start)
	if p != nil {
		p.write(sw)
	} else {
		ctx, done := s.deadline(r.Context())
		defer done()
		rt.handle(&call{s: s, w: sw, r: r, ctx: ctx, client: c, id: id, named: named, route: rt})
	}
	s.end(rt, sw, span)
}

const (
	bodyWithin   = 20 * time.Second
	answerWithin = 60 * time.Second
)

// bound limits how long a client may take to send its body and to read its answer. The server has no limit of
// its own, for what is proxied takes what it takes. net/http lifts both before the next request.
func (s *Server) bound(w http.ResponseWriter, r *http.Request, rt *route, now time.Time) {
	rc := http.NewResponseController(w)
	if r.ContentLength != 0 { // also for a body that nobody reads: net/http then does
		_ = rc.SetReadDeadline(now.Add(min(bodyWithin, s.opts.StallTimeout)))
	}
	if !rt.stream {
		_ = rc.SetWriteDeadline(now.Add(answerWithin)) // a recorder of tests has none
	}
}

func (s *Server) whereAPI(named bool) string {
	if named {
		return "on this host the API lives under " + Prefix + "/v1/"
	}
	return "the API lives under /v1/"
}

// call is one request to an API.
type call struct {
	s      *Server
	w      http.ResponseWriter
	r      *http.Request
	ctx    context.Context // for what is asked of the engine: ends after EngineTimeout
	client *client
	id     string // of the room, or what else the path names
	named  bool   // the host is one that rooms name
	route  *route
	entry  *entry // for routes of a room
}

func (c *call) fail(p *problem) { p.write(c.w) }

// base is the prefix of API paths on the host that was asked.
func (c *call) base() string {
	if c.named {
		return Prefix
	}
	return ""
}
