package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/keylock"
	"github.com/ushergo/usher/keylock/keylockhttp"
)

// App is a service's handler: it is lent the session of the request, alone. Its request's context ends with the session
// and when the hold is ended by force; it has to return then.
type App[S any] func(w http.ResponseWriter, r *http.Request, s affinity.Session[S])

// OwnedOptions of Owned.
type OwnedOptions struct {
	// Secret is the gateways'. Danger: empty, whoever reaches this instance can pretend to be one.
	Secret string
	// Shared picks requests that only watch a session, and use it without its lock: sockets, streams. Default: WebSockets.
	Shared func(*http.Request) bool
	// HealthPath answers probes, at once and with this instance's name; default /health/live.
	HealthPath string
	// Key, if set, is looked for in requests that no gateway has sent: those that have it go through the same lock, and get
	// 421 when the session is another instance's.
	Key Key
	// Next answers what no gateway has sent and has no key; default 421.
	Next http.Handler
}

// Owned answers requests that gateways bring. Those for a session that is not here get 421, those whose session ends
// while they run are cut off, with the connections they have taken over.
func Owned[S any](o *affinity.Owner[S], app App[S], opts OwnedOptions) http.Handler {
	in := newSelf(o, app, opts)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if in.health(w, r) {
			return
		}
		c, ok := readCall(r.Header, in.secret)
		strip(r.Header)
		if !ok {
			dropForwarded(r.Header)
		}
		if !ok && opts.Key != (Key{}) {
			key, _, err := opts.Key.find(r, 64<<10)
			if err == nil {
				in.answer(w, r, call{owner: in.id, key: key})
				return
			} else if !errors.Is(err, errNoKey) {
				problem(w, http.StatusBadRequest, "session_key", detail(err), 0)
				return
			}
		}
		switch {
		case ok:
			in.answer(w, r, c)
		case opts.Next != nil:
			opts.Next.ServeHTTP(w, r)
		default:
			problem(w, http.StatusMisdirectedRequest, "not_owner", "this instance answers requests that its gateway brings", 0)
		}
	})
}

// Peer is a Gateway and an Owned in one: every instance has it, behind a balancer that knows nothing of sessions. It serves
// its own sessions and brings the others to their owners. opts.Space and opts.Directory must be the owner's; opts.Secret
// is required.
func Peer[S any](o *affinity.Owner[S], app App[S], opts Options, owned OwnedOptions) (*PeerHandler, error) {
	if opts.Secret == "" {
		return nil, errors.New("gateway: Secret is missing: strangers reach this instance too, and must not be taken for its peers")
	}
	if o.Addr() == "" {
		return nil, errors.New("gateway: the owner has no Addr, so its peers cannot bring it anything")
	}
	opts.Space = o.Space()
	owned.Secret = opts.Secret
	g, err := New(opts)
	if err != nil {
		return nil, err
	}
	g.self = newSelf(o, app, owned)
	return &PeerHandler{g}, nil
}

// PeerHandler is an http.Handler. End it with Close.
type PeerHandler struct{ g *Gateway }

// Close stops probing.
func (p *PeerHandler) Close() { p.g.Close() }

// Stats are those of its gateway.
func (p *PeerHandler) Stats() Stats { return p.g.Stats() }

// ServeHTTP serves, or brings the request to who can.
func (p *PeerHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g := p.g
	if g.self.health(w, r) {
		return
	}
	c, ok := readCall(r.Header, g.secret)
	strip(r.Header)
	if ok { // a peer has decided; it is not sent on
		g.self.answer(w, r, c)
		return
	}
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
	if g.self.owns(key) == 0 {
		a, err := g.aimAt(r.Context(), key, "", false)
		if err != nil {
			g.fail(w, r, err)
			return
		}
		if !a.local {
			g.forward(w, r, key, b, &a)
			return
		}
	}
	g.self.serve(w, r, call{key: key}, func(row affinity.Row) {
		if row.State == affinity.None || row.Addr == "" {
			g.fail(w, r, errNobody)
			return
		}
		a := aimOf(row, key)
		a.pulse = g.pulse(a.owner, a.addr)
		g.forward(w, r, key, b, &a)
	})
}

// peerSelf is this instance.
type peerSelf struct {
	id     affinity.Identity
	secret []byte
	probe  string
	owns   func(key string) uint64
	// serve runs the app on the session. Where it is another's, or cannot be built here, elsewhere answers.
	serve func(w http.ResponseWriter, r *http.Request, c call, elsewhere func(affinity.Row))
}

func newSelf[S any](o *affinity.Owner[S], app App[S], opts OwnedOptions) *peerSelf {
	if opts.Shared == nil {
		opts.Shared = func(r *http.Request) bool { return asksForWebSocket(r.Header) }
	}
	if opts.HealthPath == "" {
		opts.HealthPath = "/health/live"
	}
	in := &peerSelf{id: o.Identity(), secret: []byte(opts.Secret), probe: opts.HealthPath, owns: o.Owns}
	in.serve = func(w http.ResponseWriter, r *http.Request, c call, elsewhere func(affinity.Row)) {
		use := o.Use
		if opts.Shared(r) {
			use = o.Attach
		}
		began := false
		err := use(r.Context(), c.key, func(ctx context.Context, s affinity.Session[S]) error {
			began = true
			lent := &hijacker{ResponseWriter: w, on: func(conn net.Conn) {
				context.AfterFunc(ctx, func() { conn.Close() })
			}}
			app(lent, r.WithContext(ctx), s)
			return nil
		})
		if err == nil || began {
			return
		}
		var other *affinity.NotOwnerError
		switch {
		case errors.As(err, &other):
			elsewhere(other.Row)
		case errors.Is(err, affinity.ErrDraining), errors.Is(err, affinity.ErrCapacity), errors.Is(err, affinity.ErrClosed),
			errors.Is(err, affinity.ErrSuperseded), errors.Is(err, affinity.ErrLost):
			elsewhere(affinity.Row{})
		case errors.Is(err, affinity.ErrUnavailable):
			problem(w, http.StatusServiceUnavailable, "directory_unavailable", "new sessions have to wait until the directory answers", 2e9)
		case errors.Is(err, affinity.ErrBadRequest):
			problem(w, http.StatusBadRequest, "session_key", detail(err), 0)
		case r.Context().Err() != nil || isLock(err):
			keylockhttp.Refuse(w, r, err)
		default:
			problem(w, http.StatusBadGateway, "session_failed", "the session could not be made", 1e9)
		}
	}
	return in
}

// answer serves what a gateway brought, if it is meant for this instance.
func (in *peerSelf) answer(w http.ResponseWriter, r *http.Request, c call) {
	not := func(affinity.Row) {
		w.Header().Set(HeaderNotOwner, strconv.FormatUint(c.gen, 10))
		problem(w, http.StatusMisdirectedRequest, "not_owner", "this instance does not have the session", 0)
	}
	if c.owner.Instance != in.id.Instance || c.owner.Epoch != 0 && c.owner.Epoch != in.id.Epoch || c.gen != 0 && c.gen > in.owns(c.key) {
		not(affinity.Row{})
		return
	}
	in.serve(w, r, c, not)
}

// health answers probes.
func (in *peerSelf) health(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path != in.probe {
		return false
	}
	w.Header().Set(HeaderInstance, in.id.Instance+" "+strconv.FormatUint(in.id.Epoch, 10))
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write([]byte("ok\n"))
	return true
}

func isLock(err error) bool {
	return errors.Is(err, keylock.ErrFull) || errors.Is(err, keylock.ErrWait) || errors.Is(err, keylock.ErrReentry)
}
