package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/ushergo/usher/token"
)

// Code says why a request was refused. Codes are stable; texts are not.
type Code string

// The codes of refusals. The package comment says what each means.
const (
	TokenMissing    Code = "token_missing"
	TokenMalformed  Code = "token_malformed"
	WrongAlgorithm  Code = "wrong_algorithm"
	UnknownKey      Code = "unknown_key"
	BadSignature    Code = "bad_signature"
	TokenExpired    Code = "token_expired"
	TokenNotYet     Code = "token_not_yet"
	WrongIssuer     Code = "wrong_issuer"
	WrongRoom       Code = "wrong_room"
	KeysUnavailable Code = "keys_unavailable"
)

// Refusal is why a token does not admit. It holds nothing secret.
type Refusal struct {
	Code       Code
	Detail     string        // one or two sentences for whoever reads the answer
	RetryAfter time.Duration // when asking again may help; 0 when it will not
	Err        error         // the error of package token behind it, if there is one
}

func (r *Refusal) Error() string { return "admission: " + string(r.Code) + ": " + r.Detail }
func (r *Refusal) Unwrap() error { return r.Err }

// Status is the HTTP status of the refusal: 401, 403 or 503.
func (r *Refusal) Status() int {
	switch r.Code {
	case KeysUnavailable:
		return http.StatusServiceUnavailable
	case WrongRoom:
		return http.StatusForbidden
	default:
		return http.StatusUnauthorized
	}
}

func (r *Refusal) title() string {
	switch r.Code {
	case TokenMissing:
		return "No admission token"
	case TokenExpired:
		return "The admission has ended"
	case TokenNotYet:
		return "The clocks differ"
	case WrongRoom:
		return "Admitted to another room"
	case KeysUnavailable:
		return "Admissions cannot be checked at the moment"
	default:
		return "Not a valid admission token"
	}
}

// ServeHTTP answers with the refusal as problem+json (RFC 9457).
func (r *Refusal) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((r.RetryAfter+time.Second-1)/time.Second)))
	}
	if r.Status() == http.StatusUnauthorized {
		challenge := `Bearer realm="usher"`
		if r.Code != TokenMissing { // RFC 6750: no error where nothing was sent
			challenge += `, error="invalid_token"`
		}
		h.Set("WWW-Authenticate", challenge)
	}
	w.WriteHeader(r.Status())
	_ = json.NewEncoder(w).Encode(struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Code   Code   `json:"code"`
		Detail string `json:"detail"`
	}{"about:blank", r.title(), r.Status(), r.Code, r.Detail})
}

// refusalFor puts an error of package token into words.
func refusalFor(err error, room string, keys snapshot, now time.Time) *Refusal {
	r := &Refusal{Err: err}
	var when *token.TimeError
	switch {
	case errors.Is(err, token.ErrAlgorithm):
		r.Code, r.Detail = WrongAlgorithm, "The token is not signed with EdDSA, which is all that is accepted."
	case errors.Is(err, token.ErrUnknownKey):
		r.Code, r.Detail = UnknownKey, "The token names a signing key that usher does not publish."
	case errors.Is(err, token.ErrSignature):
		r.Code, r.Detail = BadSignature, "The token's signature is wrong: it was changed, or signed by somebody else."
	case errors.Is(err, token.ErrWrongRoom):
		r.Code, r.Detail = WrongRoom, "The token is not for room "+room+"."
	case errors.As(err, &when) && errors.Is(err, token.ErrNotYet):
		r.Code = TokenNotYet
		r.Detail = fmt.Sprintf("The token begins %s from now by this server's clock: the clocks of this server and of usher differ by at least that much, "+
			"and %s is forgiven. Set both by NTP.%s", when.By(), token.Leeway, keys.clockNote())
	case errors.As(err, &when):
		r.Code = TokenExpired
		r.Detail = fmt.Sprintf("The token expired %s ago by this server's clock, and %s is forgiven. Renew it, or enter again.%s",
			when.By(), token.Leeway, keys.clockNote())
	default:
		r.Code, r.Detail = TokenMalformed, "What was sent is not an admission token of usher."
	}
	return r
}
