package web

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// originConn is a connection to an origin that must take what it is sent. http.Transport begins to wait for an answer
// when the request has left, so an origin that stops reading an upload would be waited for for ever, and nobody
// would notice that the visitor has gone: net/http looks for that when her body has been read.
type originConn struct {
	*net.TCPConn // with its CloseWrite, by which half a tunnel is closed
	within       time.Duration
	until        atomic.Int64 // the deadline set last, Unix ns
}

// dialOrigin makes connections on which each write must end within a time, or twice that.
func dialOrigin(within time.Duration) func(context.Context, string, string) (net.Conn, error) {
	d := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, addr)
		if tcp, ok := c.(*net.TCPConn); ok {
			return &originConn{TCPConn: tcp, within: within}, nil
		}
		return c, err
	}
}

func (c *originConn) Write(p []byte) (int, error) {
	// To set a deadline costs more than to look at the clock, so it is set for twice the time, and left until half of
	// that has passed.
	if now := time.Now(); now.Add(c.within).UnixNano() > c.until.Load() {
		until := now.Add(2 * c.within)
		c.until.Store(until.UnixNano())
		_ = c.SetWriteDeadline(until)
	}
	return c.TCPConn.Write(p)
}

// ReadFrom implements io.ReaderFrom in place of the embedded one, which would not come by Write.
func (c *originConn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c}, r)
}
