package httpflight

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"maps"
	"math"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/flight"
)

// Collapser is the handler that Handler makes.
type Collapser struct {
	core
	next http.Handler
}

// Handler puts a Collapser in front of next. It panics on options that Validate refuses.
func Handler(next http.Handler, opts Options) *Collapser {
	return &Collapser{core: newCore(opts), next: next}
}

// core is what handler and transport have in common.
type core struct {
	opts  Options
	keys  *keyer
	group *flight.Group[Key, *stream]
	under *underWay
	past  *atomic.Uint64
	mem   *memory
}

func newCore(opts Options) core {
	if err := opts.Validate(); err != nil {
		panic(err)
	}
	opts = opts.withDefaults()
	return core{opts: opts, keys: newKeyer(opts), group: flight.New(opts.group()), under: &underWay{}, past: &atomic.Uint64{},
		mem: &memory{most: opts.MaxMemory}}
}

// Stats is a snapshot.
type Stats struct {
	flight.Stats
	Passed uint64 // requests that went past, because of what they were
	Held   int64  // bytes of bodies in memory
}

// Stats takes a snapshot.
func (c *core) Stats() Stats { return Stats{c.group.Stats(), c.past.Load(), c.mem.held.Load()} }

// Close refuses further shared requests and waits for those that are at the origin; see flight.Group.Close.
func (c *core) Close(ctx context.Context) error { return c.group.Close(ctx) }

// ForgetAll parts everything that is under way from all requests to come, for instance after a deployment.
func (c *core) ForgetAll() { c.group.ForgetAll() }

type sharedKey struct{}

// Shared reports whether the request with this context is made on behalf of all clients who sent an equal one. A
// handler behind a Collapser must then add nothing to it that names the client.
func Shared(ctx context.Context) bool { return ctx.Value(sharedKey{}) != nil }

func (c *Collapser) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, ok := c.keys.key(r)
	if !ok {
		c.past.Add(1)
		c.next.ServeHTTP(w, r)
		if !safe(r.Method) {
			c.forget(r, w.Header())
		}
		return
	}
	s, rd, err := c.get(r, key, func(rec *recorder, out *http.Request) error {
		c.next.ServeHTTP(rec, out)
		return nil
	})
	if err != nil {
		c.refuse(w, r, err)
		return
	}
	s.serve(w, r, rd)
}

// get is the response to r, which has that key, and r's place in it. ask makes the request to the origin and writes its
// response to the recorder, or returns why there is none.
func (c *core) get(r *http.Request, key Key, ask func(*recorder, *http.Request) error) (*stream, *reader, error) {
	with := flight.With{}
	if c.opts.Class != nil {
		with.Class = c.opts.Class(r)
	}
	ctx := r.Context()
	if ctx.Done() == nil {
		// Else the request would be made in this goroutine, which must read the response while it comes.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
	}
	for {
		res, err := c.group.DoWith(ctx, key, with, func(ctx context.Context) (*stream, error) { return c.fetch(ctx, key, r, ask) })
		s := res.Value
		if s == nil {
			return nil, nil, err
		}
		switch rd := s.attach(); {
		case rd != nil:
			return s, rd, nil
		case with.Alone:
			return nil, nil, errUnfinished
		}
		with.Alone = true // it has grown too long to be shared
	}
}

// fetch is the load: it asks the handler behind and tells the response as soon as its header is there.
func (c *core) fetch(ctx context.Context, key Key, r *http.Request, ask func(*recorder, *http.Request) error) (*stream, error) {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, sharedKey{}, true))
	defer cancel(nil)
	out := r.Clone(ctx)
	out.Body = http.NoBody
	c.keys.stripIgnored(out.Header)
	for _, name := range c.opts.DropHeaders {
		out.Header.Del(name)
	}

	place := place(key.Host, key.Path)
	c.under.add(place, key)
	defer c.under.remove(place, key)

	s := newStream(c.opts.MaxBody, c.mem, c.opts.SlowClient)
	s.cancel = cancel
	rec := &recorder{c: c, s: s, ctx: ctx, header: http.Header{}}
	defer func() {
		s.finish(nil, errUnfinished) // does nothing if it has been finished
		if p := recover(); p != nil {
			logPanic(ctx, p)
			panic(p) // the group tells those who wait
		}
	}()
	if err := ask(rec, out); err != nil {
		if rec.told {
			return s, err
		}
		return nil, err
	}
	rec.end()
	return s, rec.verdict
}

var errUnfinished = errors.New("httpflight: the origin's response broke off")

// logPanic does what the server would have done if the handler had panicked in its client's goroutine.
func logPanic(ctx context.Context, p any) {
	if p == http.ErrAbortHandler {
		return
	}
	printf := log.Printf
	if srv, ok := ctx.Value(http.ServerContextKey).(*http.Server); ok && srv.ErrorLog != nil {
		printf = srv.ErrorLog.Printf
	}
	printf("httpflight: panic in the shared request: %v\n%s", p, debug.Stack())
}

// recorder is the ResponseWriter of the request to the origin.
type recorder struct {
	c       *core
	s       *stream
	ctx     context.Context
	header  http.Header
	told    bool
	verdict error
}

func (w *recorder) Header() http.Header { return w.header }

// WriteHeader tells the response's header to all who wait. Informational ones are not passed on.
func (w *recorder) WriteHeader(code int) {
	if w.told || code < 200 {
		return
	}
	w.told = true
	w.s.code, w.s.header = code, w.header.Clone()
	w.verdict = w.c.keys.verdict(code, w.header, time.Now())
	var alone *flight.NotShareableError
	if errors.As(w.verdict, &alone) {
		w.s.forOne()
	}
	callers, _ := flight.Deliver(w.ctx, w.s, w.verdict)
	w.s.await(callers)
	w.s.watch(w.c.opts.Timeout)
}

func (w *recorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if err := w.s.write(w.ctx, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush does nothing: what is written goes to the clients at once.
func (w *recorder) Flush() { w.WriteHeader(http.StatusOK) }

func (w *recorder) end() {
	w.WriteHeader(http.StatusOK)
	trailer := http.Header{}
	for name := range w.s.trailers() {
		if vs, ok := w.header[name]; ok {
			trailer[name] = vs
		}
	}
	for name, vs := range w.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			trailer[name] = vs
		}
	}
	w.s.finish(trailer, nil)
}

// serve streams s to one client.
func (s *stream) serve(w http.ResponseWriter, r *http.Request, rd *reader) {
	defer rd.close()
	h := w.Header()
	for name, vs := range s.header {
		h[name] = append([]string(nil), vs...)
	}
	w.WriteHeader(s.code)
	dirty := true
	flush := func() {
		if dirty {
			http.NewResponseController(w).Flush() //nolint:errcheck // a writer that cannot flush sends when it will
			dirty = false
		}
	}
	for {
		b, err := rd.next(r.Context(), flush)
		if err == io.EOF {
			break
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the client must not take what she has for all there is
		}
		if _, err := w.Write(b); err != nil {
			return
		}
		dirty = true
		rd.advance(len(b))
	}
	if len(s.trailer) > 0 {
		flush()
		maps.Copy(h, s.trailer)
	}
}

// refuse answers a client whose request got no response from the origin.
func (c *Collapser) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // she has gone
	}
	if err == errUnfinished {
		panic(http.ErrAbortHandler)
	}
	var p *flight.PanicError
	if errors.As(err, &p) && p.Value == http.ErrAbortHandler {
		panic(http.ErrAbortHandler)
	}
	status, code, retry, _ := Refusal(err)
	if retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(retry.Seconds()))))
	}
	if c.opts.OnError != nil {
		c.opts.OnError(w, r, status, code, err)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{ //nolint:errcheck // the client may have gone
		"title": http.StatusText(status), "status": status, "code": code,
	})
}

func safe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// underWay knows which keys of a place are being loaded, so that a change there can part them from what comes.
type underWay struct {
	mu   sync.Mutex
	keys map[string]map[Key]int
}

func place(host, path string) string { return strings.ToLower(host) + path }

func (u *underWay) add(place string, k Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.keys == nil {
		u.keys = map[string]map[Key]int{}
	}
	if u.keys[place] == nil {
		u.keys[place] = map[Key]int{}
	}
	u.keys[place][k]++
}

func (u *underWay) remove(place string, k Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	ks := u.keys[place]
	if ks[k]--; ks[k] == 0 {
		delete(ks, k)
	}
	if len(ks) == 0 {
		delete(u.keys, place)
	}
}

func (u *underWay) at(place string) []Key {
	u.mu.Lock()
	defer u.mu.Unlock()
	var ks []Key
	for k := range u.keys[place] {
		ks = append(ks, k)
	}
	return ks
}

// forget is what an answered request means that may have changed something: at its own place, and at those of the same
// host that its response names.
func (c *core) forget(r *http.Request, h http.Header) {
	places := []string{place(r.Host, path(r.URL))}
	for _, name := range []string{"Location", "Content-Location"} {
		if v := h.Get(name); v != "" {
			if u, err := r.URL.Parse(v); err == nil && (u.Host == "" || strings.EqualFold(u.Host, r.Host) || strings.EqualFold(u.Host, r.URL.Host)) {
				places = append(places, place(r.Host, u.EscapedPath()))
			}
		}
	}
	for _, p := range places {
		for _, k := range c.under.at(p) {
			c.group.Forget(k)
		}
	}
}
