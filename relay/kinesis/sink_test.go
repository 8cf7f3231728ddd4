package kinesis_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/internal/faultproxy"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/kinesis"
	"github.com/ushergo/usher/relay/relaytest"
)

func event(n int, key string, payload []byte) relay.Event {
	return relay.Event{ID: relay.RoomID("premiere", 1, uint64(n)), Key: key, Type: "admitted", At: time.Unix(1_800_000_000+int64(n), 0), Payload: payload}
}

func send(t *testing.T, s *kinesis.Sink, events ...relay.Event) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	errs := s.Send(ctx, relay.Batch{Relay: "k", Partition: "premiere", Events: events})
	if len(errs) != len(events) {
		t.Fatalf("%d answers for %d events", len(errs), len(events))
	}
	return errs
}

// What the sink writes, the source reads as it was; foreign records have names of their own.
func TestAsItWas(t *testing.T) {
	w := newWorld(t, 1)
	src := w.source()
	shard := w.partitions(src)[0]
	long := strings.Repeat("schlüssel", 100)
	in := []relay.Event{event(1, "a", []byte(`{"n":1}`)), event(2, "b", []byte{0, 255, 10}), event(3, long, []byte(`"text"`))}
	in[1].Late = true
	for i, err := range send(t, w.sink(), in...) {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	foreign := `{"id":"7","key":"theirs","at":"2030-01-01T00:00:00Z","payload":1,"more":true}`
	seqs := w.put("theirs", foreign, "not JSON")
	w.put("another", `{"id":"7","key":"theirs","at":"2030-01-01T00:00:00Z","payload":1}`)
	got := w.read(w.open(src, shard, relay.Start{}), 6)
	for i := range in {
		g := got[i]
		if g.ID != in[i].ID || g.Key != in[i].Key || g.Type != "admitted" || !g.At.Equal(in[i].At) || g.Late != in[i].Late || !bytes.Equal(g.Payload, in[i].Payload) || g.Position == "" {
			t.Errorf("%+v became %+v", in[i], g)
		}
	}
	name, _, _ := strings.Cut(shard, ".")
	for i, data := range []string{foreign, "not JSON"} {
		g := got[3+i]
		if g.ID != "kinesis:"+w.stream+"/"+name+"/"+seqs[i] || g.Key != "theirs" || string(g.Payload) != data || g.Position != relay.Position(seqs[i]) || time.Since(g.At) > time.Hour {
			t.Errorf("foreign: %+v", g)
		}
	}
	if got[5].Key != "another" || !strings.HasPrefix(got[5].ID, "kinesis:") {
		t.Errorf("an envelope of another key's: %+v", got[5])
	}
}

// Batches are as the service takes them: by number, by bytes, by length of one.
func TestLimits(t *testing.T) {
	w := newWorld(t, 2)
	var mu sync.Mutex
	var sizes, counts []int
	w.p.Add(faultproxy.Rule{Op: "PutRecords", Handle: func(_ string, body []byte, forward func([]byte) (int, []byte)) (int, []byte) {
		var in struct{ Records []struct{ Data []byte } }
		_ = json.Unmarshal(body, &in)
		n := 0
		for _, r := range in.Records {
			n += len(r.Data)
		}
		mu.Lock()
		sizes, counts = append(sizes, n), append(counts, len(in.Records))
		mu.Unlock()
		return forward(body)
	}})
	src := relaytest.NewSource("premiere")
	var want []relay.Event
	for n := range 1800 { // by number
		key := fmt.Sprint("ticket", n)
		want = append(want, relay.Event{ID: src.Put("premiere", key), Key: key})
	}
	var end relaytest.Sink
	in := carry(t, src, w.sink(), func(o *relay.Options) { o.Tuning.Batch = 5000 })
	carry(t, w.source(), &end, nil)
	until(t, "all", func() bool { return distinct(end.Taken()) == len(want) })
	in.stop()
	mu.Lock()
	if slices.Max(counts) != 500 {
		t.Errorf("requests of %v", counts)
	}
	sizes = nil
	mu.Unlock()
	// By bytes: ten of 700 kB are 7 MB; as base64 in envelopes, 9. One beyond the limit is refused alone.
	var big []relay.Event
	for n := range 10 {
		big = append(big, event(10_000+n, fmt.Sprint("big", n), bytes.Repeat([]byte{byte(200 + n)}, 700_000)))
	}
	big[7].Payload = bytes.Repeat([]byte{1}, 1_000_000) // 1.3 MB as base64
	for i, err := range send(t, w.sink(), big...) {
		if i == 7 && relay.ClassOf(err) != relay.Rejected || i != 7 && err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	until(t, "the big ones", func() bool { return distinct(end.Taken()) == len(want)+9 })
	mu.Lock()
	defer mu.Unlock()
	if len(sizes) < 2 || slices.Max(sizes) > 5<<20 {
		t.Errorf("requests of %v bytes", sizes)
	}
}

// Of a batch in which five fail, the five are sent again, and no other.
func TestOnlyWhatFailed(t *testing.T) {
	w := newWorld(t, 1)
	var mu sync.Mutex
	sent := map[string]int{}
	calls := 0
	w.p.Add(faultproxy.Rule{Op: "PutRecords", Handle: func(_ string, body []byte, forward func([]byte) (int, []byte)) (int, []byte) {
		var in map[string]any
		_ = json.Unmarshal(body, &in)
		records := in["Records"].([]any)
		mu.Lock()
		calls++
		first := calls == 1
		for _, r := range records {
			sent[r.(map[string]any)["PartitionKey"].(string)]++
		}
		mu.Unlock()
		if !first {
			return forward(body)
		}
		var pass []any
		for i, r := range records {
			if i%20 != 3 {
				pass = append(pass, r)
			}
		}
		in["Records"] = pass
		b, _ := json.Marshal(in)
		status, answer := forward(b)
		var out map[string]any
		_ = json.Unmarshal(answer, &out)
		stored, all := out["Records"].([]any), []any{}
		for i := range records {
			if i%20 == 3 {
				code := []string{"ProvisionedThroughputExceededException", "InternalFailure"}[i/20%2]
				all = append(all, map[string]string{"ErrorCode": code, "ErrorMessage": "as the test wants it"})
				continue
			}
			all, stored = append(all, stored[0]), stored[1:]
		}
		out["Records"], out["FailedRecordCount"] = all, 5
		b, _ = json.Marshal(out)
		return status, b
	}})
	src := relaytest.NewSource("premiere")
	for n := range 100 {
		src.Put("premiere", fmt.Sprint("ticket", n))
	}
	var end relaytest.Sink
	carry(t, src, w.sink(), nil)
	carry(t, w.source(), &end, nil)
	until(t, "all", func() bool { return distinct(end.Taken()) == 100 })
	if got := len(end.Taken()); got != 100 {
		t.Errorf("%d records of 100 events", got)
	}
	mu.Lock()
	defer mu.Unlock()
	again := 0
	for _, n := range sent {
		if n > 1 {
			again++
		}
	}
	if again != 5 {
		t.Errorf("%d events were sent again, want 5", again)
	}
}

func TestWhoseFaultItIs(t *testing.T) {
	w := newWorld(t, 1)
	s := w.sink()
	for name, want := range map[string]relay.Class{
		"ProvisionedThroughputExceededException": relay.Throttled, "LimitExceededException": relay.Throttled, "KMSThrottlingException": relay.Throttled,
		"AccessDeniedException": relay.Denied, "KMSAccessDeniedException": relay.Denied, "KMSDisabledException": relay.Denied, "ResourceNotFoundException": relay.Denied,
		"UnrecognizedClientException": relay.Denied, "ExpiredTokenException": relay.Denied,
		"InternalFailure": relay.Transient, "ServiceUnavailable": relay.Transient, "InvalidArgumentException": relay.Rejected, "ValidationException": relay.Rejected,
	} {
		remove := w.p.Add(refuse("PutRecords", name))
		if err := send(t, s, event(1, "k", []byte("{}")))[0]; relay.ClassOf(err) != want || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, %v", name, relay.ClassOf(err), err)
		}
		remove()
	}
	// One that spoils a batch is not known by what is said of the batch.
	remove := w.p.Add(refuse("PutRecords", "InvalidArgumentException"))
	for _, err := range send(t, s, event(1, "k", []byte("{}")), event(2, "l", []byte("{}"))) {
		if relay.ClassOf(err) != relay.Transient {
			t.Errorf("a batch: %v", err)
		}
	}
	remove()
	o := w.options()
	o.Stream = "none"
	none, err := kinesis.OpenSink(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := send(t, none, event(1, "k", []byte("{}")))[0]; relay.ClassOf(err) != relay.Denied || !strings.Contains(err.Error(), "make it") {
		t.Errorf("no stream: %v", err)
	}
	src, err := kinesis.OpenSource(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := src.Partitions(t.Context()); relay.ClassOf(err) != relay.Denied {
		t.Errorf("no stream to read: %v", err)
	}
	o.Stream = "with a space"
	if _, err := kinesis.OpenSink(t.Context(), o); err == nil {
		t.Error("a name that no stream has is taken")
	}
}
