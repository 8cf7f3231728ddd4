package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// asksForWebSocket says whether a request may become a tunnel; nothing else may.
func asksForWebSocket(h http.Header) bool {
	up := h["Upgrade"]
	return len(up) == 1 && strings.EqualFold(up[0], "websocket")
}

// bufferPool lends what bodies are copied through.
type bufferPool struct{ sync.Pool }

const bufferSize = 32 << 10

func (p *bufferPool) Get() []byte {
	if b, ok := p.Pool.Get().(*[bufferSize]byte); ok {
		return b[:]
	}
	return make([]byte, bufferSize)
}

func (p *bufferPool) Put(b []byte) {
	if len(b) == bufferSize {
		p.Pool.Put((*[bufferSize]byte)(b))
	}
}

// hijacker hands out connections whose first reads bring what came along with the handshake: ReverseProxy looks at the
// bare connection and would lose it.
type hijacker struct {
	http.ResponseWriter
	taken bool
	on    func(net.Conn)
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
	if h.on != nil { // a handler that reads from rw as it should
		h.on(conn)
		return conn, rw, nil
	}
	c := &tunnel{Conn: conn}
	if n := rw.Reader.Buffered(); n > 0 {
		c.early = make([]byte, n)
		_, _ = io.ReadFull(rw.Reader, c.early) // it is all there
	}
	return c, rw, nil
}

// tunnel is a client's connection after its upgrade. It has no CloseWrite on purpose: a WebSocket of which one side is gone
// is over, and must not hold a descriptor until the other side sees it.
type tunnel struct {
	net.Conn
	early []byte // read before the connection was taken over
}

func (c *tunnel) Read(p []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(p, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}
