package web

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

type connKey struct{}

// ConnContext is for http.Server's field of that name on the public listener. It lets event streams notice that a
// visitor's network has gone: without it her stream is a sign of life for as long as the kernel repeats
// itself, a quarter of an hour.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// unheardAfter is how long what was written to a stream may go without the other side's acknowledgement.
const unheardAfter = 30 * time.Second

// cutUnheard makes the kernel end a stream's connection when nobody acknowledges what is written to it.
func cutUnheard(ctx context.Context) {
	c, _ := ctx.Value(connKey{}).(net.Conn)
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if t, ok := c.(*net.TCPConn); ok {
		setUserTimeout(t, unheardAfter)
	}
}
