package web

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
)

// Options of New. Rooms and Keys are required.
type Options struct {
	Rooms *room.Rooms
	Keys  *token.Keys

	// Observer is the one that Rooms was opened with; it brings the counters of rooms and engine to /metrics,
	// and the measured stay to the analysis. Default: a fresh one, which sees nothing.
	Observer *Observer

	// PublicURL is the usher as visitors see it: scheme and host, no path. Redirects and the issuer of
	// admissions are built on it. Default: http://localhost.
	PublicURL string
	// TrustedProxies are the networks whose X-Forwarded-* are believed. Danger: whoever sits in one can pretend
	// to be any visitor. Default: none.
	TrustedProxies []netip.Prefix
	// AdminToken opens the admin API; at least 16 characters. Default: none, and the admin API refuses everybody.
	AdminToken string

	// BeforeOrigin is asked, for each request that is about to go to an origin, for what stands in front of it: a handler
	// that answers, by Refuse, or calls Forward. nil, or the answer nil: the request goes to the origin. It sees who was
	// admitted and paths that no room protects, never usher's own paths; the request's Host is the one visitors see.
	BeforeOrigin func() http.Handler
	// Collapse stands between rooms and their origins; nil: nothing does.
	Collapse Collapse
	// Health of what else this node needs; an error makes ready 503. Default: rooms alone count.
	Health func() error

	// Routes lists the routes to instances that hold sessions, and Directory knows those instances: the admin API shows and
	// drains them. Default: none.
	Routes    func() []Route
	Directory affinity.Store

	// Relays that this node carries, or would: the admin API shows and steers them. Default: none.
	Relays Relays

	Registry *prometheus.Registry // default: a new one
	Logger   *slog.Logger         // default: discards
	Tracer   trace.Tracer         // default: no traces

	// Fleet is all nodes; nil: this one is alone.
	Fleet Fleet

	NodeID  string // this node's name; default "node"
	Version string // shown by the admin API and in metrics; default "dev"

	// Enter limits new tickets by client address. Default: DefaultEnterLimit.
	Enter EnterLimit
	// MaxStreams bounds the event streams open at once; beyond it 503, and clients poll. Default 20,000.
	MaxStreams int
	// EngineTimeout is how long a request in front of an origin waits for the engine before it is answered by
	// the room's on_engine_failure. Default 3s.
	EngineTimeout time.Duration
	// OriginTimeout is how long an origin may take until the headers of its answer, for which visitors wait;
	// bodies and streams may take as long as they like. Default 2m.
	OriginTimeout time.Duration
	// StallTimeout is how long a visitor in front of an origin may leave usher without the next byte of her request,
	// or a piece of the answer untaken, before she is cut off. Streams may be silent for longer. Default 1m.
	StallTimeout time.Duration
	// StatsEvery is how often stats and places are looked at for event streams. Default 1s.
	StatsEvery time.Duration
	// DrainFor is how long a drain asked for by the admin API may take. Default 30s.
	DrainFor time.Duration
}

// Collapse may answer several requests to an origin by one. What it gives is each visitor's own to change. It is never
// asked about paths that no room protects.
type Collapse interface {
	// Collapses says whether it is to be asked about a room's requests.
	Collapses(room string) bool
	// RoundTrip is http.RoundTripper's, for a request of that room as it leaves usher. It sends by next, which is as good
	// as any that it got before.
	RoundTrip(room string, next http.RoundTripper, r *http.Request) (*http.Response, error)
	// Refusal says what to tell a visitor of an error of RoundTrip's own; ok is false for those of next.
	Refusal(err error) (status int, code string, retry time.Duration, ok bool)
}

// EnterLimit is a token bucket for new tickets, kept for each client address (an IPv6 /64 counts as one).
// Addresses of loopback and private networks are not limited: behind them sits a proxy that was not named in
// TrustedProxies, and one bucket for a whole site would turn the site away.
type EnterLimit struct {
	Burst     int // tickets at once; negative: no limit
	PerSecond int
}

// DefaultEnterLimit lets a school or a mobile carrier's gateway in without noticing.
func DefaultEnterLimit() EnterLimit { return EnterLimit{Burst: 2000, PerSecond: 100} }

func (o *Options) defaults() error {
	if o.Rooms == nil || o.Keys == nil {
		return errors.New("web: Options needs Rooms and Keys")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.Observer == nil {
		o.Observer = NewObserver(o.Registry, o.Tracer)
	}
	if o.NodeID == "" {
		o.NodeID = "node"
	}
	if o.Version == "" {
		o.Version = "dev"
	}
	if o.Enter == (EnterLimit{}) {
		o.Enter = DefaultEnterLimit()
	}
	if o.MaxStreams <= 0 {
		o.MaxStreams = 20_000
	}
	if o.EngineTimeout <= 0 {
		o.EngineTimeout = 3 * time.Second
	}
	if o.OriginTimeout <= 0 {
		o.OriginTimeout = 2 * time.Minute
	}
	if o.StallTimeout <= 0 {
		o.StallTimeout = time.Minute
	}
	if o.StatsEvery <= 0 {
		o.StatsEvery = time.Second
	}
	if o.DrainFor <= 0 {
		o.DrainFor = 30 * time.Second
	}
	if o.PublicURL == "" {
		o.PublicURL = "http://localhost"
	}
	o.PublicURL = strings.TrimRight(o.PublicURL, "/")
	if o.AdminToken != "" && len(o.AdminToken) < 16 {
		return errors.New("web: the admin token is shorter than 16 characters")
	}
	return nil
}

// parsePublic reads a public address.
func parsePublic(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("web: the public address %q is not scheme and host alone; write it like https://tickets.example.com", s)
	}
	return u, nil
}
