package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/affinity"
)

// trip is one request on its way.
type trip struct {
	g      *Gateway
	key    string
	body   *body
	first  *aim // known already
	cancel context.CancelCauseFunc
	conn   *hijacker
	local  bool // it is for this instance after all
	read   atomic.Bool
}

var (
	errLocal   = errors.New("gateway: the session is here")
	errGaveUp  = errors.New("gateway: the session's owner could not be found; ask again")
	errNotSent = errors.New("gateway: the session's owner could not be connected to")
)

func (g *Gateway) forward(w http.ResponseWriter, r *http.Request, key string, b *body, first *aim) {
	g.requests.Add(1)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	t := &trip{g: g, key: key, body: b, first: first, cancel: cancel}
	out := w
	upgrades := asksForWebSocket(r.Header)
	if upgrades {
		t.conn = &hijacker{ResponseWriter: w}
		out = t.conn
	}
	if !b.all && r.Body != nil {
		r = r.Clone(ctx)
		r.Body = &watched{r.Body, &t.read}
	} else {
		r = r.WithContext(ctx)
	}
	rp := httputil.ReverseProxy{
		Transport: t, BufferPool: &g.buffers, FlushInterval: -1, ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Scheme, pr.Out.URL.Host = "http", "instance" // RoundTrip says which
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery
			pr.Out.Host = pr.In.Host
			Forward(pr)
			if !upgrades {
				delete(pr.Out.Header, "Upgrade")
				delete(pr.Out.Header, "Connection")
			}
			strip(pr.Out.Header)
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
			switch {
			case t.conn != nil && t.conn.taken:
			case errors.Is(err, errLocal):
				t.local = true
			default:
				g.fail(w, r, err)
			}
		},
	}
	rp.ModifyResponse = func(res *http.Response) error {
		strip(res.Header)
		if res.ContentLength >= 0 && res.StatusCode != http.StatusSwitchingProtocols {
			rp.FlushInterval = 20 * time.Millisecond // head and body leave in one write
		}
		return nil
	}
	rp.ServeHTTP(out, r)
	if t.local {
		if b.all {
			r.Body = io.NopCloser(bytes.NewReader(b.kept))
		}
		g.self.serve(w, r, call{key: key}, func(affinity.Row) { g.fail(w, r, errGaveUp) })
	}
}

// Forward writes the X-Forwarded-* of a request to an instance or its service: what there is was said by somebody who is
// believed, for everything else has been dropped at the entrance.
func Forward(pr *httputil.ProxyRequest) {
	pr.Out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
	pr.SetXForwarded()
	for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
		if said := pr.In.Header[name]; len(said) > 0 {
			pr.Out.Header[name] = said
		}
	}
}

// watched remembers that somebody began to read.
type watched struct {
	io.ReadCloser
	read *atomic.Bool
}

func (b *watched) Read(p []byte) (int, error) {
	b.read.Store(true)
	return b.ReadCloser.Read(p)
}

// RoundTrip sends a request to the owner; a second time only when the first one had no effect.
func (t *trip) RoundTrip(req *http.Request) (*http.Response, error) {
	g := t.g
	avoid, fresh := "", false
	for attempt := range 2 {
		a, err := t.aim(req.Context(), avoid, fresh)
		if err != nil {
			return nil, err
		}
		if a.local {
			return nil, errLocal
		}
		if attempt > 0 {
			g.resent.Add(1)
		}
		res, sent, err := t.sendTo(req, a)
		if err != nil {
			if sent {
				g.wg.Go(func() { g.suspect(g.ctx, a.pulse) })
				return nil, err
			}
			if req.Context().Err() != nil {
				return nil, err
			}
			g.suspect(req.Context(), a.pulse)
			g.forget(t.key)
			avoid, fresh = a.owner.Instance, true
			if a.gen > 0 {
				avoid = "" // whether it is dead, its pulse says
			}
			continue
		}
		if res.StatusCode != http.StatusMisdirectedRequest || res.Header.Get(HeaderNotOwner) == "" {
			return res, nil
		}
		_, _ = io.CopyN(io.Discard, res.Body, 4<<10)
		res.Body.Close()
		g.notOwner.Add(1)
		g.forget(t.key)
		if a.gen > 0 {
			g.evict(req.Context(), t.key, affinity.Row{Owner: a.owner, Generation: a.gen}, "the instance does not have it")
		} else {
			avoid = a.owner.Instance // it would not build
		}
		fresh = true
		if !t.body.all && t.read.Load() {
			return nil, errGaveUp // some of it was sent
		}
	}
	return nil, errGaveUp
}

func (t *trip) aim(ctx context.Context, avoid string, fresh bool) (aim, error) {
	if t.first != nil {
		a := *t.first
		t.first = nil
		return a, nil
	}
	return t.g.aimAt(ctx, t.key, avoid, fresh)
}

// sendTo is one attempt. sent: a connection came about, so nobody knows what the instance has seen.
func (t *trip) sendTo(req *http.Request, a aim) (res *http.Response, sent bool, err error) {
	u, err := target(a.addr)
	if err != nil {
		return nil, false, err
	}
	var connected atomic.Bool
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	out := req.Clone(ctx)
	out.URL.Scheme, out.URL.Host = u.Scheme, u.Host
	out.GetBody = nil // nobody but us sends anything again
	switch {
	case t.body.all && len(t.body.kept) > 0:
		out.Body = io.NopCloser(bytes.NewReader(t.body.kept))
		out.ContentLength = int64(len(t.body.kept))
		out.TransferEncoding = nil
	case t.body.all:
		out.Body = nil
	default:
		out.Body = io.NopCloser(req.Body) // a failed attempt must not close it
	}
	a.write(out.Header, t.g.secret)
	done := t.g.hangOn(a.pulse, t.cancel)
	res, err = t.g.send.RoundTrip(out)
	if err != nil {
		done()
		if cause := context.Cause(req.Context()); cause != nil && errors.Is(cause, errDied) {
			err = cause
		}
		return nil, connected.Load() && !isDial(err), err
	}
	context.AfterFunc(req.Context(), done) // until the whole answer has gone through
	return res, true, nil
}

// hangOn cuts a request off when its instance dies.
func (g *Gateway) hangOn(p *pulse, cancel context.CancelCauseFunc) (done func()) {
	g.mu.Lock()
	g.running[p]++
	g.mu.Unlock()
	stop := context.AfterFunc(p.ended(), func() { cancel(errDied) })
	return sync.OnceFunc(func() {
		stop()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.running[p]--; g.running[p] == 0 {
			delete(g.running, p)
		}
	})
}

// fail answers a request that could not be served.
func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, code, retry := http.StatusBadGateway, "owner_unreachable", time.Second
	var late interface{ Timeout() bool }
	switch {
	case errors.Is(err, errDied), errors.Is(context.Cause(r.Context()), errDied):
		status, code, err = http.StatusBadGateway, "owner_died", errDied
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // nobody listens
	case errors.Is(err, errNoKey), errors.Is(err, errTwoKeys), errors.Is(err, errBadBody), errors.Is(err, affinity.ErrBadRequest):
		status, code, retry = http.StatusBadRequest, "session_key", 0
	case errors.Is(err, errTooLarge):
		status, code, retry = http.StatusRequestEntityTooLarge, "body_too_large", 0
	case errors.Is(err, affinity.ErrUnavailable), errors.Is(err, affinity.ErrForeign):
		status, code, retry = http.StatusServiceUnavailable, "directory_unavailable", 2*time.Second
	case errors.Is(err, errNobody):
		status, code, retry = http.StatusServiceUnavailable, "no_instance", 2*time.Second
	case errors.Is(err, errGaveUp), errors.Is(err, errNotSent), isDial(err):
		status, code = http.StatusServiceUnavailable, "owner_unknown"
	case errors.As(err, &late) && late.Timeout():
		status, code = http.StatusGatewayTimeout, "owner_timeout"
	}
	if status >= 500 {
		g.refused.Add(1)
		g.log.Warn("a request could not be brought to its session", "code", code, "err", err)
	}
	problem(w, status, code, detail(err), retry)
}

func detail(err error) string {
	for _, known := range []error{errDied, errNoKey, errTwoKeys, errTooLarge, errBadBody, errNobody, errGaveUp, affinity.ErrUnavailable, affinity.ErrBadRequest} {
		if errors.Is(err, known) {
			_, text, _ := strings.Cut(known.Error(), ": ")
			return text
		}
	}
	return "the instance that has the session cannot be reached" // addresses are nobody's business
}

func problem(w http.ResponseWriter, status int, code, detail string, retry time.Duration) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if retry > 0 {
		h.Set("Retry-After", strconv.Itoa(int((retry+time.Second-1)/time.Second)))
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`{"type":"about:blank","title":` + strconv.Quote(http.StatusText(status)) + `,"status":` + strconv.Itoa(status) +
		`,"code":` + strconv.Quote(code) + `,"detail":` + strconv.Quote(detail) + "}\n"))
}
