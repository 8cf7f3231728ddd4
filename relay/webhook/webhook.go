// Package webhook POSTs events to an HTTP receiver, one in a request, signed and timed.
//
// Promise: an event is taken when the receiver has answered 2xx. The same event may come twice, with the same
// Usher-Event-Id. Requests of one key never overlap and keep their order.
//
// A request carries:
//
//	Usher-Event-Id:   premiere/1.42         the idempotency key
//	Usher-Event-Type: admitted
//	Usher-Event-Key:  the ticket's id
//	Usher-Event-Late: true                  if it comes back from the dead letters
//	Usher-Attempt:    1                     2 and more: it was tried before
//	Usher-Fence:      17                    of the owner; a receiver may refuse a smaller one than it has seen
//	Usher-Timestamp:  1767322800            seconds since 1970
//	Usher-Signature:  v1=…                  hex HMAC-SHA256 of "timestamp.id.body", see Verify
//
// What an answer means: 2xx taken; 429, and 503 with Retry-After, wait; 401, 403, 404, 405, 407, 410 and redirects are
// nobody's event's fault (relay.Denied); other 4xx are the event's (relay.Rejected); 408, 425, 5xx and no answer are tried
// again.
package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ushergo/usher/egress"
	"github.com/ushergo/usher/relay"
)

// Options of New. The zero value is a good one.
type Options struct {
	Secret      string        // signs requests; empty: unsigned
	Concurrency int           // requests at once; default 16
	Timeout     time.Duration // of one request; default 10 s
	Dial        func(ctx context.Context, network, addr string) (net.Conn, error)
	UserAgent   string // default usher-relay
}

// Sink is a receiver. It implements relay.Sink.
type Sink struct {
	url    string
	opts   Options
	client *http.Client
	slots  chan struct{}
	now    func() time.Time
}

var _ relay.Sink = (*Sink)(nil)

// New makes a sink of an http or https URL. Without Options.Dial only public addresses are reached.
func New(address string, opts Options) (*Sink, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, errors.New("relay: the webhook's url must be http://host/path or https://host/path, without user and password")
	}
	if opts.Concurrency <= 0 {
		opts.Concurrency = 16
	}
	if opts.Timeout <= 0 {
		opts.Timeout = 10 * time.Second
	}
	if opts.Dial == nil {
		opts.Dial = (&egress.Dialer{}).DialContext
	}
	if opts.UserAgent == "" {
		opts.UserAgent = "usher-relay"
	}
	return &Sink{
		url: address, opts: opts, slots: make(chan struct{}, opts.Concurrency), now: time.Now,
		client: &http.Client{
			Timeout: opts.Timeout, CheckRedirect: redirects,
			Transport: &http.Transport{ // no proxy: it would resolve and dial for itself
				DialContext: opts.Dial, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: opts.Concurrency, MaxConnsPerHost: opts.Concurrency,
				IdleConnTimeout: time.Minute, TLSHandshakeTimeout: opts.Timeout, MaxResponseHeaderBytes: 64 << 10,
			},
		},
	}, nil
}

// redirects follows at most three, as a POST (307, 308), and never from https to http. Where they lead is checked when it
// is dialled.
func redirects(req *http.Request, via []*http.Request) error {
	if len(via) > 3 || req.Method != http.MethodPost || via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return http.ErrUseLastResponse
	}
	return nil
}

// Limits implements relay.Sink.
func (s *Sink) Limits() relay.Limits { return relay.Limits{Events: 8 * s.opts.Concurrency} }

// Close implements relay.Sink.
func (s *Sink) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

// Send implements relay.Sink.
func (s *Sink) Send(ctx context.Context, b relay.Batch) []error {
	errs := make([]error, len(b.Events))
	var wg sync.WaitGroup
	for i := range b.Events {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			errs[i] = ctx.Err()
			continue
		}
		wg.Go(func() {
			defer func() { <-s.slots }()
			errs[i] = s.post(ctx, &b.Events[i], b.Fence)
		})
	}
	wg.Wait()
	return errs
}

func (s *Sink) post(ctx context.Context, e *relay.Event, fence uint64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(e.Payload))
	if err != nil {
		return err
	}
	h := req.Header
	h.Set("User-Agent", s.opts.UserAgent)
	h.Set("Content-Type", "application/json")
	if !json.Valid(e.Payload) {
		h.Set("Content-Type", "application/octet-stream")
	}
	h.Set("Usher-Event-Id", header(e.ID))
	h.Set("Usher-Event-Type", header(e.Type))
	h.Set("Usher-Event-Key", header(e.Key))
	h.Set("Usher-Attempt", strconv.Itoa(e.Attempt+1))
	if e.Late {
		h.Set("Usher-Event-Late", "true")
	}
	if fence != 0 {
		h.Set("Usher-Fence", strconv.FormatUint(fence, 10))
	}
	stamp := strconv.FormatInt(s.now().Unix(), 10)
	h.Set("Usher-Timestamp", stamp)
	if s.opts.Secret != "" {
		h.Set("Usher-Signature", "v1="+sign(s.opts.Secret, stamp, h.Get("Usher-Event-Id"), e.Payload))
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return s.unreached(err)
	}
	defer resp.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // what cannot be read is not needed: the status counts
	return verdict(resp, said)
}

// header makes foreign text safe for a header.
func header(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '_'
		}
		return r
	}, s)
}

// unreached leaves out the URL, which may hold a token.
func (s *Sink) unreached(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if egress.Refused(err) {
		return relay.Classed(relay.Denied, err)
	}
	return fmt.Errorf("the receiver does not answer: %w", err)
}

func verdict(resp *http.Response, said []byte) error {
	code := resp.StatusCode
	if code/100 == 2 {
		return nil
	}
	text := strings.TrimSpace(strings.ToValidUTF8(string(said[:min(len(said), 200)]), "?"))
	err := fmt.Errorf("the receiver answered %s: %q", resp.Status, text)
	after := retryAfter(resp.Header.Get("Retry-After"))
	switch {
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable && after > 0:
		return &relay.Error{Class: relay.Throttled, After: after, Err: err}
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code/100 == 5:
		return &relay.Error{Class: relay.Transient, After: after, Err: err}
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusNotFound, code == http.StatusMethodNotAllowed,
		code == http.StatusProxyAuthRequired, code == http.StatusGone, code/100 == 3, code/100 == 1:
		return relay.Classed(relay.Denied, err)
	}
	return relay.Classed(relay.Rejected, err)
}

// retryAfter reads seconds or a date, at most an hour.
func retryAfter(s string) time.Duration {
	var d time.Duration
	if n, err := strconv.Atoi(s); err == nil {
		d = time.Duration(min(n, 3600)) * time.Second
	} else if at, err := http.ParseTime(s); err == nil {
		d = time.Until(at)
	}
	return min(max(d, 0), time.Hour)
}
