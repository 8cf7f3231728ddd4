package web

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// hijacker hands out connections whose first reads bring what the client sent along with its handshake:
// ReverseProxy looks at the bare connection, and would lose it.
type hijacker struct {
	http.ResponseWriter
	taken bool
}

// Unwrap is for http.ResponseController.
func (h *hijacker) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// Hijack implements http.Hijacker.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.taken = true
	c := &upgraded{Conn: conn}
	if n := rw.Reader.Buffered(); n > 0 {
		c.early = make([]byte, n)
		_, _ = io.ReadFull(rw.Reader, c.early) // cannot fail: it is all there
	}
	return c, rw, nil
}

// upgraded is a connection after its upgrade.
type upgraded struct {
	net.Conn
	early []byte // read before the connection was taken over
}

func (c *upgraded) Read(p []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(p, c.early)
		if c.early = c.early[n:]; len(c.early) == 0 {
			c.early = nil
		}
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite says that nothing more comes, while the other direction may go on.
func (c *upgraded) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}

// WriteTo implements io.WriterTo: towards the origin.
func (c *upgraded) WriteTo(w io.Writer) (int64, error) { return copySmall(w, struct{ io.Reader }{c}) }

// ReadFrom implements io.ReaderFrom: from the origin.
func (c *upgraded) ReadFrom(r io.Reader) (int64, error) { return copySmall(c.Conn, r) }

// copySmall copies with a buffer that is as large as what comes at once: most sockets are silent for most of
// the time, and 32 KB for each direction, as io.Copy has, is what ten thousand of them cannot afford.
func copySmall(w io.Writer, r io.Reader) (n int64, err error) {
	buf := make([]byte, 1<<10)
	for {
		k, readErr := r.Read(buf)
		if k > 0 {
			m, writeErr := w.Write(buf[:k])
			n += int64(m)
			if writeErr != nil {
				return n, writeErr
			}
		}
		if readErr == io.EOF {
			return n, nil
		} else if readErr != nil {
			return n, readErr
		}
		if k == len(buf) && k < bufferSize {
			buf = make([]byte, 4*k)
		}
	}
}
