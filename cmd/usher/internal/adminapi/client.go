// Package adminapi is the command line's client of a running usher's admin API.
package adminapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ushergo/usher/config"
)

// maxAnswer bounds what is read of one answer.
const maxAnswer = 64 << 20

// Client asks the admin API at one address. Safe for concurrent use.
type Client struct {
	base  string
	token config.Secret
	// tokenFrom says where the token came from, for the error when it is refused.
	tokenFrom string
	http      *http.Client
	// visitors is set once the address has turned out to be the visitors' listener,
	// which must not be handed the token again: it may pass it on to the origin.
	visitors atomic.Bool
}

// New makes a client of base, as http://127.0.0.1:8081. tokenFrom names the
// token's origin ("USHER_ADMIN_TOKEN", a path), never the token.
func New(base string, token config.Secret, tokenFrom string) (*Client, error) {
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is not the address of an admin listener; write it as http://127.0.0.1:8081", base)
	}
	return &Client{
		base:      u.Scheme + "://" + u.Host,
		token:     token,
		tokenFrom: tokenFrom,
		http: &http.Client{
			Timeout: 30 * time.Second,
			// A token must not follow a redirect to somebody else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Base is the address that is asked.
func (c *Client) Base() string { return c.base }

// Error is a refusal: a problem document of the API.
type Error struct {
	Status int
	Code   string // stable, as room_not_found
	Detail string
	Mend   string
}

func (e *Error) Error() string {
	text := e.Detail
	if text == "" {
		text = fmt.Sprintf("the server answered %d %s", e.Status, e.Code)
	} else if e.Code != "" {
		text += " (" + e.Code + ")"
	}
	if e.Mend != "" {
		text += "; " + e.Mend
	}
	return text
}

// Do sends body (nil: none) as JSON and decodes the answer into out (nil:
// dropped). It returns the answer's ETag.
func (c *Client) Do(ctx context.Context, method, path string, header http.Header, body, out any) (etag string, err error) {
	if c.visitors.Load() {
		return "", c.notHere()
	}
	var payload io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return "", err
		}
		payload = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, payload)
	if err != nil {
		return "", err
	}
	for k, vs := range header {
		req.Header[k] = vs
	}
	req.Header.Set("Accept", "application/json")
	if body != nil && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if !c.token.Empty() {
		req.Header.Set("Authorization", "Bearer "+c.token.Reveal())
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return "", c.explain(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", fmt.Errorf("reading the answer of %s: %w", c.base, err)
	}
	if resp.StatusCode >= 300 {
		return "", c.refusal(resp.StatusCode, data)
	}
	if out != nil {
		if err := json.Unmarshal(data, out); err != nil {
			return "", fmt.Errorf("%s answered %d, but not what an admin listener of usher answers; is --admin right? (%w)", c.base+path, resp.StatusCode, err)
		}
	}
	return resp.Header.Get("ETag"), nil
}

// explain says what a failed connection most likely means.
func (c *Client) explain(err error) error {
	var dns *net.DNSError
	var authority x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no usher answers at %s; start it with usher serve, or give the address of its admin listener with --admin", c.base)
	case errors.As(err, &dns):
		return fmt.Errorf("there is no host %s; give the address of the admin listener with --admin", dns.Name)
	case errors.As(err, &authority):
		return fmt.Errorf("the certificate of %s is not known to this machine; add its authority to the system's, or use a name that it is for: %w", c.base, err)
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%s does not speak TLS; write --admin with http://", c.base)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s did not answer in time; is it an admin listener, and is the machine well?", c.base)
	}
	return err
}

// notHere is for an address that answers as usher's public listener does: it
// asks for tickets, or knows no such path.
func (c *Client) notHere() error {
	return fmt.Errorf("%s is the visitors' listener; give the admin one with --admin (unless told otherwise it is http://127.0.0.1:8081)", c.base)
}

func (c *Client) refusal(status int, data []byte) error {
	e := &Error{Status: status}
	var doc struct {
		Code   string `json:"code"`
		Title  string `json:"title"`
		Detail string `json:"detail"`
	}
	if json.Unmarshal(data, &doc) == nil {
		e.Code, e.Detail = doc.Code, doc.Detail
		if e.Detail == "" {
			e.Detail = doc.Title
		}
	}
	if status == http.StatusUnauthorized && strings.HasPrefix(e.Code, "ticket_") || status == http.StatusNotFound && e.Code == "not_found" {
		c.visitors.Store(true)
		return c.notHere()
	}
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		e.Detail, e.Code = "the admin token was refused", ""
		if c.tokenFrom == "" {
			e.Detail = "the admin API asks for a token"
			e.Mend = "set USHER_ADMIN_TOKEN, or give --token-file, or --data with the folder of the running usher"
		} else {
			e.Mend = "it came from " + c.tokenFrom
		}
	case http.StatusNotFound:
		if e.Code == "" {
			e.Detail = c.base + " is no admin listener of usher"
			e.Mend = "give its address with --admin"
		} else if e.Code == "room_not_found" {
			e.Mend = "usher rooms list shows those there are"
		}
	}
	return e
}
