package relays

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/egress"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/jetstream"
	"github.com/ushergo/usher/relay/kafka"
	"github.com/ushergo/usher/relay/kinesis"
	"github.com/ushergo/usher/relay/lines"
	"github.com/ushergo/usher/relay/redisstream"
	"github.com/ushergo/usher/relay/sqltable"
	"github.com/ushergo/usher/relay/sqs"
	"github.com/ushergo/usher/relay/webhook"
)

// means is what sources and sinks are made with.
type means struct {
	rooms  func(ids []string) (relay.Source, error) // nil: there are none here
	egress []netip.Prefix
	stdout io.Writer
}

// openSource makes the source of a relay. ctx bounds the opening alone.
func (m *means) openSource(ctx context.Context, r *config.Relay) (relay.Source, error) {
	from := &r.From
	switch kinds := from.Kinds(); {
	case len(kinds) != 1:
		return nil, fmt.Errorf("relay %s: from needs one source, and names %d", r.ID, len(kinds))
	case kinds[0] == "jetstream":
		return jetstream.OpenSource(jetstream.SourceOptions{
			Connection: jetstream.Connection{URL: from.JetStream.URL.Reveal(), Creds: from.JetStream.Creds},
			Stream:     from.JetStream.Stream, Filter: from.JetStream.Filter,
		})
	case kinds[0] == "kinesis":
		return kinesis.OpenSource(ctx, kinesisStream(from.Kinesis))
	case kinds[0] == "rooms" && m.rooms != nil:
		return m.rooms(from.Rooms)
	case kinds[0] == "redis":
		opt, err := rueidis.ParseURL(from.Redis.URL.Reveal())
		if err != nil {
			return nil, errors.New("from.redis.url is not the address of a Redis; write redis://user:password@host:6379/0") // err may quote the password
		}
		return redisstream.New(opt, from.Redis.Stream, redisstream.Options{Key: from.Redis.Key}), nil
	default:
		return nil, fmt.Errorf("relay %s: from.%s cannot be read here", r.ID, kinds[0])
	}
}

// openSink makes the sink of a relay. ctx bounds the opening alone.
func (m *means) openSink(ctx context.Context, r *config.Relay) (relay.Sink, error) {
	to := &r.To
	kinds := to.Kinds()
	if len(kinds) != 1 {
		return nil, fmt.Errorf("relay %s: to needs one sink, and names %d", r.ID, len(kinds))
	}
	switch kinds[0] {
	case "webhook":
		dialer := &egress.Dialer{Allow: m.egress}
		return webhook.New(to.Webhook.URL, webhook.Options{
			Secret: to.Webhook.Secret.Reveal(), Concurrency: to.Webhook.Concurrency, Timeout: min(r.Timeout, 30*time.Second), Dial: dialer.DialContext,
		})
	case "sql":
		return sqltable.Open(sqltable.Kind(to.SQL.Driver), to.SQL.DSN.Reveal(), to.SQL.Table)
	case "file":
		return lines.Open(to.File.Path, to.File.Sync)
	case "stdout":
		return lines.To(m.stdout), nil
	case "kafka":
		k := &to.Kafka
		return kafka.Open(kafka.Options{
			Brokers: k.Brokers, Topic: k.Topic, TLS: k.TLS, Username: k.Username, Password: k.Password.Reveal(), Mechanism: k.Mechanism,
			Timeout: min(r.Timeout, 10*time.Second),
		})
	case "jetstream":
		return jetstream.OpenSink(jetstream.SinkOptions{
			Connection: jetstream.Connection{URL: to.JetStream.URL.Reveal(), Creds: to.JetStream.Creds}, Subject: to.JetStream.Subject,
		})
	case "kinesis":
		return kinesis.OpenSink(ctx, kinesisStream(to.Kinesis))
	case "sqs":
		return sqs.Open(ctx, sqsQueue(to.SQS))
	}
	return nil, fmt.Errorf("relay %s: to.%s is not in this build", r.ID, kinds[0])
}

func sqsQueue(q config.RelaySQS) sqs.Options {
	return sqs.Options{Queue: q.Queue, Region: q.Region, Endpoint: q.Endpoint}
}

func kinesisStream(k config.RelayKinesis) kinesis.Options {
	return kinesis.Options{Stream: k.Stream, Region: k.Region, Endpoint: k.Endpoint}
}
