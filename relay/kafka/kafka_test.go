package kafka_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/kafka"
	"github.com/ushergo/usher/relay/relaytest"
)

func cluster(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(3), kfake.SeedTopics(4, "bookings")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func open(t *testing.T, o kafka.Options) *kafka.Sink {
	t.Helper()
	s, err := kafka.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// consume reads until n distinct events are there, and returns all records in the order of their partitions.
func consume(t *testing.T, c *kfake.Cluster, n int) (events []relay.Event) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ConsumeTopics("bookings"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	seen := map[string]bool{}
	for len(seen) < n {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatalf("%d of %d events are there", len(seen), n)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			e := relay.Event{Key: string(r.Key), Payload: r.Value}
			for _, h := range r.Headers {
				switch h.Key {
				case "usher-event-id":
					e.ID = string(h.Value)
				case "usher-event-late":
					e.Late = true
				}
			}
			seen[e.ID] = true
			events = append(events, e)
		})
	}
	return events
}

// A relay through brokers that refuse and lose answers now and then: each event, in order of its key.
func TestRelayToKafka(t *testing.T) {
	c := cluster(t)
	var calls atomic.Int64
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if calls.Add(1)%7 != 3 {
			return nil, nil, false
		}
		p := req.(*kmsg.ProduceRequest)
		resp := p.ResponseKind().(*kmsg.ProduceResponse)
		for _, rt := range p.Topics {
			st := kmsg.NewProduceResponseTopic()
			st.Topic, st.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				sp := kmsg.NewProduceResponseTopicPartition()
				sp.Partition, sp.ErrorCode = rp.Partition, kerr.NotLeaderForPartition.Code
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
	source := relaytest.NewSource("premiere")
	var want []relay.Event
	for n := range 1000 {
		key := fmt.Sprint("ticket", n%60)
		want = append(want, relay.Event{ID: source.Put("premiere", key), Key: key})
	}
	leases, err := memory.OpenLeases("", "relay.k", memory.LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer leases.Close()
	dead, err := memory.OpenDeadLetters("", memory.DeadLetterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	r, err := relay.New(relay.Options{
		ID: "k", Source: source, Sink: open(t, kafka.Options{Brokers: c.ListenAddrs(), Topic: "bookings"}), Leases: leases, Dead: dead,
		Lease: lease.Options{Flush: 20 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	got := consume(t, c, 1000)
	stop()
	<-done
	if err := relaytest.Audit(want, got); err != nil {
		t.Fatal(err)
	}
}

func TestWhoseFaultItIs(t *testing.T) {
	c := cluster(t)
	event := relay.Event{ID: "a/1.1", Key: "k", Type: "admitted", At: time.Now(), Payload: []byte("{}")}
	send := func(o kafka.Options) error {
		if o.Timeout == 0 {
			o.Timeout = 20 * time.Second
		}
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		return open(t, o).Send(ctx, relay.Batch{Events: []relay.Event{event}})[0]
	}
	if err := send(kafka.Options{Brokers: c.ListenAddrs(), Topic: "nowhere"}); relay.ClassOf(err) != relay.Denied {
		t.Errorf("a topic that is not there: %v", err)
	}
	if err := send(kafka.Options{Brokers: c.ListenAddrs(), Topic: "bookings"}); err != nil {
		t.Error(err)
	}
	refuse := func(req kmsg.Request) (kmsg.Response, error, bool) {
		p := req.(*kmsg.ProduceRequest)
		resp := p.ResponseKind().(*kmsg.ProduceResponse)
		for _, rt := range p.Topics {
			st := kmsg.NewProduceResponseTopic()
			st.Topic, st.TopicID = rt.Topic, rt.TopicID
			sp := kmsg.NewProduceResponseTopicPartition()
			sp.Partition, sp.ErrorCode = rt.Partitions[0].Partition, kerr.MessageTooLarge.Code
			st.Partitions = append(st.Partitions, sp)
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	}
	c.ControlKey(int16(kmsg.Produce), refuse)
	if err := send(kafka.Options{Brokers: c.ListenAddrs(), Topic: "bookings"}); relay.ClassOf(err) != relay.Rejected {
		t.Errorf("too large: %v", err)
	}
	secure := cluster(t, kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "usher", "right"))
	auth := kafka.Options{Brokers: secure.ListenAddrs(), Topic: "bookings", Username: "usher", Password: "right", Mechanism: "scram-sha-512"}
	if err := send(auth); err != nil {
		t.Errorf("the right password: %v", err)
	}
	auth.Password, auth.Timeout = "wrong", time.Second // kfake closes the connection, where a broker would say why
	if err := send(auth); err == nil {
		t.Error("a wrong password is taken")
	}
}
