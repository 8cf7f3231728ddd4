package crowd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const maxAnswer = 1 << 20

// newClient gives the transport that a whole crowd shares. It follows no
// redirect (each step is the visitor's) and keeps no cookies (each has its own).
func newClient(conns int) *http.Client {
	return &http.Client{
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			MaxConnsPerHost:     conns,
			MaxIdleConnsPerHost: conns,
			MaxIdleConns:        conns,
			IdleConnTimeout:     60 * time.Second,
			TLSHandshakeTimeout: 5 * time.Second,
			DisableCompression:  true,
		},
	}
}

// jar is a visitor's cookies for the one host there is. Two tabs share it.
type jar struct {
	mu  sync.Mutex
	all []*http.Cookie // few: a list is smaller than a map
}

func (j *jar) header() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var b strings.Builder
	for i, c := range j.all {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(c.Name + "=" + c.Value)
	}
	return b.String()
}

func (j *jar) take(lines []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, line := range lines {
		c, err := http.ParseSetCookie(line)
		if err != nil {
			continue
		}
		gone := c.MaxAge < 0 || (!c.Expires.IsZero() && c.Expires.Before(time.Now()))
		found := false
		for i, old := range j.all {
			if old.Name != c.Name {
				continue
			}
			if found = true; gone {
				j.all = append(j.all[:i], j.all[i+1:]...)
			} else {
				old.Value = c.Value
			}
			break
		}
		if !found && !gone {
			j.all = append(j.all, &http.Cookie{Name: c.Name, Value: c.Value})
		}
	}
}

type answer struct {
	code   int
	header http.Header
	body   string
}

// retryAfter is what the server asks for, within reason.
func (a answer) retryAfter() time.Duration {
	s, err := strconv.Atoi(a.header.Get("Retry-After"))
	if err != nil || s < 1 {
		s = 1
	}
	return time.Duration(min(s, 10)) * time.Second
}

// view is the part of a ticket's state that a visitor looks at.
type view struct {
	TicketID      string `json:"ticket_id"`
	State         string `json:"state"`
	Seq           int64  `json:"seq"`
	Place         *int64 `json:"place"` // null in a random draw and before the opening
	PollAfterMs   int64  `json:"poll_after_ms"`
	PresenceAfter int64  `json:"presence_after_ms"`
}

// problem is the part of an error that a visitor looks at.
type problem struct {
	Code   string `json:"code"`
	Reason string `json:"reason"`
	State  string `json:"state"`
}

func (a answer) view() (view, error) {
	var v view
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		return v, fmt.Errorf("status %d without a ticket's JSON: %w", a.code, err)
	}
	return v, nil
}

func (a answer) problem() (p problem) {
	_ = json.Unmarshal([]byte(a.body), &p) // an answer without a problem has an empty one
	return p
}

// api calls the room's API as a page of the site would.
func (v *visitor) api(ctx context.Context, method, call, body string) (answer, error) {
	return v.send(ctx, method, "/.usher/v1/rooms/"+v.c.opt.Room+"/"+call, body, http.Header{
		"Accept": {"application/json"}, "Content-Type": {"application/json"},
		"Origin": {v.c.opt.Base}, "Sec-Fetch-Site": {"same-origin"}, "Sec-Fetch-Mode": {"cors"}})
}

// open navigates to a page as a browser does.
func (v *visitor) open(ctx context.Context, path string) (answer, error) {
	return v.send(ctx, http.MethodGet, path, "", http.Header{
		"Accept": {"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}, "Accept-Language": {"en"},
		"Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}, "Sec-Fetch-Site": {"same-origin"}})
}

// submit posts a form as a browser does.
func (v *visitor) submit(ctx context.Context, path, form string) (answer, error) {
	return v.send(ctx, http.MethodPost, path, form, http.Header{
		"Accept": {"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}, "Accept-Language": {"en"},
		"Content-Type": {"application/x-www-form-urlencoded"}, "Origin": {v.c.opt.Base},
		"Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}, "Sec-Fetch-Site": {"same-origin"}})
}

func (v *visitor) send(ctx context.Context, method, path, body string, h http.Header) (answer, error) {
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, v.c.opt.Base+path, rd)
	if err != nil {
		return answer{}, err
	}
	h.Set("User-Agent", "usher-crowd")
	if body == "" {
		h.Del("Content-Type")
	}
	if c := v.jar.header(); c != "" {
		h.Set("Cookie", c)
	}
	req.Header = h
	v.c.tally.requests.Add(1)
	res, err := v.c.client.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			v.c.tally.errors.Add(1)
		}
		return answer{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		v.c.tally.errors.Add(1)
		return answer{}, err
	}
	if res.StatusCode >= 500 {
		v.c.tally.errors.Add(1)
	}
	v.jar.take(res.Header["Set-Cookie"])
	return answer{res.StatusCode, res.Header, string(b)}, nil
}
