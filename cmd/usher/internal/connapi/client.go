// Package connapi is the command line's client of the service API for connections.
package connapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/keeper"
)

// Client asks one node. Safe for concurrent use.
type Client struct {
	base      string
	token     config.Secret
	tokenFrom string
	http      *http.Client
}

// New makes a client of base, as http://127.0.0.1:8081. tokenFrom says where the token came from; empty: there is none.
func New(base string, token config.Secret, tokenFrom string) (*Client, error) {
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is not the address of an admin listener; write it as http://127.0.0.1:8081", base)
	}
	return &Client{base: u.Scheme + "://" + u.Host, token: token, tokenFrom: tokenFrom, http: &http.Client{
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Base is the address that is asked.
func (c *Client) Base() string { return c.base }

// Connection is one, as the API shows it.
type Connection struct {
	ID           string            `json:"id"`
	URL          string            `json:"url"`
	HeaderNames  []string          `json:"header_names"`
	Subprotocols []string          `json:"subprotocols"`
	Desired      string            `json:"desired"`
	Cursor       keeper.CursorRule `json:"cursor"`
	Resume       keeper.Resume     `json:"resume"`
	Revision     uint64            `json:"revision"`
	Owner        *struct {
		Worker     string `json:"worker"`
		Generation uint64 `json:"generation"`
	} `json:"owner"`
	Fence   uint64 `json:"fence"`
	LastSeq int64  `json:"last_seq"`
	Problem string `json:"problem"`
	Live    *Live  `json:"live"`

	Raw json.RawMessage `json:"-"`
}

// Live is how the node that holds a connection sees it.
type Live struct {
	State     string    `json:"state"`
	Since     time.Time `json:"since"`
	Error     string    `json:"error"`
	Pending   int       `json:"pending"`
	LagMS     int64     `json:"lag_ms"`
	Blocked   bool      `json:"blocked"`
	PerSecond float64   `json:"messages_per_second"`
	Opened    int64     `json:"opened"`
}

// Keeper is the workers.
type Keeper struct {
	Workers []struct {
		Worker      string       `json:"worker"`
		Connections int          `json:"connections"`
		Cap         int          `json:"cap"`
		State       string       `json:"state"`
		Told        *keeper.Told `json:"told"`
	} `json:"workers"`
	Advice *keeper.Advice `json:"advice"`
}

// List reads all connections, page by page.
func (c *Client) List(ctx context.Context) ([]Connection, error) {
	list, after := []Connection{}, ""
	for {
		var page struct {
			Connections []json.RawMessage `json:"connections"`
			Next        string            `json:"next"`
		}
		if err := c.do(ctx, "GET", "/svc/v1/connections?limit=1000&after="+url.QueryEscape(after), nil, &page); err != nil {
			return nil, err
		}
		for _, raw := range page.Connections {
			var conn Connection
			if err := json.Unmarshal(raw, &conn); err != nil {
				return nil, err
			}
			conn.Raw = raw
			list = append(list, conn)
		}
		if after = page.Next; after == "" {
			return list, nil
		}
	}
}

func path(id string) string {
	parts := strings.Split(id, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "/svc/v1/connections/" + strings.Join(parts, "/")
}

// Get reads one.
func (c *Client) Get(ctx context.Context, id string) (conn Connection, err error) {
	if err = c.do(ctx, "GET", path(id), nil, &conn.Raw); err == nil {
		err = json.Unmarshal(conn.Raw, &conn)
	}
	return conn, err
}

// Put makes or changes one; headers nil leaves those there are.
func (c *Client) Put(ctx context.Context, id string, s keeper.Spec, headers map[string]string) (conn Connection, err error) {
	body := struct {
		keeper.Spec
		Headers *map[string]string `json:"headers,omitempty"`
	}{Spec: s}
	if headers != nil {
		body.Headers = &headers
	}
	return conn, c.do(ctx, "PUT", path(id), body, &conn)
}

// Delete removes one.
func (c *Client) Delete(ctx context.Context, id string) error {
	return c.do(ctx, "DELETE", path(id), nil, nil)
}

// Keeper reads the workers.
func (c *Client) Keeper(ctx context.Context) (k Keeper, err error) {
	return k, c.do(ctx, "GET", "/svc/v1/keeper", nil, &k)
}

func (c *Client) do(ctx context.Context, method, path string, body, out any) error {
	var payload io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		payload = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, payload)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if !c.token.Empty() {
		req.Header.Set("Authorization", "Bearer "+c.token.Reveal())
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("no usher answers at %s; start it with usher keep or usher serve, or give the address of its admin listener with --admin", c.base)
		}
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("reading the answer of %s: %w", c.base, err)
	}
	if resp.StatusCode >= 300 {
		return c.refusal(resp.StatusCode, data)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s answered %d, but not what usher answers; is --admin right? (%w)", c.base+path, resp.StatusCode, err)
	}
	return nil
}

func (c *Client) refusal(status int, data []byte) error {
	var doc struct {
		Code   string `json:"code"`
		Detail string `json:"detail"`
	}
	_ = json.Unmarshal(data, &doc)
	switch {
	case status == http.StatusUnauthorized && c.tokenFrom == "":
		return errors.New("the service API asks for a token: give one of service.tokens in USHER_SERVICE_TOKEN, or --config with the file that has it")
	case status == http.StatusUnauthorized:
		return fmt.Errorf("the service token was refused; it came from %s", c.tokenFrom)
	case status == http.StatusNotFound && doc.Code == "not_found":
		return fmt.Errorf("the usher at %s keeps no connections; add keeper: {} to its file", c.base)
	case doc.Detail == "":
		return fmt.Errorf("%s answered %d; is it the admin listener of an usher? Give its address with --admin", c.base, status)
	}
	return fmt.Errorf("%s (%s)", doc.Detail, doc.Code)
}
