package web

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/room"
)

// proxy forwards to origins.
type proxy struct {
	s         *Server
	transport http.RoundTripper
	buffers   bufferPool
	log       *log.Logger
}

func newProxy(s *Server) *proxy {
	return &proxy{
		s: s, log: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		transport: &http.Transport{
			// An origin is dialled directly, whatever HTTP_PROXY says.
			DialContext:         dialOrigin(s.opts.OriginTimeout),
			TLSHandshakeTimeout: 5 * time.Second,
			// The default of 2 makes a connection for almost every request, which costs more than all else together.
			MaxIdleConnsPerHost: 512,
			MaxIdleConns:        0, // no cap over all origins
			// Shorter than what common origins keep (Node 5 s, Apache 5 s): a POST sent on a connection that the origin
			// closes in that moment cannot be sent again.
			IdleConnTimeout:        4 * time.Second,
			ResponseHeaderTimeout:  s.opts.OriginTimeout,
			ExpectContinueTimeout:  time.Second,
			MaxResponseHeaderBytes: 1 << 20,
			DisableCompression:     true, // what was asked for is what the visitor accepts
		},
	}
}

// bufferPool lends what bodies are copied through.
type bufferPool struct{ sync.Pool }

const bufferSize = 32 << 10

func (p *bufferPool) Get() []byte {
	if b, ok := p.Pool.Get().(*[bufferSize]byte); ok {
		return b[:]
	}
	return make([]byte, bufferSize)
}

func (p *bufferPool) Put(b []byte) {
	if len(b) == bufferSize {
		p.Pool.Put((*[bufferSize]byte)(b))
	}
}

// forward is one request on its way to an origin.
type forward struct {
	letIn
	g        *gate
	table    *table
	w        http.ResponseWriter
	r        *http.Request
	client   *client
	origin   *url.URL
	entry    *entry   // nil: no room stands in front
	cookies  []string // Set-Cookie lines of ours for the answer
	upgrades bool
	body     *watchedBody
	conn     *hijacker
}

// admitted takes over what lets the request in.
func (f *forward) admitted(in letIn) {
	f.letIn = in
	f.cookies = f.entry.passFor(f.r, in, f.client.https)
}

func (p *proxy) serve(f *forward) {
	if f.pass != nil {
		defer f.pass.Close()
	}
	if before := p.s.opts.BeforeOrigin; before != nil {
		if h := before(); h != nil {
			h.ServeHTTP(f.w, f.held())
			return
		}
	}
	p.forward(f)
}

// forward passes it on to the origin.
func (p *proxy) forward(f *forward) {
	r, w := f.r, f.w
	if f.upgrades = asksForWebSocket(r.Header); f.upgrades {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		r = r.WithContext(ctx)
		f.conn = &hijacker{ResponseWriter: w}
		w = f.conn
		go f.untilOver(ctx.Done(), cancel)
	}
	if r.Body != nil && r.ContentLength != 0 {
		f.body = &watchedBody{ReadCloser: r.Body}
		r = r.WithContext(r.Context()) // whose body is ours to set
		r.Body = f.body
	}
	f.r = r
	rp := httputil.ReverseProxy{
		Rewrite: f.rewrite, ErrorHandler: f.failed,
		Transport: f.via(p.transport), BufferPool: &p.buffers, ErrorLog: p.log,
	}
	rp.ModifyResponse = func(res *http.Response) error {
		rp.FlushInterval = flushAfter(res.ContentLength)
		return f.answer(res)
	}
	rp.ServeHTTP(w, r)
}

// flushAfter is how long the beginning of an answer is kept back, so that head and body leave in one write; length is
// negative where it is not known. Flushing each by itself costs a quarter of the proxy's CPU, and a timer for each
// answer half as much: so what is small goes when it is whole, what is large within 20 ms, and what has no length
// is a stream and goes at once.
func flushAfter(length int64) time.Duration {
	switch {
	case length < 0:
		return -1
	case length <= 2048:
		return 0
	}
	return 20 * time.Millisecond
}

func (f *forward) rewrite(pr *httputil.ProxyRequest) {
	out := pr.Out
	out.URL.Scheme, out.URL.Host = f.origin.Scheme, f.origin.Host
	out.URL.RawQuery = pr.In.URL.RawQuery // as it came: nothing here has been decided by it
	keepPath(out.URL, pr.In.RequestURI)
	out.Host = f.client.hostRaw
	if !f.upgrades {
		delete(out.Header, "Upgrade")
		delete(out.Header, "Connection")
	}
	f.headers(pr.In, out)
}

// asksForWebSocket says whether a request may become a tunnel. Nothing but a WebSocket may: through one to an
// origin that speaks h2c, requests would go that nobody has decided about.
func asksForWebSocket(h http.Header) bool {
	up := h["Upgrade"]
	return len(up) == 1 && strings.EqualFold(up[0], "websocket")
}

// answer changes the origin's answer on its way back.
func (f *forward) answer(res *http.Response) error {
	h := res.Header
	over := endsSession(h)
	if res.StatusCode != http.StatusSwitchingProtocols && isEndless(h.Get("Content-Type")) {
		body := &endingBody{ReadCloser: res.Body, read: make(chan struct{})}
		res.Body = body
		go f.untilOver(body.read, body.cut)
	}
	if f.entry == nil {
		return nil
	}
	if over {
		f.leave()
	}
	for _, line := range f.cookies {
		h.Add("Set-Cookie", line)
	}
	if !f.entry.cfg.SharedCache || len(f.cookies) > 0 {
		makePrivate(h)
	}
	return nil
}

// isEndless names what never finishes by itself: it is ended with the session. Everything else runs on.
func isEndless(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.TrimSpace(media)
	return strings.EqualFold(media, "text/event-stream") || strings.EqualFold(media, "multipart/x-mixed-replace")
}

// leave ends the session at the origin's word: the slot is free before the visitor reads the answer.
func (f *forward) leave() {
	e := f.entry
	pass := e.passCookie(f.client.https) + "="
	f.cookies = slices.DeleteFunc(f.cookies, func(line string) bool { return strings.HasPrefix(line, pass) })
	f.cookies = append(f.cookies, e.goneCookies(f.client.https)...)
	if f.ref == (room.Ref{}) {
		return
	}
	f.g.linger.add(f.ref.ID, time.Now())
	ctx, cancel := f.g.s.deadline(context.WithoutCancel(f.r.Context()))
	defer cancel()
	if _, err := e.room.Leave(ctx, f.ref); err != nil && !isEnded(err) {
		f.g.s.log.Warn("a session that the origin ended could not be ended; it ends by idle", "room", e.room.ID(), "ticket_id", f.id, "err", err)
	}
}

// untilOver cuts something off when the session ends or the node is drained, unless it is done before.
func (f *forward) untilOver(done <-chan struct{}, cut func()) {
	var over <-chan struct{}
	if f.pass != nil {
		over = f.pass.Done()
	}
	select {
	case <-done:
		return
	case <-over:
	case <-f.g.s.draining:
		in, _ := f.g.s.streams.slot()
		select {
		case <-done:
			return
		case <-over:
		case <-time.After(in):
		}
	}
	cut()
}

// failed answers when the origin did not. The session is kept.
func (f *forward) failed(_ http.ResponseWriter, _ *http.Request, err error) {
	s := f.g.s
	if f.conn != nil && f.conn.taken {
		s.log.Debug("an upgraded connection failed", "origin", f.origin.Host, "err", err)
		return
	}
	p := f.refused(err)
	var timeout net.Error
	switch {
	case f.overNow():
		p = &problem{status: http.StatusGone, code: "ticket_ended", detail: "the session has ended; enter again for a new one"}
	case f.body != nil && errors.Is(f.body.failed(), os.ErrDeadlineExceeded):
		p = &problem{status: http.StatusRequestTimeout, code: "request_timeout", detail: "the rest of the request's body did not come in time"}
	case f.r.Context().Err() != nil:
		gone(f.w)
		return
	case f.body != nil && f.body.failed() != nil:
		p = &problem{status: http.StatusBadRequest, code: "bad_request", detail: "the request's body could not be read to its end"}
	case p != nil:
	case errors.As(err, &timeout) && timeout.Timeout():
		p = &problem{status: http.StatusGatewayTimeout, code: "origin_timeout", retry: originRetry,
			detail: "the site behind the waiting room did not answer in time; your session is kept"}
	default:
		p = &problem{status: http.StatusBadGateway, code: "origin_unreachable", retry: originRetry,
			detail: "the site behind the waiting room cannot be reached; your session is kept"}
	}
	if p.status >= 500 && p.code != codeBusy && f.g.told.now(f.origin.Host) {
		s.log.Error("the origin did not answer; visitors keep their sessions", "origin", f.origin.String(), "code", p.code, "err", err)
	}
	h := f.w.Header()
	for _, line := range f.cookies {
		h.Add("Set-Cookie", line)
	}
	if p.status < 500 || !wantsPage(f.r) {
		p.write(f.w)
		return
	}
	s.originPage(f, p)
}

const originRetry = 5 * time.Second

// overNow says whether the session's end is what cut the request off.
func (f *forward) overNow() bool {
	if f.pass == nil || f.r.Context().Err() == nil {
		return false
	}
	select {
	case <-f.pass.Done():
		return true
	default:
		return false
	}
}

// watchedBody remembers whether it was the visitor who failed to send.
type watchedBody struct {
	io.ReadCloser
	mu  sync.Mutex // the transport may still read while we ask
	err error
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.mu.Lock()
		b.err = err
		b.mu.Unlock()
	}
	return n, err
}

// failed is why the body could not be read; nil if that was not the visitor's fault.
func (b *watchedBody) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if errors.Is(b.err, http.ErrBodyReadAfterClose) {
		return nil
	}
	return b.err
}

// endingBody is an answer that can be cut off, and then ends as if it were whole.
type endingBody struct {
	io.ReadCloser
	once sync.Once
	read chan struct{} // closed when the answer has been read, or nobody reads it any more
	over atomic.Bool
}

// cut may be called while somebody reads.
func (b *endingBody) cut() {
	b.over.Store(true)
	_ = b.ReadCloser.Close()
}

func (b *endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && b.over.Load() {
		err = io.EOF
	}
	return n, err
}

func (b *endingBody) Close() error {
	b.once.Do(func() { close(b.read) })
	return b.ReadCloser.Close()
}
