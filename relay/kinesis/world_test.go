package kinesis_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	api "github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/internal/faultproxy"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/kinesis"
	"github.com/ushergo/usher/relay/relaytest"
)

// emulator is one kinesalite for all tests; each has streams of its own.
var emulator = sync.OnceValues(func() (*faultproxy.Emulator, error) { return faultproxy.Start("kinesalite") })

var names atomic.Int32

// world is a stream with a proxy before it that hurts, and a client that is not hurt.
type world struct {
	t      *testing.T
	p      *faultproxy.Proxy
	client *api.Client
	stream string
}

func started(t *testing.T, start func() (*faultproxy.Emulator, error)) *faultproxy.Emulator {
	t.Helper()
	if testing.Short() {
		t.Skip("starts an emulator")
	}
	emu, err := start()
	if errors.Is(err, faultproxy.ErrMissing) && os.Getenv("USHER_TEST_ALL") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	return emu
}

func newWorld(t *testing.T, shards int) *world {
	t.Helper()
	emu := started(t, emulator)
	p, err := faultproxy.New(emu.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	conf, err := awsconfig.LoadDefaultConfig(t.Context(), awsconfig.WithRegion("eu-west-1"))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, p: p, stream: fmt.Sprint("bookings-", names.Add(1))}
	w.client = api.NewFromConfig(conf, func(o *api.Options) { o.BaseEndpoint = aws.String(emu.URL) })
	w.create(shards)
	return w
}

func (w *world) create(shards int) {
	w.t.Helper()
	if _, err := w.client.CreateStream(w.t.Context(), &api.CreateStreamInput{StreamName: &w.stream, ShardCount: aws.Int32(int32(shards))}); err != nil {
		w.t.Fatal(err)
	}
	w.active()
}

func (w *world) active() {
	w.t.Helper()
	until(w.t, "the stream is active", func() bool {
		out, err := w.client.DescribeStreamSummary(w.t.Context(), &api.DescribeStreamSummaryInput{StreamName: &w.stream})
		return err == nil && out.StreamDescriptionSummary.StreamStatus == types.StreamStatusActive
	})
}

func (w *world) options() kinesis.Options {
	return kinesis.Options{Stream: w.stream, Region: "eu-west-1", Endpoint: w.p.URL, Timeout: 5 * time.Second}
}

func (w *world) sink() *kinesis.Sink {
	w.t.Helper()
	s, err := kinesis.OpenSink(w.t.Context(), w.options())
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// source asks as often as it can: the emulator bears it.
func (w *world) source() *kinesis.Source {
	w.t.Helper()
	s, err := kinesis.OpenSource(w.t.Context(), w.options())
	if err != nil {
		w.t.Fatal(err)
	}
	s.Hurry(20*time.Millisecond, 10*time.Minute)
	return s
}

// put stores foreign records and returns their sequence numbers.
func (w *world) put(key string, data ...string) (seqs []string) {
	w.t.Helper()
	for _, d := range data {
		out, err := w.client.PutRecord(w.t.Context(), &api.PutRecordInput{StreamName: &w.stream, PartitionKey: &key, Data: []byte(d)})
		if err != nil {
			w.t.Fatal(err)
		}
		seqs = append(seqs, *out.SequenceNumber)
	}
	return seqs
}

func (w *world) partitions(s *kinesis.Source) (names []string) {
	w.t.Helper()
	list, err := s.Partitions(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range list {
		names = append(names, p.Name)
	}
	return names
}

func (w *world) open(s *kinesis.Source, partition string, from relay.Start) relay.Reader {
	w.t.Helper()
	r, err := s.Open(w.t.Context(), partition, from)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// read takes exactly n events, and sees that no more come in the same answer.
func (w *world) read(r relay.Reader, n int) (events []relay.Event) {
	w.t.Helper()
	until(w.t, fmt.Sprint(n, " records"), func() bool {
		got, err := r.Read(w.t.Context(), 1000)
		if err != nil {
			w.t.Fatalf("after %d of %d: %v", len(events), n, err)
		}
		events = append(events, got...)
		return len(events) >= n
	})
	if len(events) != n {
		w.t.Fatalf("%d records, want %d", len(events), n)
	}
	return events
}

// fails reads until there is an error, and takes no events before it.
func (w *world) fails(r relay.Reader) (err error) {
	w.t.Helper()
	until(w.t, "an error", func() bool {
		var got []relay.Event
		if got, err = r.Read(w.t.Context(), 1000); len(got) > 0 {
			w.t.Fatalf("%d records", len(got))
		}
		return err != nil
	})
	return err
}

func (w *world) gap(r relay.Reader) *relay.GapError {
	w.t.Helper()
	var gap *relay.GapError
	if err := w.fails(r); !errors.As(err, &gap) {
		w.t.Fatalf("no gap: %v", err)
	}
	return gap
}

// edit changes an answer of the service's.
func edit[T any](op string, change func(answer map[string]any, request T)) faultproxy.Rule {
	return faultproxy.Rule{Op: op, Handle: func(_ string, body []byte, forward func([]byte) (int, []byte)) (int, []byte) {
		status, answer := forward(body)
		var m map[string]any
		var req T
		if status != 200 || json.Unmarshal(answer, &m) != nil || json.Unmarshal(body, &req) != nil {
			return status, answer
		}
		change(m, req)
		b, _ := json.Marshal(m)
		return status, b
	}}
}

// refuse answers with an error of the service's.
func refuse(op, name string) faultproxy.Rule {
	return faultproxy.Rule{Op: op, Handle: func(string, []byte, func([]byte) (int, []byte)) (int, []byte) {
		return 400, []byte(fmt.Sprintf(`{"__type":%q,"message":"as the test wants it"}`, name))
	}}
}

// quick finds a crash within two seconds.
var quick = lease.Options{Lease: 2 * time.Second, Desired: 200 * time.Millisecond, Observe: 100 * time.Millisecond, Sweep: time.Second, Flush: 20 * time.Millisecond}

// carrier is a relay that runs.
type carrier struct {
	*relay.Relay
	stop func()
	dead relay.DeadLetters
}

func carry(t *testing.T, from relay.Source, to relay.Sink, change func(*relay.Options)) *carrier {
	t.Helper()
	dead, err := memory.OpenDeadLetters("", memory.DeadLetterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o := relay.Options{
		ID: "k", Source: from, Sink: to, Dead: dead, Lease: lease.Options{Desired: 200 * time.Millisecond, Flush: 20 * time.Millisecond}, Discover: 100 * time.Millisecond,
		SendTimeout: 5 * time.Second, Tuning: relay.Tuning{MaxBackoff: 300 * time.Millisecond},
	}
	if change != nil {
		change(&o)
	}
	if o.Leases == nil {
		leases, err := memory.OpenLeases("", "relay.k", memory.LeaseOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = leases.Close() })
		o.Leases = leases
	}
	r, err := relay.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(func() { stop(); _ = dead.Close() })
	return &carrier{r, stop, dead}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 90 s", what)
		}
	}
}

func distinct(events []relay.Event) int {
	seen := map[string]bool{}
	for _, e := range events {
		seen[e.ID] = true
	}
	return len(seen)
}

// hurt throttles, delays, fails, drops, and loses the replies to what was done.
func (w *world) hurt() (stop func()) {
	var removes []func()
	for _, r := range []faultproxy.Rule{
		{Fault: faultproxy.Throttle, Prob: 0.05}, {Fault: faultproxy.LoseReply, Prob: 0.05}, {Fault: faultproxy.Drop, Prob: 0.02},
		{Fault: faultproxy.Fail, Prob: 0.02}, {Delay: 50 * time.Millisecond, Prob: 0.3}, {Fault: faultproxy.Hang, Prob: 0.003},
	} {
		removes = append(removes, w.p.Add(r))
	}
	return func() {
		for _, remove := range removes {
			remove()
		}
		h := w.p.Hurt()
		w.t.Logf("%d throttled, %d replies lost, %d dropped, %d failed, %d hung", h[faultproxy.Throttle], h[faultproxy.LoseReply], h[faultproxy.Drop], h[faultproxy.Fail], h[faultproxy.Hang])
	}
}

func clean(t *testing.T, sink *relaytest.Sink) {
	t.Helper()
	if wrong := sink.Wrong(); len(wrong) > 0 {
		t.Error(strings.Join(wrong, "\n"))
	}
}
