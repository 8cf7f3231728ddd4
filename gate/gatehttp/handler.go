package gatehttp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/ushergo/usher/gate"
)

// Options of Handler. The zero value works.
type Options struct {
	// Acquire is how each request acquires: gate.Wait, gate.Lease, gate.Permits.
	Acquire []gate.Option
	// Lease that a running request's permit is extended by, each third of it. Default gate.DefaultLease. It is also the
	// acquire's, unless Acquire says otherwise.
	Lease time.Duration
	// Open lets requests through when the engine cannot be asked. Danger: then nothing is limited.
	// Default: they get 503.
	Open bool
	// Refuse answers who was not let in. Default: Refuse.
	Refuse func(w http.ResponseWriter, r *http.Request, err error)
}

// Handler lets at most as many requests of one key run at once as the gate has permits for it.
// A request whose key is "" is not limited. A key that a gate does not take (a path, an address)
// is replaced by its hash.
func Handler(g *gate.Gate, key func(*http.Request) string, next http.Handler, o Options) http.Handler {
	if o.Lease <= 0 {
		o.Lease = gate.DefaultLease
	}
	if o.Refuse == nil {
		o.Refuse = Refuse
	}
	opts := append([]gate.Option{gate.Lease(o.Lease)}, o.Acquire...)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k := key(r)
		if k == "" {
			next.ServeHTTP(w, r)
			return
		}
		p, err := g.Acquire(r.Context(), Key(k), opts...)
		switch {
		case err == nil:
		case o.Open && (errors.Is(err, gate.ErrUnavailable) || errors.Is(err, gate.ErrUnknown)):
			next.ServeHTTP(w, r)
			return
		default:
			o.Refuse(w, r, err)
			return
		}
		defer func() { _ = p.Release(r.Context()) }()
		ctx, cancel := p.Context(context.WithValue(r.Context(), permitKey{}, p))
		defer cancel()
		defer keep(ctx, p, o.Lease)()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// keep extends a permit until the function returned is called.
func keep(ctx context.Context, p *gate.Permit, lease time.Duration) func() {
	var mu sync.Mutex
	var timer *time.Timer
	over := false
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(lease/3, func() {
		ectx, cancel := context.WithTimeout(ctx, lease/3)
		defer cancel()
		err := p.Extend(ectx, lease)
		mu.Lock()
		defer mu.Unlock()
		if !over && !errors.Is(err, gate.ErrExpired) && !errors.Is(err, gate.ErrReleased) { // after other errors the next time may do
			timer.Reset(lease / 3)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		timer.Stop()
	}
}

type permitKey struct{}

// FromContext is the permit that the request runs under; nil where it is not limited.
func FromContext(ctx context.Context) *gate.Permit {
	p, _ := ctx.Value(permitKey{}).(*gate.Permit)
	return p
}

// Key makes a gate's key of any text: itself where a gate takes it, else its hash.
func Key(s string) string {
	if gate.CheckKey(s) == nil {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Explain gives what an error of Acquire is over HTTP; retry 0: it does not help to ask again.
func Explain(err error) (status int, code, detail string, retry time.Duration) {
	var full *gate.FullError
	switch {
	case errors.As(err, &full):
		return http.StatusTooManyRequests, "gate_full", "as many requests as may are at work on this",
			min(max(full.After, time.Second), time.Minute)
	case errors.Is(err, gate.ErrSettled):
		return http.StatusConflict, "gate_settled", "this has been decided", 0
	}
	return http.StatusServiceUnavailable, "engine_unavailable", "the engine does not answer; ask again later", 2 * time.Second
}

// Refuse answers a request that was not let in with application/problem+json: 429 gate_full with
// Retry-After, 409 gate_settled with the verdict, 503 engine_unavailable.
func Refuse(w http.ResponseWriter, _ *http.Request, err error) {
	doc := map[string]any{"type": "about:blank"}
	status, code, detail, retry := Explain(err)
	var settled *gate.SettledError
	if errors.As(err, &settled) {
		doc["verdict"] = settled.Verdict
	}
	doc["title"], doc["status"], doc["code"], doc["detail"] = http.StatusText(status), status, code, detail
	body, err := json.Marshal(doc)
	if err != nil { // strings and numbers: cannot happen
		panic(err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if retry > 0 {
		h.Set("Retry-After", strconv.Itoa(int((retry+time.Second-1)/time.Second)))
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
