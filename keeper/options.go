package keeper

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"
)

// Options of New. The zero value lacks a Sink and Dial.
type Options struct {
	// Sink is where messages are stored. Required.
	Sink Sink
	// Dial connects to upstreams; egress.Dialer's DialContext, which checks addresses. Required.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS of wss://. Default: the system's authorities.
	TLS *tls.Config

	// DialTimeout bounds one attempt, from name to handshake; default 10 s.
	DialTimeout time.Duration
	// Dials is how many are under way at once; default 64. More come to an upstream as a crowd after a take-over.
	Dials int
	// Ping is how often an upstream is asked for a sign of life; default 20 s.
	Ping time.Duration
	// Silence without a byte for so long ends a connection; default 45 s, at least twice Ping.
	Silence time.Duration
	// Reconnect is the bound of the first random pause, doubled with each failure to MaxReconnect; defaults 500 ms, 30 s.
	// An upstream that refuses for good (401, 404, …) is asked again at MaxReconnect.
	Reconnect, MaxReconnect time.Duration
	// MaxMessage is the longest message in bytes; default 1 MiB. A longer one ends the connection, each time it is sent.
	MaxMessage int64

	// Pending is how many messages of a connection may wait for the sink, and PendingBytes how many bytes (one message
	// may be over it); defaults 256 and 256 KiB. Then the connection is not read.
	Pending      int
	PendingBytes int
	// Lanes is how many calls of the sink are under way at once; default 4. A connection keeps to one.
	Lanes int
	// Batch is how many messages are stored in one call; default 500.
	Batch int
	// Linger is how long a call waits for more messages; default 10 ms.
	Linger time.Duration
	// StoreTimeout bounds one call; default 10 s.
	StoreTimeout time.Duration
	// Drain is how long a connection that ends waits for what it has read to be stored; default 1 s. What is not stored
	// by then is asked for again by the next owner.
	Drain time.Duration

	Logger *slog.Logger // default: discards
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&o.DialTimeout, 10*time.Second)
	num(&o.Dials, 64)
	def(&o.Ping, 20*time.Second)
	def(&o.Silence, max(45*time.Second, 2*o.Ping))
	def(&o.Reconnect, 500*time.Millisecond)
	def(&o.MaxReconnect, 30*time.Second)
	if o.MaxMessage == 0 {
		o.MaxMessage = 1 << 20
	}
	num(&o.Pending, 256)
	num(&o.PendingBytes, 256<<10)
	num(&o.Lanes, 4)
	num(&o.Batch, 500)
	def(&o.Linger, 10*time.Millisecond)
	def(&o.StoreTimeout, 10*time.Second)
	def(&o.Drain, time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Validate names the field that is out of bounds and its mend, wrapping ErrBadRequest.
func (o Options) Validate() error {
	o = o.withDefaults()
	switch {
	case o.Sink == nil:
		return bad("sink: is missing; say where messages are stored")
	case o.Dial == nil:
		return bad("dial: is missing; give (&egress.Dialer{}).DialContext")
	case o.Silence < 2*o.Ping:
		return bad("silence %v: at least two pings (%v), so that one may be lost", o.Silence, 2*o.Ping)
	case o.Reconnect > o.MaxReconnect:
		return bad("reconnect %v is above max reconnect %v", o.Reconnect, o.MaxReconnect)
	case o.MaxMessage < 125:
		return bad("max message %d: at least 125 bytes, which control frames may have", o.MaxMessage)
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"dial timeout", o.DialTimeout}, {"ping", o.Ping}, {"reconnect", o.Reconnect}, {"store timeout", o.StoreTimeout}, {"drain", o.Drain},
	} {
		if f.d < time.Millisecond {
			return bad("%s %v: at least 1ms", f.name, f.d)
		}
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"dials", o.Dials}, {"pending", o.Pending}, {"pending bytes", o.PendingBytes}, {"lanes", o.Lanes}, {"batch", o.Batch}} {
		if f.n < 1 {
			return bad("%s %d: at least 1", f.name, f.n)
		}
	}
	return nil
}
