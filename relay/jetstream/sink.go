package jetstream

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ushergo/usher/relay"
)

// DefaultSubject is where events are published unless SinkOptions says otherwise.
const DefaultSubject = "usher.{partition}.{type}"

// SinkOptions of OpenSink.
type SinkOptions struct {
	Connection
	// Subject is where events are published; a stream must take it. {partition} (the room), {type} and {key} (the ticket's
	// id) stand for the event's. Default DefaultSubject.
	Subject string
}

// Sink publishes events. It implements relay.Sink.
type Sink struct {
	*conn
	subject string
}

var _ relay.Sink = (*Sink)(nil)

// OpenSink makes a sink. It does not wait for a server.
func OpenSink(o SinkOptions) (*Sink, error) {
	if o.Subject == "" {
		o.Subject = DefaultSubject
	}
	if s := (&Sink{subject: o.Subject}).place("p", "t", "k"); strings.ContainsAny(s, " \t\r\n*>{}") || strings.HasPrefix(s, ".") || strings.HasSuffix(s, ".") || strings.Contains(s, "..") {
		return nil, errors.New("relay: jetstream: subject " + o.Subject + ": use words with dots between, {partition}, {type} and {key}, and no wildcards")
	}
	c, err := connect(o.Connection)
	if err != nil {
		return nil, err
	}
	return &Sink{c, o.Subject}, nil
}

// Limits implements relay.Sink.
func (s *Sink) Limits() relay.Limits {
	most := s.nc.MaxPayload()
	if most <= 0 { // not connected yet: the server's default
		most = 1 << 20
	}
	const headers = 2048 // of ours, in the same message
	return relay.Limits{Events: 4000, Bytes: 4 << 20, EventBytes: int(max(most-headers, 1))}
}

// Close implements relay.Sink.
func (s *Sink) Close() error {
	s.nc.Close()
	return nil
}

// Send implements relay.Sink. All are on their way before the first is waited for: no two of a batch have one key.
func (s *Sink) Send(ctx context.Context, b relay.Batch) []error {
	errs := make([]error, len(b.Events))
	acks := make([]jetstream.PubAckFuture, len(b.Events))
	for i := range b.Events {
		e := &b.Events[i]
		m := &nats.Msg{Subject: s.place(b.Partition, e.Type, e.Key), Data: e.Payload, Header: nats.Header{
			jetstream.MsgIDHeader: {e.ID}, HeaderKey: {e.Key}, HeaderType: {e.Type}, HeaderAt: {e.At.UTC().Format(time.RFC3339Nano)},
		}}
		if e.Late {
			m.Header.Set(HeaderLate, "true")
		}
		acks[i], errs[i] = s.js.PublishMsgAsync(m)
	}
	for i, ack := range acks {
		if errs[i] == nil {
			errs[i] = wait(ctx, ack)
		}
		errs[i] = s.classed(errs[i])
	}
	return errs
}

func wait(ctx context.Context, ack jetstream.PubAckFuture) error {
	select {
	case <-ack.Ok():
		return nil
	case err := <-ack.Err():
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Sink) place(partition, kind, key string) string {
	return strings.NewReplacer("{partition}", word(partition), "{type}", word(kind), "{key}", word(key)).Replace(s.subject)
}

// word makes one word of a subject: what has a meaning there is replaced.
func word(s string) string {
	if s == "" {
		return "_"
	}
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r == '.' || r == '*' || r == '>' || r == 0x7f {
			return '_'
		}
		return r
	}, s)
}
