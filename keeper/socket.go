package keeper

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
)

// socket is one open WebSocket. read is for one goroutine; the others are safe for concurrent use.
type socket struct {
	conn    net.Conn
	r       wsutil.Reader
	silence time.Duration // the most without a byte, while read

	writing sync.Mutex // frames must not mix
	closed  bool       // a close frame has been sent
}

const (
	readBuffer = 4 << 10
	writeTime  = 10 * time.Second // for a small frame; nobody reads there if it does not fit
)

// dialing is what a dial needs.
type dialing struct {
	netDial  func(ctx context.Context, network, addr string) (net.Conn, error)
	tls      *tls.Config
	timeout  time.Duration
	silence  time.Duration
	maxBytes int64
}

// statusError is an answer to the handshake that is not 101.
type statusError struct {
	status int
	retry  time.Duration // its Retry-After; 0: none
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the upstream answered %d %s, not 101", e.status, http.StatusText(e.status))
}

// lasting reports whether the same request will hardly do better soon.
func (e *statusError) lasting() bool {
	switch e.status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return e.status >= 400 && e.status < 500
}

// dial connects and shakes hands, and sends the first message.
func (d *dialing) dial(ctx context.Context, s *Spec, p place) (*socket, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	header := http.Header{}
	for k, v := range s.Headers {
		header.Set(k, v)
	}
	for k, v := range s.Resume.Headers {
		header.Set(k, p.fill(v, plain))
	}
	var refused *statusError
	wd := ws.Dialer{
		NetDial: d.netDial, TLSConfig: d.tls, Protocols: s.Subprotocols, Header: ws.HandshakeHeaderHTTP(header),
		OnStatusError: func(status int, _ []byte, resp io.Reader) {
			refused = &statusError{status: status}
			r := textproto.NewReader(bufio.NewReader(io.LimitReader(resp, 16<<10)))
			if _, err := r.ReadLine(); err == nil {
				if h, err := r.ReadMIMEHeader(); err == nil || len(h) > 0 {
					refused.retry = retryAfter(h.Get("Retry-After"))
				}
			}
		},
	}
	conn, br, shake, err := wd.Dial(ctx, p.url(s))
	if err != nil {
		if refused != nil {
			return nil, refused
		}
		return nil, err
	}
	if len(s.Subprotocols) > 0 && shake.Protocol == "" {
		_ = conn.Close()
		return nil, fmt.Errorf("the upstream takes none of the subprotocols %s", strings.Join(s.Subprotocols, ", "))
	}
	sock := &socket{conn: conn, silence: d.silence}
	if br != nil && br.Buffered() > 0 { // it sent frames behind the handshake at once: read these first
		first := make([]byte, br.Buffered())
		_, _ = io.ReadFull(br, first)
		sock.r.Source = bufio.NewReaderSize(io.MultiReader(strings.NewReader(string(first)), conn), readBuffer)
	} else {
		sock.r.Source = bufio.NewReaderSize(conn, readBuffer)
	}
	if br != nil {
		ws.PutReader(br)
	}
	sock.r.State = ws.StateClientSide
	sock.r.CheckUTF8 = true
	sock.r.MaxFrameSize, sock.r.MaxMessageSize = d.maxBytes, d.maxBytes
	sock.r.OnIntermediate = sock.control
	if first := p.fill(s.Resume.Message, plain); first != "" {
		if err := sock.write(ws.OpText, []byte(first)); err != nil {
			sock.close(ws.StatusNormalClosure)
			return nil, fmt.Errorf("the first message was not sent: %w", err)
		}
	}
	return sock, nil
}

// retryAfter reads delta seconds or a date; at most an hour.
func retryAfter(text string) time.Duration {
	if n, err := strconv.Atoi(strings.TrimSpace(text)); err == nil && n > 0 {
		return time.Duration(min(n, 3600)) * time.Second
	}
	if t, err := http.ParseTime(text); err == nil {
		return min(max(time.Until(t), 0), time.Hour)
	}
	return 0
}

// closeError says that the upstream closed.
type closeError struct {
	code   ws.StatusCode
	reason string
}

func (e *closeError) Error() string {
	if e.reason == "" {
		return fmt.Sprintf("the upstream closed the connection with %d", e.code)
	}
	return fmt.Sprintf("the upstream closed the connection with %d: %q", e.code, e.reason)
}

var errSilent = errors.New("nothing came from the upstream, no answer to a ping either")

// read waits for the next message. Pings are answered meanwhile. The time spent between two reads counts against nobody.
func (s *socket) read() (data []byte, binary bool, err error) {
	for {
		if err := s.conn.SetReadDeadline(time.Now().Add(s.silence)); err != nil {
			return nil, false, err
		}
		h, err := s.r.NextFrame()
		if err != nil {
			return nil, false, s.explain(err)
		}
		if h.OpCode.IsControl() {
			if err := s.control(h, &s.r); err != nil {
				return nil, false, s.explain(err)
			}
			continue
		}
		// Fragments and long frames: the deadline moves on with each piece.
		data := make([]byte, 0, min(h.Length, 64<<10))
		for {
			if len(data) == cap(data) {
				data = append(data, 0)[:len(data)]
			}
			n, err := s.r.Read(data[len(data):min(cap(data), len(data)+64<<10)])
			data = data[:len(data)+n]
			if err == io.EOF {
				break
			}
			if err != nil {
				return nil, false, s.explain(err)
			}
			if n > 0 {
				if err := s.conn.SetReadDeadline(time.Now().Add(s.silence)); err != nil {
					return nil, false, err
				}
			}
		}
		return data, h.OpCode == ws.OpBinary, nil
	}
}

func (s *socket) explain(err error) error {
	var ne net.Error
	switch {
	case errors.As(err, &ne) && ne.Timeout():
		return errSilent
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the upstream cut the connection")
	case errors.Is(err, wsutil.ErrMessageTooLarge), errors.Is(err, wsutil.ErrFrameTooLarge):
		return fmt.Errorf("a message is over %d bytes; raise max_message: %w", s.r.MaxMessageSize, err)
	}
	return err
}

// control deals with a control frame whose body is in r.
func (s *socket) control(h ws.Header, r io.Reader) error {
	body := make([]byte, h.Length) // at most 125: the reader has checked
	if _, err := io.ReadFull(r, body); err != nil && !(h.Length == 0 && err == io.EOF) {
		return err
	}
	switch h.OpCode {
	case ws.OpPing:
		return s.write(ws.OpPong, body)
	case ws.OpClose:
		code, reason := ws.ParseCloseFrameData(body)
		if code.Empty() {
			code = ws.StatusNoStatusRcvd
		}
		return &closeError{code, reason}
	}
	return nil
}

// ping asks the upstream for a sign of life.
func (s *socket) ping() error { return s.write(ws.OpPing, nil) }

func (s *socket) write(op ws.OpCode, body []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	return s.send(ws.NewFrame(op, true, body), writeTime)
}

// send is called with writing held.
func (s *socket) send(f ws.Frame, limit time.Duration) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	return ws.WriteFrame(s.conn, ws.MaskFrameInPlace(f))
}

// close says why and closes at once, without waiting for the upstream's answer: it may be gone, and many are closed at a
// stop. A read that waits ends.
func (s *socket) close(code ws.StatusCode) {
	const last = 300 * time.Millisecond
	_ = s.conn.SetWriteDeadline(time.Now().Add(last)) // a write that hangs ends soon
	s.writing.Lock()
	defer s.writing.Unlock()
	if !s.closed {
		s.closed = true
		_ = s.send(ws.NewCloseFrame(ws.NewCloseFrameBody(code, "")), last)
	}
	if t, ok := s.conn.(*tls.Conn); ok {
		_ = t.NetConn().Close() // its own Close may wait 5 s to say farewell
		return
	}
	_ = s.conn.Close()
}
