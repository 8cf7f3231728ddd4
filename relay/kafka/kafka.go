// Package kafka produces events to a topic, by an idempotent producer that waits for all in-sync replicas.
//
// Promise: an event is taken when the brokers have acknowledged it. The record's key is the event's key (the ticket's id),
// so those of one key are in one partition, in order; headers say usher-event-id, -type and -late. The producer's own
// repeats make no duplicates; the relay's, after a lost answer or a crash, do, with the same usher-event-id.
package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/ushergo/usher/relay"
)

// Options of Open.
type Options struct {
	Brokers   []string // host:port, to begin with
	Topic     string   // must exist
	TLS       bool
	Username  string // empty: no SASL
	Password  string
	Mechanism string // plain, scram-sha-256, scram-sha-512 (default)
	// Timeout is how long the producer tries by itself, before the relay does; default 10 s.
	Timeout time.Duration
}

// Sink is a topic. It implements relay.Sink.
type Sink struct {
	client *kgo.Client
	topic  string
}

var _ relay.Sink = (*Sink)(nil)

// Open makes a sink. Nothing is connected to yet.
func Open(o Options) (*Sink, error) {
	if len(o.Brokers) == 0 || o.Topic == "" {
		return nil, errors.New("relay: kafka needs brokers and a topic")
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(o.Brokers...), kgo.ClientID("usher-relay"), kgo.DefaultProduceTopic(o.Topic),
		kgo.RequiredAcks(kgo.AllISRAcks()), // idempotent, which is the default and needs all
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.RecordDeliveryTimeout(o.Timeout), kgo.ProduceRequestTimeout(o.Timeout),
		kgo.UnknownTopicRetries(2), kgo.ProducerLinger(0), kgo.MetadataMinAge(250 * time.Millisecond), // else an error costs five seconds
	}
	if o.TLS {
		opts = append(opts, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	if o.Username != "" {
		m, err := mechanism(o)
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.SASL(m))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("relay: kafka: %w", err)
	}
	return &Sink{client, o.Topic}, nil
}

func mechanism(o Options) (sasl.Mechanism, error) {
	auth := scram.Auth{User: o.Username, Pass: o.Password}
	switch o.Mechanism {
	case "", "scram-sha-512":
		return auth.AsSha512Mechanism(), nil
	case "scram-sha-256":
		return auth.AsSha256Mechanism(), nil
	case "plain":
		return plain.Auth{User: o.Username, Pass: o.Password}.AsMechanism(), nil
	}
	return nil, fmt.Errorf("relay: kafka: mechanism %q: use plain, scram-sha-256 or scram-sha-512", o.Mechanism)
}

// Limits implements relay.Sink. Brokers take batches of 1 MiB unless told otherwise.
func (s *Sink) Limits() relay.Limits { return relay.Limits{Bytes: 4 << 20, EventBytes: 1_000_000} }

// Close implements relay.Sink.
func (s *Sink) Close() error {
	s.client.Close()
	return nil
}

// Send implements relay.Sink.
func (s *Sink) Send(ctx context.Context, b relay.Batch) []error {
	records := make([]*kgo.Record, len(b.Events))
	for i := range b.Events {
		e := &b.Events[i]
		records[i] = &kgo.Record{
			Key: []byte(e.Key), Value: e.Payload, Timestamp: e.At,
			Headers: []kgo.RecordHeader{{Key: "usher-event-id", Value: []byte(e.ID)}, {Key: "usher-event-type", Value: []byte(e.Type)}},
		}
		if e.Late {
			records[i].Headers = append(records[i].Headers, kgo.RecordHeader{Key: "usher-event-late", Value: []byte("true")})
		}
	}
	errs := make([]error, len(records))
	done := make(chan struct{}, len(records))
	for i, r := range records {
		s.client.Produce(ctx, r, func(_ *kgo.Record, err error) {
			errs[i] = classed(err)
			done <- struct{}{}
		})
	}
	for range records { // each ends: with the brokers' answer, ctx, or the delivery timeout
		<-done
	}
	return errs
}

func classed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.RecordListTooLarge), errors.Is(err, kerr.InvalidTimestamp):
		return relay.Classed(relay.Rejected, err)
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed), errors.Is(err, kerr.SaslAuthenticationFailed),
		errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.InvalidTopicException), errors.Is(err, kerr.UnsupportedSaslMechanism):
		return relay.Classed(relay.Denied, err)
	case errors.Is(err, kerr.ThrottlingQuotaExceeded), errors.Is(err, kgo.ErrMaxBuffered):
		return relay.Classed(relay.Throttled, err)
	}
	return err
}
