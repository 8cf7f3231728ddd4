// Package keylockhttp puts package keylock in front of an http.Handler.
package keylockhttp

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/ushergo/usher/keylock"
)

// Middleware lets the requests of one key through to next one at a time. Where key says "", as it should for health
// probes and everything else that must not wait, the request passes unlocked. The request that next sees has the
// hold's context, which ends when the hold is ended by force; next has to return then.
//
// A request that cannot be let through gets application/problem+json: 429 key_full, 503 key_busy, 409 key_reentry.
// Everything next does has to be done when it returns: a connection that it took over lives on without the lock.
func Middleware(l *keylock.Locks, key func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k := key(r)
		if k == "" {
			next.ServeHTTP(w, r)
			return
		}
		hold, err := l.Lock(r.Context(), k)
		if err != nil {
			Refuse(w, r, err)
			return
		}
		defer hold.Release() //nolint:errcheck // a forced release is told by the Observer
		next.ServeHTTP(w, r.WithContext(hold.Context(r.Context())))
	})
}

// Refuse answers a request that got an error of Lock.
func Refuse(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, keylock.ErrFull):
		problem(w, http.StatusTooManyRequests, "key_full", "too many requests wait for the same session", time.Second)
	case errors.Is(err, keylock.ErrReentry):
		problem(w, http.StatusConflict, "key_reentry", "this request is part of one that holds the same session", 0)
	case r.Context().Err() != nil: // nobody listens
		panic(http.ErrAbortHandler)
	default:
		problem(w, http.StatusServiceUnavailable, "key_busy", "the session is busy with another request", time.Second)
	}
}

func problem(w http.ResponseWriter, status int, code, detail string, retry time.Duration) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if retry > 0 {
		h.Set("Retry-After", strconv.Itoa(int(retry/time.Second)))
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`{"type":"about:blank","title":` + strconv.Quote(http.StatusText(status)) + `,"status":` + strconv.Itoa(status) +
		`,"code":` + strconv.Quote(code) + `,"detail":` + strconv.Quote(detail) + "}\n"))
}
