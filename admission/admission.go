package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/ushergo/usher/token"
)

// Headers between usher and an origin.
const (
	HeaderToken    = "X-Usher-Token"     // the admission token
	HeaderRoom     = "X-Usher-Room"      // the room it is for
	HeaderTicketID = "X-Usher-Ticket-Id" // the ticket's public id
)

// Admission is what a verified token says.
type Admission = token.Admission

// Verifier judges admission tokens of one room. Its methods may be called from many goroutines at once.
type Verifier struct {
	room   string
	issuer string
	cookie string
	clock  func() time.Time
	refuse func(http.ResponseWriter, *http.Request, *Refusal)
	keys   *keyCache
}

// Option changes a Verifier.
type Option func(*Verifier)

// Cookie also takes the token from the cookie called name.
func Cookie(name string) Option { return func(v *Verifier) { v.cookie = name } }

// Issuer accepts only tokens whose iss is exactly iss: usher's public.url.
func Issuer(iss string) Option { return func(v *Verifier) { v.issuer = iss } }

// Client fetches the keys through c instead of a client of its own with a timeout of 5 s. Its redirect policy is
// replaced: keys come from the address given, or another path of the same host.
func Client(c *http.Client) Option { return func(v *Verifier) { v.keys.client = c } }

// Logger reports failed fetches and clocks that differ to l instead of slog.Default().
func Logger(l *slog.Logger) Option { return func(v *Verifier) { v.keys.log = l } }

// Clock reads the time from now instead of time.Now.
func Clock(now func() time.Time) Option {
	return func(v *Verifier) { v.clock, v.keys.clock = now, now }
}

// Refuse answers refused requests by f instead of by problem+json. Refusal.ServeHTTP gives the usual answer.
func Refuse(f func(w http.ResponseWriter, r *http.Request, why *Refusal)) Option {
	return func(v *Verifier) { v.refuse = f }
}

// New makes a Verifier for room that takes its keys from jwksURL, usher's /.well-known/jwks.json. Use https unless
// the network between is yours: whoever can change the keys on the way can admit anybody.
func New(room, jwksURL string, opts ...Option) (*Verifier, error) {
	if room == "" || len(room) > 64 {
		return nil, errors.New("admission: the room is empty or longer than 64 characters: give the room's id from usher's config")
	}
	keys, err := newKeyCache(jwksURL)
	if err != nil {
		return nil, err
	}
	v := &Verifier{room: room, clock: time.Now, keys: keys}
	v.refuse = func(w http.ResponseWriter, r *http.Request, why *Refusal) { why.ServeHTTP(w, r) }
	for _, o := range opts {
		o(v)
	}
	keys.prepare()
	return v, nil
}

// Require is New as one piece of middleware. It panics when room or jwksURL cannot be used, as that is a mistake in
// the program and nothing should be served under it.
func Require(room, jwksURL string, opts ...Option) func(http.Handler) http.Handler {
	v, err := New(room, jwksURL, opts...)
	if err != nil {
		panic(err)
	}
	return v.Handler
}

// Handler lets requests with a good token through to next and refuses the others.
func (v *Verifier) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, why := v.find(r)
		if why == nil {
			var a Admission
			if a, why = v.judge(r.Context(), text); why == nil {
				next.ServeHTTP(w, admitted(r, a))
				return
			}
		}
		v.refuse(w, r, why)
	})
}

// Verify judges one token, for transports other than HTTP. The error is a *Refusal.
func (v *Verifier) Verify(ctx context.Context, text string) (Admission, error) {
	a, why := v.judge(ctx, text)
	if why != nil {
		return Admission{}, why
	}
	return a, nil
}

// find takes the token from the request.
func (v *Verifier) find(r *http.Request) (string, *Refusal) {
	switch sent := r.Header.Values(HeaderToken); len(sent) {
	case 0:
	case 1:
		if sent[0] != "" {
			return sent[0], nil
		}
	default:
		return "", &Refusal{Code: TokenMalformed, Detail: "The request has several " + HeaderToken + " headers; send one."}
	}
	if v.cookie != "" {
		if c, err := r.Cookie(v.cookie); err == nil && c.Value != "" {
			return c.Value, nil
		}
	}
	if scheme, text, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(text), nil
	}
	return "", nil
}

func (v *Verifier) judge(ctx context.Context, text string) (Admission, *Refusal) {
	if text == "" {
		return Admission{}, &Refusal{Code: TokenMissing, Detail: "This needs an admission to room " + v.room + ": enter the room first, and send the token in " + HeaderToken + "."}
	}
	var keys snapshot
	if kid := token.KeyID(text); kid != "" { // without one the refusal does not depend on keys, and earns no fetch
		var err error
		if keys, err = v.keys.forKey(ctx, kid); err != nil {
			return Admission{}, &Refusal{Code: KeysUnavailable, RetryAfter: v.keys.nextTry(),
				Detail: "The signing keys of the waiting room could not be fetched, so the token cannot be judged yet. The server's log says why."}
		}
	}
	now := v.clock()
	a, err := keys.verify(v.room, text, now)
	if err != nil {
		return Admission{}, refusalFor(err, v.room, keys, now)
	}
	if v.issuer != "" && a.Issuer != v.issuer {
		return Admission{}, &Refusal{Code: WrongIssuer, Detail: fmt.Sprintf("The token was not issued by %s.", v.issuer)}
	}
	return a, nil
}

type contextKey struct{}

// FromContext gives the admission of the request that Handler let through; false outside of it.
func FromContext(ctx context.Context) (Admission, bool) {
	a, ok := ctx.Value(contextKey{}).(Admission)
	return a, ok
}

// admitted is r with its admission. Handlers that read usher's headers must find what the token says: only usher's
// proxy strips what clients send in them, and a request need not have come through it.
func admitted(r *http.Request, a Admission) *http.Request {
	r = r.WithContext(context.WithValue(r.Context(), contextKey{}, a))
	if !only(r.Header, HeaderRoom, a.Room) || !only(r.Header, HeaderTicketID, a.TicketID) {
		r.Header = r.Header.Clone()
		r.Header.Set(HeaderRoom, a.Room)
		r.Header.Set(HeaderTicketID, a.TicketID)
	}
	return r
}

func only(h http.Header, name, value string) bool {
	got := h.Values(name)
	return len(got) == 1 && got[0] == value
}
