package sqstest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/Admiral-Piett/goaws/app"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/relaytest"
	"github.com/ushergo/usher/relay/sqs"
)

// drain receives everything that is in a queue, by goaws' own words.
func (e *emulator) drain(t *testing.T, queue string) (events []relay.Event) {
	t.Helper()
	for {
		var out app.ReceiveMessageResponse
		e.query(url.Values{"Action": {"ReceiveMessage"}, "QueueUrl": {queue}, "MaxNumberOfMessages": {"10"}}, &out)
		if len(out.Result.Message) == 0 {
			return events
		}
		for _, m := range out.Result.Message {
			ev, err := relay.ReadEnvelope(m.Body)
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, ev)
			e.query(url.Values{"Action": {"DeleteMessage"}, "QueueUrl": {queue}, "ReceiptHandle": {m.ReceiptHandle}}, nil)
		}
	}
}

// A relay to a queue that fails for some of a batch and whose answers are lost now and then; poison goes to another queue.
func TestRelayToSQS(t *testing.T) {
	e := newEmulator(t)
	queue, deadQueue := e.queue(t, "bookings"), e.queue(t, "bookings-dead")
	e.lose.Store(9)
	e.refuse.Store(7)
	sink, err := sqs.Open(t.Context(), sqs.Options{Queue: queue, Region: "local", Endpoint: e.URL})
	if err != nil {
		t.Fatal(err)
	}
	dead, err := sqs.OpenDeadLetters(t.Context(), sqs.Options{Queue: deadQueue, Region: "local", Endpoint: e.URL})
	if err != nil {
		t.Fatal(err)
	}
	source := relaytest.NewSource("premiere")
	var want []relay.Event
	for n := range 300 {
		key := fmt.Sprint("ticket", n)
		if n == 77 {
			key = "poison"
		}
		ev := relay.Event{ID: source.Put("premiere", key), Key: key}
		if n != 77 {
			want = append(want, ev)
		}
	}
	leases, err := memory.OpenLeases("", "relay.s", memory.LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer leases.Close()
	r, err := relay.New(relay.Options{
		ID: "s", Source: source, Sink: sink, Leases: leases, Dead: dead, Lease: lease.Options{Flush: 20 * time.Millisecond},
		Tuning: relay.Tuning{Backoff: time.Millisecond, MaxBackoff: 50 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s, err := r.Status(t.Context())
		if err == nil && len(s.Partitions) == 1 && s.Partitions[0].Cursor == "300" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it does not come to the end: %+v, %v", s, err)
		}
	}
	stop()
	<-done
	if err := relaytest.Audit(want, e.drain(t, queue)); err != nil {
		t.Fatal(err)
	}
	letters, err := dead.List(t.Context(), "s", 0, 100)
	if err != nil || len(letters) != 1 || letters[0].Event.Key != "poison" || letters[0].Class != "rejected" {
		t.Fatalf("%+v, %v", letters, err)
	}
	if _, err := r.Redrive(t.Context(), relay.Redrive{PerSecond: 100}); err != nil { // it is refused again
		t.Fatal(err)
	}
	l, err := dead.Get(t.Context(), "s", letters[0].Event.ID)
	if err != nil || l.Redriven != 1 || l.Attempts != letters[0].Attempts+1 || !l.First.Equal(letters[0].First) {
		t.Fatalf("%+v, %v", l, err)
	}
	if n, err := dead.Drop(t.Context(), "s", l.Event.ID); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := dead.Get(t.Context(), "s", l.Event.ID); !errors.Is(err, relay.ErrNoLetter) {
		t.Fatal(err)
	}
}

func TestDeadQueueIsBounded(t *testing.T) {
	e := newEmulator(t)
	dead, err := sqs.OpenDeadLetters(t.Context(), sqs.Options{Queue: e.queue(t, "small"), Region: "local", Endpoint: e.URL})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if err := dead.Put(t.Context(), relaytest.Letter("a", n), relay.DeadBounds{Letters: 3}); err != nil {
			t.Fatal(err)
		}
	}
	if err := dead.Put(t.Context(), relaytest.Letter("a", 3), relay.DeadBounds{Letters: 3}); !errors.Is(err, relay.ErrDeadFull) {
		t.Fatal(err)
	}
	if err := dead.Put(t.Context(), relaytest.Letter("b", 3), relay.DeadBounds{}); err != nil {
		t.Fatal(err)
	}
	if got, err := dead.List(t.Context(), "a", 0, 10); err != nil || len(got) != 3 {
		t.Fatal(len(got), err)
	}
}

func TestAQueueThatIsNotThere(t *testing.T) {
	e := newEmulator(t)
	sink, err := sqs.Open(t.Context(), sqs.Options{Queue: e.URL + "/1/nowhere.fifo", Region: "local", Endpoint: e.URL})
	if err != nil {
		t.Fatal(err)
	}
	ev := relay.Event{ID: "a/1.1", Key: "k", Payload: []byte("{}")}
	if err := sink.Send(t.Context(), relay.Batch{Events: []relay.Event{ev}})[0]; relay.ClassOf(err) != relay.Denied {
		t.Fatal(err)
	}
	fifo, err := sqs.Open(t.Context(), sqs.Options{Queue: e.queue(t, "there.fifo"), Region: "local", Endpoint: e.URL})
	if err != nil {
		t.Fatal(err)
	}
	if err := fifo.Send(t.Context(), relay.Batch{Events: []relay.Event{ev}}); err != nil && err[0] != nil {
		t.Fatal(err)
	}
}
