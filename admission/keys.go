package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/token"
)

const (
	fetchEvery   = time.Minute     // no two fetches start within this
	refreshAfter = 5 * time.Minute // well within token.Lead, so that a new key is known before it signs
	fetchTimeout = 5 * time.Second
	maxBody      = 256 << 10
	maxRedirects = 3
	clocksDiffer = 5 * time.Second // less may be the network or the Date header's rounding
)

// keyCache holds usher's public keys and fetches them seldom.
type keyCache struct {
	url    *url.URL
	client *http.Client
	clock  func() time.Time
	log    *slog.Logger

	live atomic.Pointer[snapshot] // all that a request needs while the keys are known and young

	mu     sync.Mutex
	flight chan struct{} // closed when the fetch under way ends; nil when there is none
	tried  time.Time     // when the last fetch began
	failed error         // how it ended
}

// snapshot is one answer of usher. The zero value knows no key.
type snapshot struct {
	keys *token.PublicKeys
	at   time.Time
	// skew is how far this machine's clock was ahead of usher's at that time; 0 when unknown or too little to tell.
	skew time.Duration
}

func (s snapshot) verify(room, text string, now time.Time) (Admission, error) {
	if s.keys == nil {
		return (&token.PublicKeys{}).Verify(room, text, now)
	}
	return s.keys.Verify(room, text, now)
}

func (s snapshot) clockNote() string {
	switch {
	case s.skew > 0:
		return fmt.Sprintf(" When this server last fetched keys, its clock was %s ahead of usher's.", s.skew)
	case s.skew < 0:
		return fmt.Sprintf(" When this server last fetched keys, its clock was %s behind usher's.", -s.skew)
	}
	return ""
}

func newKeyCache(jwksURL string) (*keyCache, error) {
	u, err := url.Parse(jwksURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("admission: %q is not the address of usher's keys: give http(s)://host/.well-known/jwks.json", jwksURL)
	}
	return &keyCache{url: u, clock: time.Now, log: slog.Default()}, nil
}

// prepare sets the client up once the options are known.
func (c *keyCache) prepare() {
	client := http.Client{Timeout: fetchTimeout}
	if c.client != nil {
		client = *c.client // a copy: the caller's stays as it is
	}
	client.CheckRedirect = func(r *http.Request, via []*http.Request) error {
		if r.URL.Scheme != c.url.Scheme || r.URL.Host != c.url.Host {
			return fmt.Errorf("refusing to take keys from %s, to which %s redirects", r.URL.Host, c.url.Host)
		}
		if len(via) > maxRedirects {
			return errors.New("too many redirects")
		}
		return nil
	}
	c.client = &client
}

// forKey gives the keys to judge a token by that names kid. When kid is not known it waits for a fetch, if one is
// due or under way. An error means that the keys could not be had, so that nothing can be said about the token.
func (c *keyCache) forKey(ctx context.Context, kid string) (snapshot, error) {
	if s := c.live.Load(); s != nil && s.keys.Has(kid) {
		if c.clock().Sub(s.at) >= refreshAfter {
			c.fetch() // in the background; this request does not wait
		}
		return *s, nil
	}
	if done := c.fetch(); done != nil {
		select {
		case <-done:
		case <-ctx.Done():
			return snapshot{}, ctx.Err()
		}
	}
	s := c.live.Load()
	if s == nil || !s.keys.Has(kid) {
		c.mu.Lock()
		failed := c.failed
		c.mu.Unlock()
		if failed != nil { // the key may be a new one
			return snapshot{}, failed
		}
	}
	if s == nil {
		return snapshot{}, errors.New("no keys yet")
	}
	return *s, nil
}

// fetch starts a fetch, or joins the one under way, and gives the channel that closes when it ends; nil when the
// last one began less than fetchEvery ago.
func (c *keyCache) fetch() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flight != nil {
		return c.flight
	}
	now := c.clock()
	// A clock that was set back must not stop fetching until it has caught up.
	if since := now.Sub(c.tried); !c.tried.IsZero() && since >= 0 && since < fetchEvery {
		return nil
	}
	c.tried = now
	done := make(chan struct{})
	c.flight = done
	go func() {
		s, err := c.get()
		if err == nil {
			c.live.Store(s)
		} else {
			c.log.Error("admission: fetching the keys failed; those at hand go on being used", "url", c.url.Redacted(), "err", err, "have_keys", c.live.Load() != nil)
		}
		c.mu.Lock()
		c.flight, c.failed = nil, err
		c.mu.Unlock()
		close(done)
	}()
	return done
}

// get asks usher once. It has a deadline of its own: the request that caused it may go away.
func (c *keyCache) get() (*snapshot, error) {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	start := c.clock()
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	end := c.clock()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("usher answered %s", resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("the answer is longer than %d bytes", maxBody)
	}
	keys, err := token.ParseJWKS(body)
	if err != nil {
		return nil, err
	}
	s := &snapshot{keys: keys, at: end, skew: skew(resp.Header, start, end)}
	if s.skew.Abs() > token.Leeway/2 {
		c.log.Warn("admission: this clock and usher's differ; beyond "+token.Leeway.String()+" good tokens are refused: set both by NTP", "ahead_s", s.skew.Seconds())
	}
	return s, nil
}

// skew estimates how far this clock is ahead, from the Date of an answer that was asked for at start and came at
// end. A cache in between says how old the answer is.
func skew(h http.Header, start, end time.Time) time.Duration {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0
	}
	if age, err := strconv.Atoi(h.Get("Age")); err == nil && age > 0 {
		date = date.Add(time.Duration(age) * time.Second)
	}
	middle := start.Add(end.Sub(start) / 2)
	d := middle.Sub(date).Round(time.Second) // Date is cut to the second: right to a second, which will do
	if d.Abs() < clocksDiffer {
		return 0
	}
	return d
}

// nextTry is how long it takes until another fetch is allowed.
func (c *keyCache) nextTry() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(max(fetchEvery-c.clock().Sub(c.tried), time.Second), fetchEvery)
}
