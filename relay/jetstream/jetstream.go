// Package jetstream reads and writes streams of NATS JetStream.
//
// Promise of the sink: an event is taken when the stream's leader has acknowledged it. Nats-Msg-Id is the event's ID, so
// that within the stream's duplicate window (two minutes unless set) a repeated event is stored once; beyond it, twice
// with one ID. JetStream knows no fences: a zombie's last batch may be stored behind its successor's first, as
// duplicates.
//
// Promise of the source: every message of the stream, in order. Messages that the stream's limits removed before they
// were read, and a stream that was deleted and made anew, are told as gaps.
package jetstream

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ushergo/usher/relay"
)

// Connection says how servers are reached.
type Connection struct {
	// URL is one server or several, with commas between: nats://127.0.0.1:4222, tls://…. It may hold a user and a
	// password, or a token.
	URL string
	// Creds is the path of a credentials file; empty: none.
	Creds string
	// Logger is told of lost connections; nil: nobody.
	Logger *slog.Logger
}

// Headers of what the sink writes, beside Nats-Msg-Id.
const (
	HeaderKey  = "Usher-Key"
	HeaderType = "Usher-Event-Type"
	HeaderAt   = "Usher-Event-At" // RFC 3339, UTC
	HeaderLate = "Usher-Event-Late"
)

// conn is a connection that comes back by itself.
type conn struct {
	nc *nats.Conn
	js jetstream.JetStream
	// denied is the last refusal, which NATS tells apart from the call that it was about.
	denied atomic.Pointer[refusal]
}

type refusal struct {
	err error
	at  time.Time
}

// connect does not wait for a server: it is tried until one is there.
func connect(o Connection) (*conn, error) {
	if o.URL == "" {
		return nil, errors.New("relay: jetstream needs a url, as nats://127.0.0.1:4222")
	}
	for server := range strings.SplitSeq(o.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(server))
		if err != nil || u.Host == "" { // err may quote a password
			return nil, errors.New("relay: jetstream: url is not an address of NATS; write nats://host:4222")
		}
	}
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := new(conn)
	refused := func(err error) {
		if errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
			c.denied.Store(&refusal{err, time.Now()})
		}
	}
	opts := []nats.Option{
		nats.Name("usher-relay"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(250 * time.Millisecond), nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		nats.ReconnectBufSize(-1), // what cannot be sent is an error: the relay tries again, in order
		nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(2), nats.Timeout(5 * time.Second),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			refused(err)
			log.Debug("nats reports an error", "err", err)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("the connection to nats is lost", "err", err)
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { refused(err) }),
	}
	if o.Creds != "" {
		opts = append(opts, nats.UserCredentials(o.Creds))
	}
	nc, err := nats.Connect(o.URL, opts...)
	if err != nil {
		return nil, fmt.Errorf("relay: jetstream: %w", err)
	}
	if err := nc.LastError(); err != nil {
		refused(err)
	}
	c.nc = nc
	if c.js, err = jetstream.New(nc); err != nil {
		nc.Close()
		return nil, fmt.Errorf("relay: jetstream: %w", err)
	}
	return c, nil
}

// classed says whose fault an error is.
func (c *conn) classed(err error) error {
	if err == nil {
		return nil
	}
	if d := c.denied.Load(); d != nil && time.Since(d.at) < 10*time.Second {
		return relay.Errorf(relay.Denied, "%w (%w)", d.err, err)
	}
	if !c.nc.IsConnected() { // then err says that headers are not supported, or a buffer is full
		why := c.nc.LastError()
		if why == nil {
			why = nats.ErrDisconnected
		}
		return fmt.Errorf("no connection to nats: %w", why)
	}
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		switch api.ErrorCode {
		case 10054, 10097: // message or header beyond the stream's limit
			return relay.Classed(relay.Rejected, err)
		case 10023, 10047, 10077, 10167: // no storage, memory or messages left; too many in flight
			return relay.Classed(relay.Throttled, err)
		case jetstream.JSErrCodeStreamNotFound, jetstream.JSErrCodeJetStreamNotEnabledForAccount, jetstream.JSErrCodeJetStreamNotEnabled:
			return relay.Classed(relay.Denied, err)
		}
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrBadHeaderMsg):
		return relay.Classed(relay.Rejected, err)
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return relay.Errorf(relay.Denied, "no stream takes this subject (or it has no leader now): make one that does, as `nats stream add`: %w", err)
	case errors.Is(err, nats.ErrPermissionViolation), errors.Is(err, nats.ErrAuthorization):
		return relay.Classed(relay.Denied, err)
	}
	return err
}

var streamName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)
