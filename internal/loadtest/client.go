package loadtest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// The load comes from an HTTP/1.1 client of our own, because net/http's hides the server: with its two goroutines and
// four hand-overs a connection, an exchange costs 97 µs of CPU against 45 µs with this one, both with the same net/http
// server's share inside (BenchmarkClient, 2 cores), and on a machine that runs both ends that CPU is taken from the
// server. This one writes and reads in the caller's goroutine. It knows what our API and a proxied page need (lengths,
// chunks, interim answers, closes) and refuses the rest; everything it reads is bounded.

const (
	maxHeaderBytes = 64 << 10
	keptBody       = 64 << 10 // of an answer, for decoding; what is longer is read and dropped
	maxBody        = 64 << 20
)

var (
	errMalformed = errors.New("malformed answer")
	errTooLarge  = errors.New("answer too large")
)

// target is where all requests of a run go.
type target struct {
	addr    string      // host:port to dial
	host    string      // Host header
	tls     *tls.Config // nil for http
	base    string      // path before /v1/…: "" or "/.usher"
	origin  string      // path before a proxied page: the URL's own path
	timeout time.Duration

	mu    sync.Mutex
	conns map[*conn]struct{} // open ones, so that an interruption can cut short what they wait for
	dead  bool
}

func newTarget(u *url.URL, host string, insecure bool, timeout time.Duration) *target {
	t := &target{host: u.Host, origin: trimSlash(u.EscapedPath()), timeout: timeout, conns: map[*conn]struct{}{}}
	if host != "" {
		t.host = host
	}
	port := u.Port()
	if port == "" {
		port = "80"
		if u.Scheme == "https" {
			port = "443"
		}
	}
	t.addr = net.JoinHostPort(u.Hostname(), port)
	if u.Scheme == "https" {
		name := t.host
		if h, _, err := net.SplitHostPort(name); err == nil {
			name = h
		}
		t.tls = &tls.Config{ServerName: name, InsecureSkipVerify: insecure, NextProtos: []string{"http/1.1"}}
	}
	return t
}

func trimSlash(p string) string {
	for len(p) > 0 && p[len(p)-1] == '/' {
		p = p[:len(p)-1]
	}
	return p
}

// interrupt makes every exchange under way, and every later one, fail at once, until revive.
func (t *target) interrupt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dead = true
	for c := range t.conns {
		c.nc.SetDeadline(time.Unix(1, 0))
	}
}

func (t *target) revive() {
	t.mu.Lock()
	t.dead = false
	t.mu.Unlock()
}

func (t *target) open() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.conns)
}

// request is one exchange to make. Header lines must be clean: they come from our own code and flags that are checked.
type request struct {
	method string
	path   string // as sent, escaped
	ticket string
	from   string // X-Forwarded-For, when not empty
	accept string // default application/json
	body   []byte // JSON
}

// response is what came back. body is valid until the connection's next exchange.
type response struct {
	status     int
	retryAfter time.Duration
	location   string
	body       []byte
}

// conn is one keep-alive connection, dialled when first needed and again after it broke. It is used by one goroutine.
type conn struct {
	t    *target
	nc   net.Conn
	br   *bufio.Reader
	buf  []byte
	body bytes.Buffer
	used bool // an exchange succeeded on this connection
}

func (t *target) conn() *conn { return &conn{t: t} }

func (c *conn) close() {
	if c.nc == nil {
		return
	}
	c.t.mu.Lock()
	delete(c.t.conns, c)
	c.t.mu.Unlock()
	c.nc.Close()
	c.nc, c.used = nil, false
}

func (c *conn) dial() error {
	d := net.Dialer{Timeout: c.t.timeout}
	nc, err := d.DialContext(context.Background(), "tcp", c.t.addr)
	if err != nil {
		return err
	}
	if c.t.tls != nil {
		nc = tls.Client(nc, c.t.tls)
	}
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if c.t.dead {
		nc.Close()
		return context.Canceled
	}
	c.nc = nc
	c.t.conns[c] = struct{}{}
	if c.br == nil {
		c.br = bufio.NewReaderSize(nc, 4<<10)
	} else {
		c.br.Reset(nc)
	}
	return nil
}

// do makes one exchange. A kept connection that the server had closed meanwhile is replaced once: every request of
// ours may be repeated, since enter carries its request id.
func (c *conn) do(r *request) (response, error) {
	reused := c.nc != nil && c.used
	resp, err := c.once(r)
	if err != nil && reused && staleConnection(err) {
		resp, err = c.once(r)
	}
	return resp, err
}

func staleConnection(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func (c *conn) once(r *request) (response, error) {
	resp, keep, err := c.send(r)
	if err == nil && resp.status != 0 {
		var ended bool
		if ended, err = c.readBody(&resp, keep); ended {
			keep.close = true
		}
	}
	if err != nil || keep.close {
		c.close()
	} else {
		c.used = true
	}
	return resp, err
}

// framing says how an answer's body ends.
type framing struct {
	length  int64 // -1: not given
	chunked bool
	close   bool
}

// send writes the request and reads the answer's head.
func (c *conn) send(r *request) (response, framing, error) {
	if c.nc == nil {
		if err := c.dial(); err != nil {
			return response{}, framing{}, err
		}
	}
	if err := c.arm(c.t.timeout); err != nil {
		return response{}, framing{}, err
	}
	c.buf = r.append(c.buf[:0], c.t.host)
	if _, err := c.nc.Write(c.buf); err != nil {
		return response{}, framing{}, err
	}
	for {
		resp, f, err := c.readHead()
		if err != nil || resp.status >= 200 {
			return resp, f, err
		}
	}
}

// arm sets the time by which the exchange must be over, unless the run was interrupted.
func (c *conn) arm(d time.Duration) error {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if c.t.dead {
		return context.Canceled
	}
	return c.nc.SetDeadline(time.Now().Add(d))
}

func (r *request) append(b []byte, host string) []byte {
	b = append(b, r.method...)
	b = append(b, ' ')
	b = append(b, r.path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, host...)
	b = append(b, "\r\nUser-Agent: usher-bench\r\nAccept: "...)
	if r.accept != "" {
		b = append(b, r.accept...)
	} else {
		b = append(b, "application/json"...)
	}
	if r.ticket != "" {
		b = append(b, "\r\nUsher-Ticket: "...)
		b = append(b, r.ticket...)
	}
	if r.from != "" {
		b = append(b, "\r\nX-Forwarded-For: "...)
		b = append(b, r.from...)
	}
	if r.body != nil {
		b = append(b, "\r\nContent-Type: application/json"...)
	}
	if r.method == "POST" {
		b = append(b, "\r\nContent-Length: "...)
		b = strconv.AppendInt(b, int64(len(r.body)), 10)
	}
	b = append(b, "\r\n\r\n"...)
	return append(b, r.body...)
}

func (c *conn) readHead() (response, framing, error) {
	resp, f := response{}, framing{length: -1}
	line, err := c.readLine()
	if err != nil {
		return resp, f, err
	}
	// HTTP/1.x NNN reason
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[8] != ' ' {
		return resp, f, fmt.Errorf("%w: not HTTP/1.1", errMalformed)
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil || status < 100 || status > 599 {
		return resp, f, fmt.Errorf("%w: bad status", errMalformed)
	}
	resp.status = status
	f.close = line[7] == '0'
	for total := 0; ; {
		if line, err = c.readLine(); err != nil {
			return resp, f, noEOF(err)
		}
		if len(line) == 0 {
			break
		}
		if total += len(line); total > maxHeaderBytes {
			return resp, f, fmt.Errorf("%w: headers", errTooLarge)
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return resp, f, fmt.Errorf("%w: header without a colon", errMalformed)
		}
		if err := header(&resp, &f, name, bytes.TrimSpace(value)); err != nil {
			return resp, f, err
		}
	}
	if status < 200 || status == 204 || status == 304 {
		f.length, f.chunked = 0, false
	}
	return resp, f, nil
}

func header(resp *response, f *framing, name, value []byte) error {
	switch {
	case fold(name, "content-length"):
		n, err := strconv.ParseInt(string(value), 10, 64)
		if err != nil || n < 0 || f.length >= 0 && f.length != n {
			return fmt.Errorf("%w: bad Content-Length", errMalformed)
		}
		f.length = n
	case fold(name, "transfer-encoding"):
		if !fold(value, "chunked") {
			return fmt.Errorf("%w: Transfer-Encoding other than chunked", errMalformed)
		}
		f.chunked = true
	case fold(name, "connection"):
		if fold(value, "close") {
			f.close = true
		}
	case fold(name, "retry-after"):
		if n, err := strconv.Atoi(string(value)); err == nil && n >= 0 {
			resp.retryAfter = time.Duration(min(n, 3600)) * time.Second
		}
	case fold(name, "location"):
		resp.location = string(value)
	}
	return nil
}

// fold compares without regard to ASCII case; want is in lower case.
func fold(b []byte, want string) bool {
	if len(b) != len(want) {
		return false
	}
	for i := range b {
		c := b[i]
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != want[i] {
			return false
		}
	}
	return true
}

// readLine reads one line without its end. The line is valid until the next read.
func (c *conn) readLine() ([]byte, error) {
	line, err := c.br.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		// Rare: a header line longer than the buffer, such as a big policy header. Read it whole, bounded.
		long := bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			if len(long) > maxHeaderBytes {
				return nil, fmt.Errorf("%w: header line", errTooLarge)
			}
			line, err = c.br.ReadSlice('\n')
			long = append(long, line...)
		}
		line = long
	}
	if err != nil {
		if len(line) > 0 {
			err = noEOF(err)
		}
		return nil, err
	}
	return bytes.TrimRight(line, "\r\n"), nil
}

// noEOF marks an end in the middle of an answer, which must not be taken for a connection that was closed while idle.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readBody reads the whole body and keeps its beginning. ended: it was framed by the end of the connection.
func (c *conn) readBody(resp *response, f framing) (ended bool, err error) {
	c.body.Reset()
	var r io.Reader
	switch {
	case f.chunked:
		r = httputil.NewChunkedReader(c.br)
	case f.length >= 0:
		if f.length > maxBody {
			return false, fmt.Errorf("%w: body", errTooLarge)
		}
		r = io.LimitReader(c.br, f.length)
	default:
		r, ended = c.br, true
	}
	kept, err := io.CopyN(&c.body, r, keptBody)
	if err == nil {
		var rest int64
		rest, err = io.Copy(io.Discard, io.LimitReader(r, maxBody))
		if kept += rest; rest == maxBody {
			return ended, fmt.Errorf("%w: body", errTooLarge)
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return ended, err
	}
	if !f.chunked && f.length >= 0 && kept < f.length {
		return ended, io.ErrUnexpectedEOF
	}
	if f.chunked {
		// The chunked reader stops before the trailer; only an empty one is expected.
		for {
			line, err := c.readLine()
			if err != nil {
				return ended, noEOF(err)
			}
			if len(line) == 0 {
				break
			}
		}
	}
	resp.body = c.body.Bytes()
	return ended, nil
}
