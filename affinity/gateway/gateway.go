package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/affinity"
)

// Options of New. Space, Directory and Key are required.
type Options struct {
	// Space of the directory that the instances use.
	Space string
	// Directory is asked who owns a key.
	Directory affinity.Store
	// Key says where requests have their session's key.
	Key Key
	// Secret signs what gateways tell instances; the same for all of them, 16 bytes or more. Danger: empty, whoever reaches
	// an instance can pretend to be a gateway; a Peer refuses to be without.
	Secret string
	// Static are instances that do not announce themselves. Their Epoch is ignored.
	Static []affinity.Instance
	// Health says how death is noticed.
	Health Health
	// MaxReplay is how large a body may be that is kept to be sent again; default 64 KiB. It is also the bound for bodies
	// in which a key is looked for.
	MaxReplay int64
	// MaxSessions is how many sessions an instance gets that announces no limit of its own; default: no limit.
	MaxSessions int
	// CacheFor is how long a row is believed without asking; default 2s. A row that is no longer true costs one 421.
	CacheFor time.Duration
	// CallTimeout bounds each question to the directory; default 2s.
	CallTimeout time.Duration
	// HeaderTimeout is how long an instance may take until the headers of its answer; default 2m.
	HeaderTimeout time.Duration
	// Transport sends to instances; default: one with many idle connections, that goes through no proxy.
	Transport http.RoundTripper
	// Trusted says whether a request comes from a proxy whose X-Forwarded-* are believed; from others they are dropped and
	// made anew. Default: nobody's are.
	Trusted func(*http.Request) bool
	// Next answers requests without a key; default: 400.
	Next http.Handler
	// Logger: default nobody.
	Logger *slog.Logger
}

// Stats are totals since New.
type Stats struct {
	Requests  uint64 // proxied
	Resent    uint64 // a second time, after a 421 or without a connection
	NotOwner  uint64 // 421 answers of instances
	Evicted   uint64 // rows of dead owners
	Placed    uint64 // requests that asked an instance to build
	Refused   uint64 // nobody could serve
	Instances int    // living, as last listed
	Running   int    // requests and sockets that hang on instances now
	Sessions  int    // that the instances had, as they announced
}

// Gateway is an http.Handler. End it with Close.
type Gateway struct {
	opts   Options
	secret []byte
	log    *slog.Logger
	send   http.RoundTripper
	prober *http.Transport
	own    *http.Transport // to be closed
	self   *peerSelf       // in peer mode

	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	pulses  map[pulseID]*pulse
	running map[*pulse]int
	rows    map[string]cachedRow
	list    []affinity.Instance
	listed  time.Time
	placed  map[string]int // what the instance has not announced yet
	expiry  map[string]time.Time

	listing sync.Mutex
	buffers bufferPool

	requests, resent, notOwner, evicted, placements, refused atomic.Uint64
}

// New makes a gateway and begins to probe.
func New(opts Options) (*Gateway, error) {
	if opts.Directory == nil {
		return nil, errors.New("gateway: Directory is missing")
	}
	if err := errors.Join(affinity.CheckSpace(opts.Space), opts.Key.check()); err != nil {
		return nil, err
	}
	if opts.Secret != "" && len(opts.Secret) < 16 {
		return nil, errors.New("gateway: Secret is shorter than 16 bytes")
	}
	for i, in := range opts.Static {
		opts.Static[i].Owner.Epoch = 0
		if _, err := target(in.Addr); err != nil || in.Owner.Instance == "" {
			return nil, errors.New("gateway: Static: each instance needs a name and an address like 10.0.0.7:3000 or http://app:3000, not " + in.Addr)
		}
	}
	opts.Health.defaults()
	if opts.MaxReplay <= 0 {
		opts.MaxReplay = 64 << 10
	}
	if opts.CacheFor <= 0 {
		opts.CacheFor = 2 * time.Second
	}
	if opts.CallTimeout <= 0 {
		opts.CallTimeout = 2 * time.Second
	}
	if opts.HeaderTimeout <= 0 {
		opts.HeaderTimeout = 2 * time.Minute
	}
	g := &Gateway{
		opts: opts, secret: []byte(opts.Secret), log: opts.Logger, send: opts.Transport,
		pulses: map[pulseID]*pulse{}, running: map[*pulse]int{}, rows: map[string]cachedRow{}, placed: map[string]int{},
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	dial := (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	if g.send == nil {
		g.own = &http.Transport{
			DialContext: dial, MaxIdleConnsPerHost: 512, IdleConnTimeout: 4 * time.Second, DisableCompression: true,
			ResponseHeaderTimeout: opts.HeaderTimeout, ExpectContinueTimeout: time.Second, MaxResponseHeaderBytes: 1 << 20,
		}
		g.send = g.own
	}
	// Probes connect anew each time: an old connection would not tell that the port is another's.
	g.prober = &http.Transport{DialContext: dial, DisableKeepAlives: true}
	g.ctx, g.stop = context.WithCancel(context.Background())
	g.wg.Go(g.probeLoop)
	return g, nil
}

// Close stops probing. Requests that run go on.
func (g *Gateway) Close() {
	g.stop()
	g.wg.Wait()
	if g.own != nil {
		g.own.CloseIdleConnections()
	}
}

// Stats are figures for metrics.
func (g *Gateway) Stats() Stats {
	s := Stats{
		Requests: g.requests.Load(), Resent: g.resent.Load(), NotOwner: g.notOwner.Load(), Evicted: g.evicted.Load(),
		Placed: g.placements.Load(), Refused: g.refused.Load(), Running: g.Running(),
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.Instances = len(g.list) + len(g.opts.Static)
	for _, in := range g.list {
		s.Sessions += in.Sessions
	}
	return s
}

// Running is how many requests and sockets hang on instances now.
func (g *Gateway) Running() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.running {
		n += k
	}
	return n
}

// ServeHTTP brings a request to the owner of its session.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c, ok := readCall(r.Header, g.secret); ok { // a gateway sent it here: a loop, perhaps through ourselves
		w.Header().Set(HeaderNotOwner, strconv.FormatUint(c.gen, 10))
		problem(w, http.StatusMisdirectedRequest, "not_owner", "this is a gateway, not an instance", 0)
		return
	}
	strip(r.Header)
	g.distrust(r)
	key, b, err := g.opts.Key.find(r, g.opts.MaxReplay)
	if err != nil {
		if errors.Is(err, errNoKey) && g.opts.Next != nil {
			g.opts.Next.ServeHTTP(w, r)
			return
		}
		g.fail(w, r, err)
		return
	}
	g.forward(w, r, key, b, nil)
}

// target is the address of an instance as a URL.
func target(addr string) (*url.URL, error) {
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	u, err := url.Parse(addr)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("gateway: not an http address: " + addr)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

// distrust takes out of a stranger's request what only proxies say.
func (g *Gateway) distrust(r *http.Request) {
	if g.opts.Trusted == nil || !g.opts.Trusted(r) {
		dropForwarded(r.Header)
	}
}

func dropForwarded(h http.Header) {
	for name := range h {
		switch strings.ReplaceAll(strings.ToLower(name), "_", "-") {
		case "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "forwarded":
			delete(h, name)
		}
	}
}
