// Package sidecar gives affinity to a service in any language. It stands in front of one instance of it, on the same
// machine, and does what package affinity asks of an owner: it claims a key before the service sees the request that may
// open its session, lets one request of a key through at a time, confirms the row while the session lives, and gives it
// back.
//
// The service says what happened in a header of its answer, which clients do not see:
//
//	Usher-Session: open; key=alice       the session of this key is here now
//	Usher-Session: close; key=alice      it is gone (key= may be left out: the request's)
//
// and is told by a POST to Close, if there is one, when a session has to be closed: {"key","generation","reason"}. The
// generation is on each request as Usher-Fence; later sessions of a key have greater ones.
//
// A request whose key has no session anywhere is let through holding the claim. If the answer opens nothing, the claim is
// given back. A request without a key passes freely; if its answer opens a session that another instance has meanwhile,
// the client gets 409 session_elsewhere instead of the answer, and the service is told to close its one.
package sidecar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/keylock"
)

// Options of New. App, Directory, Space, Instance and Key are required.
type Options struct {
	App       string         // the service, as http://127.0.0.1:3000
	Directory affinity.Store // Redis, or an usher's service API (gateway.NewRemote)
	Space     string
	Instance  string
	Addr      string      // where gateways and peers reach this sidecar
	Key       gateway.Key // where requests have their session's key
	Secret    string      // shared by all gateways and sidecars of the space; 16 bytes or more
	// Peers brings requests of other instances' sessions to them. Off, a gateway stands in front and does it. Danger: on,
	// without Secret, is refused.
	Peers bool
	// Close is the service's path that is told to close a session; default: none.
	Close string

	MaxSessions int             // default: no limit
	TTL         time.Duration   // default 15m
	Every       time.Duration   // default 5s
	Idle        time.Duration   // default 30m
	Lock        keylock.Options // of the per-key lock
	Logger      *slog.Logger    // default: nobody
}

// Sidecar is an http.Handler. End it with Shutdown.
type Sidecar struct {
	http.Handler
	owner *affinity.Owner[*state]
	peer  *gateway.PeerHandler
	opts  Options
	app   *url.URL
	send  *http.Transport
	log   *slog.Logger
}

// state is what the sidecar knows of the service's session.
type state struct {
	key    string
	gen    uint64
	opened atomic.Bool
}

const header = "Usher-Session"

// New makes a sidecar and announces its instance.
func New(opts Options) (*Sidecar, error) {
	app, err := url.Parse(opts.App)
	if err != nil || app.Scheme != "http" && app.Scheme != "https" || app.Host == "" || strings.Trim(app.Path, "/") != "" {
		return nil, fmt.Errorf("sidecar: App %q: the service's address, like http://127.0.0.1:3000", opts.App)
	}
	if opts.Directory == nil {
		return nil, errors.New("sidecar: Directory is missing")
	}
	if opts.Close != "" && !strings.HasPrefix(opts.Close, "/") {
		return nil, fmt.Errorf("sidecar: Close %q: a path of the service, like /usher/close", opts.Close)
	}
	s := &Sidecar{opts: opts, app: app, log: opts.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.send = &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 4 * time.Second, DisableCompression: true}
	s.owner, err = affinity.Open(opts.Directory, affinity.Options[*state]{
		Space: opts.Space, Instance: opts.Instance, Addr: opts.Addr, TTL: opts.TTL, Every: opts.Every, Idle: opts.Idle,
		MaxSessions: opts.MaxSessions, Locks: opts.Lock, Logger: s.log,
		Build: func(_ context.Context, key string, fence uint64) (*state, error) {
			return &state{key: key, gen: fence}, nil
		},
		Close: s.closeApp,
	})
	if err != nil {
		return nil, err
	}
	owned := gateway.OwnedOptions{Secret: opts.Secret, Key: opts.Key, Next: http.HandlerFunc(s.keyless)}
	gw := gateway.Options{Directory: opts.Directory, Key: opts.Key, Secret: opts.Secret, Logger: s.log, Next: http.HandlerFunc(s.keyless)}
	if opts.Peers {
		s.peer, err = gateway.Peer(s.owner, s.serve, gw, owned)
		s.Handler = s.peer
	} else {
		s.Handler = gateway.Owned(s.owner, s.serve, owned)
	}
	if err != nil {
		return nil, errors.Join(err, s.owner.Close())
	}
	return s, nil
}

// Health is the owner's: an error means that no new sessions can be made.
func (s *Sidecar) Health() error { return s.owner.Health() }

// Sessions is how many there are here.
func (s *Sidecar) Sessions() int { return s.owner.Sessions() }

// Stats are the figures of the sessions.
func (s *Sidecar) Stats() affinity.Stats { return s.owner.Stats() }

// Locks are the lock of every entrance to the sessions.
func (s *Sidecar) Locks() *keylock.Locks { return s.owner.Locks() }

// Gateway are the figures of what goes to the others; all 0 without Peers.
func (s *Sidecar) Gateway() gateway.Stats {
	if s.peer == nil {
		return gateway.Stats{}
	}
	return s.peer.Stats()
}

// Shutdown takes no new sessions, waits until those there are have ended or ctx has, closes the rest and departs.
func (s *Sidecar) Shutdown(ctx context.Context) error {
	err := s.owner.Drain(ctx)
	if s.peer != nil {
		s.peer.Close()
	}
	return errors.Join(err, s.owner.Close())
}

// serve is lent a session, alone.
func (s *Sidecar) serve(w http.ResponseWriter, r *http.Request, ses affinity.Session[*state]) {
	st := ses.Value
	shared := r.Header.Get("Upgrade") != "" // beside others, without the lock
	verdict := ""
	s.proxy(ses.Generation, func(res *http.Response) error {
		verdict, _ = told(res.Header, ses.Key)
		return nil
	}).ServeHTTP(w, r)
	if shared {
		return
	}
	if verdict == "open" {
		st.opened.Store(true)
	}
	if verdict == "close" || !st.opened.Load() {
		s.owner.Retire(ses.Key, errClosedByApp)
	}
}

var errClosedByApp = errors.New("sidecar: the service has no session")

// told reads what the service says, and takes it out of the answer.
func told(h http.Header, key string) (verdict, of string) {
	v := h.Get(header)
	h.Del(header)
	if v == "" {
		return "", ""
	}
	of = key
	verb, rest, _ := strings.Cut(v, ";")
	for part := range strings.SplitSeq(rest, ";") {
		if name, value, ok := strings.Cut(strings.TrimSpace(part), "="); ok && strings.EqualFold(name, "key") {
			of = strings.Trim(strings.TrimSpace(value), `"`)
			if plain, err := url.PathUnescape(of); err == nil {
				of = plain // keys that a header cannot hold are escaped
			}
		}
	}
	if key != "" && of != key { // a request can only open or close its own
		return "", ""
	}
	switch verb = strings.ToLower(strings.TrimSpace(verb)); verb {
	case "open", "close":
		return verb, of
	case "end": // the word of the waiting room; it means the same
		return "close", of
	}
	return "", ""
}

func (s *Sidecar) proxy(fence uint64, look func(*http.Response) error) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: s.send, FlushInterval: -1, ModifyResponse: look,
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.SetURL(s.app)
			pr.Out.Host = pr.In.Host
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery
			gateway.Forward(pr)
			pr.Out.Header.Del("Usher-Fence")
			pr.Out.Header.Del(header)
			if fence != 0 {
				pr.Out.Header.Set("Usher-Fence", strconv.FormatUint(fence, 10))
			}
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if errors.Is(err, errElsewhere) {
				write(w, http.StatusConflict, "session_elsewhere", "another instance has this session; ask again")
				return
			}
			if r.Context().Err() != nil && context.Cause(r.Context()) == context.Canceled {
				panic(http.ErrAbortHandler)
			}
			s.log.Warn("the service did not answer", "err", err)
			write(w, http.StatusBadGateway, "app_unreachable", "the service did not answer")
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

var errElsewhere = errors.New("sidecar: another instance has the session")

// keyless lets a request through that has no key; its answer may open or close one's session.
func (s *Sidecar) keyless(w http.ResponseWriter, r *http.Request) {
	s.proxy(0, func(res *http.Response) error {
		verdict, key := told(res.Header, "")
		switch {
		case key == "":
		case verdict == "close":
			s.owner.Retire(key, errClosedByApp)
		case verdict == "open":
			err := s.owner.Use(r.Context(), key, func(_ context.Context, ses affinity.Session[*state]) error {
				ses.Value.opened.Store(true)
				return nil
			})
			if err != nil {
				s.log.Warn("the service opened a session that it cannot have", "err", err)
				other := &state{key: key}
				other.opened.Store(true)
				go s.closeApp(other, errElsewhere)
				res.Body.Close()
				return errElsewhere
			}
		}
		return nil
	}).ServeHTTP(w, r)
}

// closeApp tells the service. It is tried a few times; then the service has to find out by itself.
func (s *Sidecar) closeApp(st *state, why error) {
	if s.opts.Close == "" || !st.opened.Load() || errors.Is(why, errClosedByApp) {
		return
	}
	body, err := json.Marshal(map[string]any{"key": st.key, "generation": st.gen, "reason": why.Error()})
	if err != nil {
		return
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		var res *http.Response
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.app.Scheme+"://"+s.app.Host+s.opts.Close, bytes.NewReader(body))
		if err == nil {
			req.Header.Set("Content-Type", "application/json")
			res, err = s.send.RoundTrip(req)
		}
		if err == nil {
			_, _ = io.CopyN(io.Discard, res.Body, 4<<10)
			res.Body.Close()
			cancel()
			if res.StatusCode < 500 {
				return
			}
			err = fmt.Errorf("it answered %d", res.StatusCode)
		}
		cancel()
		s.log.Warn("the service was not told to close a session", "err", err)
		time.Sleep(200 * time.Millisecond)
	}
}

func write(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "code": code, "detail": detail})
}
