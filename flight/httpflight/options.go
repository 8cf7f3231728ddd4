package httpflight

import (
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"github.com/ushergo/usher/flight"
)

// Options of Handler, also the keys of a "collapse:" section in a configuration file. The zero value is sound.
type Options struct {
	// Query names the parameters that are part of the key, in any order. Default (nil): the query as it was sent. An
	// empty list: none. Danger: the origin sees the others too, those of the first client; name all it heeds.
	Query []string `yaml:"query" json:"query"`

	// Headers names the request headers that are part of the key. A response whose Vary names another is not shareable.
	// Default: Accept, Accept-Encoding, Accept-Language, Origin, X-Requested-With. If-None-Match, If-Modified-Since,
	// X-Forwarded-Host and X-Forwarded-Proto always are.
	Headers []string `yaml:"headers" json:"headers"`

	// PrincipalHeader names a request header that says whose request it is, set by something in front that clients
	// cannot reach around. Requests that carry credentials are then shared, but only among equal values of it.
	PrincipalHeader string `yaml:"principal_header" json:"principal_header"`

	// Principal does the same in code, and wins. With false, a request with credentials passes by.
	Principal func(*http.Request) (string, bool) `yaml:"-" json:"-"`

	// IgnoreCookies are cookies, by name or by prefix with a "*", that do not count as credentials. They are taken out of
	// shared requests, so that the origin cannot answer by them. Default: usher's own tickets.
	IgnoreCookies []string `yaml:"ignore_cookies" json:"ignore_cookies"`

	// DropHeaders are taken out of shared requests: by them the origin would know the first client from the others.
	// Default: X-Usher-Ticket-Id and X-Usher-Token. An origin that checks the token itself needs an empty list; it must
	// then answer nobody by it.
	DropHeaders []string `yaml:"drop_headers" json:"drop_headers"`

	Timeout time.Duration `yaml:"timeout" json:"timeout"` // for the origin's header, and for a turn before; default 30 s

	Concurrency int     `yaml:"concurrency" json:"concurrency"` // requests at the origin at once; default no limit
	PerSecond   float64 `yaml:"per_second" json:"per_second"`   // requests to the origin a second; default no limit
	Burst       int     `yaml:"burst" json:"burst"`             // of PerSecond; default a tenth of it
	MaxPending  int     `yaml:"max_pending" json:"max_pending"` // requests waiting for these two; default 1,024

	MaxWaiters       int `yaml:"max_waiters" json:"max_waiters"`                 // clients waiting in all; default 100,000
	MaxWaitersPerKey int `yaml:"max_waiters_per_key" json:"max_waiters_per_key"` // for one response; default 20,000

	// MaxBody is the longest body in bytes that is kept for those who come while it arrives; a longer one is streamed
	// and not shared any further. Default 1 MiB.
	MaxBody int64 `yaml:"max_body" json:"max_body"`

	// MaxMemory is how many bytes of bodies may be kept in all. Beyond it a response is streamed to those who wait for it
	// and kept for nobody who comes later. Default 256 MiB.
	MaxMemory int64 `yaml:"max_memory" json:"max_memory"`

	// SlowClient is how long a client may hold up a response longer than MaxBody. Then she is cut off. Default 10 s.
	SlowClient time.Duration `yaml:"slow_client" json:"slow_client"`

	// OnLeave says what becomes of the origin's request when all clients have gone: "finish" (default) or "cancel".
	OnLeave string `yaml:"on_leave" json:"on_leave"`

	NotShareableFor time.Duration `yaml:"not_shareable_for" json:"not_shareable_for"` // default 10 s

	// Backoff is how long a failing key is left alone: 100 ms, doubling to 2 s, or as Retry-After says, up to 5 min.
	// "off": not at all.
	Backoff string `yaml:"backoff" json:"backoff"`

	// OnError answers a client instead of this package: err is a *flight.BusyError, *flight.BackoffError,
	// flight.ErrTimeout, flight.ErrClosed or *flight.PanicError. code and status are what it would have sent.
	OnError func(w http.ResponseWriter, r *http.Request, status int, code string, err error) `yaml:"-" json:"-"`

	Class    func(*http.Request) string `yaml:"-" json:"-"` // of the budget
	Classes  map[string]flight.Share    `yaml:"-" json:"-"` // shares of the budget
	Observer flight.Observer            `yaml:"-" json:"-"`
}

var (
	defaultHeaders = []string{"Accept", "Accept-Encoding", "Accept-Language", "Origin", "X-Requested-With"}
	alwaysHeaders  = []string{"If-Modified-Since", "If-None-Match", "X-Forwarded-Host", "X-Forwarded-Proto"}
	ownHeaders     = []string{"X-Usher-Ticket-Id", "X-Usher-Token"}
	ownCookies     = []string{"usher-*", "__Host-usher-*"}
)

// Validate reports a value that cannot be meant, naming its key.
func (o Options) Validate() error {
	for _, h := range o.Headers {
		if !token(h) {
			return fmt.Errorf("collapse.headers: %q is not a header name", h)
		}
		switch textproto.CanonicalMIMEHeaderKey(h) {
		case "Cookie", "Authorization":
			return fmt.Errorf("collapse.headers: %s in the key would make every client's request its own; use principal_header, or ignore_cookies", h)
		}
	}
	if o.PrincipalHeader != "" && !token(o.PrincipalHeader) {
		return fmt.Errorf("collapse.principal_header: %q is not a header name", o.PrincipalHeader)
	}
	for _, h := range o.DropHeaders {
		if !token(h) {
			return fmt.Errorf("collapse.drop_headers: %q is not a header name", h)
		}
	}
	for _, q := range o.Query {
		if q == "" {
			return fmt.Errorf("collapse.query: a parameter name is empty")
		}
	}
	for _, c := range o.IgnoreCookies {
		if n := strings.TrimSuffix(c, "*"); !token(n) {
			return fmt.Errorf("collapse.ignore_cookies: %q is neither a cookie name nor a prefix of one followed by *", c)
		}
	}
	if o.OnLeave != "" && o.OnLeave != "finish" && o.OnLeave != "cancel" {
		return fmt.Errorf("collapse.on_leave: %q; use finish or cancel", o.OnLeave)
	}
	if o.Backoff != "" && o.Backoff != "off" && o.Backoff != "on" {
		return fmt.Errorf("collapse.backoff: %q; use on or off", o.Backoff)
	}
	for name, v := range map[string]int64{
		"timeout": int64(o.Timeout), "concurrency": int64(o.Concurrency), "burst": int64(o.Burst), "max_pending": int64(o.MaxPending),
		"max_waiters": int64(o.MaxWaiters), "max_waiters_per_key": int64(o.MaxWaitersPerKey), "max_body": o.MaxBody, "max_memory": o.MaxMemory,
		"slow_client": int64(o.SlowClient), "not_shareable_for": int64(o.NotShareableFor),
	} {
		if v < 0 {
			return fmt.Errorf("collapse.%s must not be negative", name)
		}
	}
	if !(o.PerSecond >= 0) {
		return fmt.Errorf("collapse.per_second must not be negative")
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Headers == nil {
		o.Headers = defaultHeaders
	}
	if o.IgnoreCookies == nil {
		o.IgnoreCookies = ownCookies
	}
	if o.DropHeaders == nil {
		o.DropHeaders = ownHeaders
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.MaxBody == 0 {
		o.MaxBody = 1 << 20
	}
	if o.MaxMemory == 0 {
		o.MaxMemory = 256 << 20
	}
	if o.SlowClient == 0 {
		o.SlowClient = 10 * time.Second
	}
	return o
}

func (o Options) group() flight.Options[Key, *stream] {
	f := flight.Options[Key, *stream]{
		Timeout: o.Timeout, MaxWaiters: o.MaxWaiters, MaxWaitersPerKey: o.MaxWaitersPerKey,
		NotShareableFor: o.NotShareableFor, Observer: o.Observer,
		Budget: flight.Budget{Concurrency: o.Concurrency, PerSecond: o.PerSecond, Burst: o.Burst, MaxPending: o.MaxPending, Classes: o.Classes},
		Backoff: flight.Backoff{
			Off:       o.Backoff == "off",
			Transient: flight.Steps{First: 100 * time.Millisecond, Max: 2 * time.Second},
		},
		OnLastLeave: flight.FinishLoad,
	}
	if o.OnLeave == "cancel" {
		f.OnLastLeave = flight.CancelLoad
	}
	return f
}

// token: a header or cookie name.
func token(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || strings.IndexByte("()<>@,;:\\\"/[]?={}", c) >= 0 {
			return false
		}
	}
	return s != ""
}
