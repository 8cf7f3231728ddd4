package web

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
)

func (s *Server) adminRoutes() *router {
	const one = "/admin/v1/rooms/{room}"
	admin := func(handle func(*call)) func(*call) {
		return func(c *call) {
			if !s.isAdmin(c.r) {
				c.w.Header().Set("WWW-Authenticate", `Bearer realm="usher admin"`)
				c.fail(&problem{status: 401, code: "unauthorized", detail: "the admin API asks for Authorization: Bearer and the admin token"})
				return
			}
			handle(c)
		}
	}
	ofRoom := func(handle func(*call)) func(*call) {
		return admin(func(c *call) {
			e, p := s.entry(c.ctx, c.id)
			if p != nil {
				c.fail(p)
				return
			}
			c.entry = e
			handle(c)
		})
	}
	ofRelay := func(handle func(*call, *relay.Relay)) func(*call) {
		return admin(func(c *call) { c.ofRelay(handle) })
	}
	return newRouter([]*route{
		{method: "GET", path: "/admin/v1/rooms", handle: admin((*call).listRooms)},
		{method: "GET", path: one, handle: ofRoom((*call).getRoom)},
		{method: "PUT", path: one, handle: admin((*call).putRoom)},
		{method: "PATCH", path: one, handle: ofRoom((*call).patchRoom)},
		{method: "DELETE", path: one, handle: ofRoom((*call).deleteRoom)},
		{method: "POST", path: one + "/state", handle: ofRoom((*call).setState)},
		{method: "GET", path: one + "/log", handle: ofRoom((*call).readLog)},
		{method: "GET", path: "/admin/v1/nodes", handle: admin((*call).nodes)},
		{method: "POST", path: "/admin/v1/nodes/{id}/drain", handle: admin((*call).drainNode)},
		{method: "GET", path: "/admin/v1/routes", handle: admin((*call).routes)},
		{method: "POST", path: "/admin/v1/routes/{id}/drain", handle: admin((*call).drainInstance)},
		{method: "GET", path: "/admin/v1/relays", handle: admin((*call).listRelays)},
		{method: "GET", path: "/admin/v1/relays/{id}", handle: ofRelay((*call).getRelay)},
		{method: "POST", path: "/admin/v1/relays/{id}/pause", handle: ofRelay((*call).pauseRelay)},
		{method: "POST", path: "/admin/v1/relays/{id}/resume", handle: ofRelay((*call).resumeRelay)},
		{method: "POST", path: "/admin/v1/relays/{id}/seek", handle: ofRelay((*call).seekRelay)},
		{method: "GET", path: "/admin/v1/relays/{id}/dlq", handle: ofRelay((*call).listLetters)},
		{method: "GET", path: "/admin/v1/relays/{id}/dlq/letter", handle: ofRelay((*call).getLetter)},
		{method: "POST", path: "/admin/v1/relays/{id}/dlq/redrive", handle: ofRelay((*call).redriveLetters)},
		{method: "POST", path: "/admin/v1/relays/{id}/dlq/drop", handle: ofRelay((*call).dropLetters)},
		{method: "POST", path: "/admin/v1/keys/rotate", handle: admin((*call).rotateKeys)},
		{method: "GET", path: "/admin/v1/dashboard", handle: admin((*call).dashboard)},
		{method: "GET", path: "/admin/v1/analysis", handle: admin((*call).analysis)},
		{method: "GET", path: "/metrics", handle: admin((*call).metrics)},
		{method: "GET", path: "/debug/pprof/{profile}", handle: admin((*call).profile), stream: true},
		{method: "GET", path: "/debug/pprof/", handle: admin((*call).profile), stream: true},
		{method: "GET", path: "/", handle: (*call).adminPage},
		{method: "GET", path: "/v1/openapi.json", handle: (*call).openapi},
		{method: "GET", path: "/.well-known/jwks.json", handle: (*call).jwks},
		{method: "GET", path: "/health/live", handle: (*call).live},
		{method: "GET", path: "/health/ready", handle: (*call).adminReady},
	})
}

func (s *Server) serveAdmin(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodOptions { // no page of another origin has business here
		notAllowed(w, "GET, HEAD, POST, PUT, PATCH, DELETE").write(w)
		return
	}
	c := s.client(r)
	s.serveAPI(w, r, &c, s.admin, r.URL.Path, false)
}

// isAdmin compares hashes, so that time tells neither the token nor its length.
func (s *Server) isAdmin(r *http.Request) bool {
	scheme, given, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || s.opts.AdminToken == "" {
		return false
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(given)))
	return subtle.ConstantTimeCompare(sum[:], s.adminSum[:]) == 1
}

func (c *call) metrics() {
	promhttp.HandlerFor(c.s.opts.Registry, promhttp.HandlerOpts{}).ServeHTTP(c.w, c.r)
}

func (c *call) profile() {
	switch c.id {
	case "cmdline":
		pprof.Cmdline(c.w, c.r)
	case "profile":
		pprof.Profile(c.w, c.r)
	case "symbol":
		pprof.Symbol(c.w, c.r)
	case "trace":
		pprof.Trace(c.w, c.r)
	default:
		pprof.Index(c.w, c.r)
	}
}

// Node is one running usher, as the admin API shows it.
type Node struct {
	ID        string `json:"id"`
	Self      bool   `json:"self"`
	Version   string `json:"version"`
	StartedAt string `json:"started_at"`
	Alive     bool   `json:"alive"`
	HeardMS   int64  `json:"heard_ms"` // since it was heard
	Draining  bool   `json:"draining"`
	Ready     bool   `json:"ready"`
	Streams   int    `json:"streams"`
}

// Fleet is all nodes that share an engine. Safe for concurrent use.
type Fleet interface {
	// Nodes lists them, this one included, sorted by id; those that died lately too.
	Nodes(ctx context.Context) ([]Node, error)
	// Drain asks another node to lose its visitors; false: there is none of that name.
	Drain(ctx context.Context, id string) (bool, error)
}

// Self is this node.
func (s *Server) Self() Node {
	return Node{
		ID: s.opts.NodeID, Self: true, Version: s.opts.Version, StartedAt: s.started.UTC().Format(time.RFC3339), Alive: true,
		Draining: s.isDraining(), Ready: !s.isDraining() && s.health() == nil, Streams: s.streams.count(),
	}
}

// nodes lists the nodes that share the engine.
func (c *call) nodes() {
	nodes := []Node{c.s.Self()}
	if f := c.s.opts.Fleet; f != nil {
		all, err := f.Nodes(c.ctx)
		if err != nil {
			c.fail(unavailable(err))
			return
		}
		nodes = all
	}
	c.json(http.StatusOK, "no-store", map[string]any{"nodes": nodes})
}

func unavailable(err error) *problem {
	return &problem{status: 503, code: "engine_unavailable", detail: err.Error(), retry: 5 * time.Second}
}

// drainNode makes a node lose its visitors. It goes on in the background; nodes shows it.
func (c *call) drainNode() {
	if c.id == c.s.opts.NodeID {
		c.s.DrainSoon()
		c.json(http.StatusAccepted, "no-store", c.s.Self())
		return
	}
	var asked bool
	var nodes []Node
	if f := c.s.opts.Fleet; f != nil {
		var err error
		if asked, err = f.Drain(c.ctx, c.id); err == nil && asked {
			nodes, err = f.Nodes(c.ctx)
		}
		if err != nil {
			c.fail(unavailable(err))
			return
		}
	}
	for _, n := range nodes {
		if n.ID == c.id {
			c.json(http.StatusAccepted, "no-store", n)
			return
		}
	}
	c.fail(&problem{status: 404, code: "node_not_found", detail: "this engine has no node of that name; GET /admin/v1/nodes lists them"})
}

// DrainSoon begins what the admin API's drain does: ready is 503 when it returns, and connections are told when to come
// back, within DrainFor. The node goes on answering.
func (s *Server) DrainSoon() {
	s.drainOnce.Do(func() {
		close(s.draining)
		s.log.Info("this node is being drained, as the admin API asked", "for", s.opts.DrainFor)
	})
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.opts.DrainFor)
		defer cancel()
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			select {
			case <-s.stop:
				cancel()
			case <-stop:
			}
		}()
		if err := s.Drain(ctx); err != nil {
			s.log.Warn("the drain ended before all event streams had", "streams", s.streams.count())
		}
	})
}

// rotation is what a rotation of keys did.
type rotation struct {
	Already bool            `json:"already"` // one was under way, and nothing was changed
	SignsAt string          `json:"signs_at"`
	Keys    []token.KeyInfo `json:"keys"`
}

func (c *call) rotateKeys() {
	report, err := c.s.opts.Keys.Rotate(time.Now())
	if err != nil {
		p := &problem{status: 500, code: "internal", detail: err.Error()}
		if isAny(err, token.ErrReadOnly, token.ErrTooManyKeys) {
			p.status, p.code = 409, "keys_not_rotated"
		} else {
			c.s.log.Error("keys were not rotated", "err", err)
		}
		c.fail(p)
		return
	}
	c.s.log.Info("keys rotated", "already", report.Already, "signs_at", report.SignsAt)
	c.json(http.StatusOK, "no-store", rotation{report.Already, report.SignsAt.UTC().Format(time.RFC3339), c.s.opts.Keys.List()})
}

//go:embed admin.html
var adminHTML string

// adminPage is the dashboard: one file. It holds nothing secret; what it shows it asks for with the token.
func (c *call) adminPage() {
	nonce := rand.Text()
	h := c.w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'nonce-"+nonce+"'; style-src 'nonce-"+nonce+
		"'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Robots-Tag", "noindex, nofollow")
	c.raw(http.StatusOK, "no-store", "text/html; charset=utf-8", []byte(strings.ReplaceAll(adminHTML, "{{nonce}}", nonce)))
}

// limitOf is null for a room without a limit on its sessions.
func limitOf(sum *room.Summary) *int64 {
	if sum.Limit == room.Unlimited {
		return nil
	}
	l := sum.Limit
	return &l
}
