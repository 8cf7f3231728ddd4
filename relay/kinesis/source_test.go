package kinesis_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	api "github.com/aws/aws-sdk-go-v2/service/kinesis"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/internal/faultproxy"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/kinesis"
	"github.com/ushergo/usher/relay/relaytest"
)

// numbers are n texts.
func numbers(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint(i))
	}
	return list
}

// later waits until the clock has gone on, by more than the service tells apart.
func later(t *testing.T) time.Time {
	begun := time.Now()
	until(t, "time passes", func() bool { return time.Since(begun) > 5*time.Millisecond })
	return time.Now()
}

func TestStarts(t *testing.T) {
	w := newWorld(t, 1)
	src := w.source()
	shard := w.partitions(src)[0]
	w.put("k", numbers(5)...)
	moment := later(t)
	seqs := w.put("k", numbers(5)...)
	w.read(w.open(src, shard, relay.Start{}), 10)
	w.read(w.open(src, shard, relay.Start{After: relay.Position(seqs[1])}), 3)
	w.read(w.open(src, shard, relay.Start{At: moment}), 5)
	// A few at a time, each once.
	r := w.open(src, shard, relay.Start{})
	var got []relay.Event
	until(t, "ten in threes", func() bool {
		some, err := r.Read(t.Context(), 3)
		if err != nil || len(some) > 3 {
			t.Fatal(len(some), err)
		}
		got = append(got, some...)
		return len(got) >= 10
	})
	if distinct(got) != 10 || len(got) != 10 {
		t.Errorf("%d, %d distinct", len(got), distinct(got))
	}
	// At a moment to come: nothing, until then.
	r = w.open(src, shard, relay.Start{At: time.Now().Add(time.Hour)})
	if some, err := r.Read(t.Context(), 10); len(some) > 0 || err != nil {
		t.Errorf("in an hour: %d, %v", len(some), err)
	}
	soon := time.Now().Add(300 * time.Millisecond)
	r = w.open(src, shard, relay.Start{At: soon})
	until(t, "the moment", func() bool {
		if time.Now().After(soon) {
			return true
		}
		some, err := r.Read(t.Context(), 10)
		if len(some) > 0 || err != nil {
			t.Fatal(len(some), err)
		}
		return false
	})
	later(t)
	w.put("k", "then")
	if e := w.read(r, 1)[0]; string(e.Payload) != "then" {
		t.Errorf("%s", e.Payload)
	}
	// Now, when the service's clock is behind.
	behind := refuse("GetShardIterator", "InvalidArgumentException")
	behind.Times = 3
	w.p.Add(behind)
	now := later(t)
	w.put("k", "and now")
	if e := w.read(w.open(src, shard, relay.Start{At: now}), 1)[0]; string(e.Payload) != "and now" {
		t.Errorf("%s", e.Payload)
	}
	for _, p := range []relay.Position{"1.5", "x", "@", "@x", "5@-1", "!end"} {
		if _, err := src.Open(t.Context(), shard, relay.Start{After: p}); relay.ClassOf(err) != relay.Denied {
			t.Errorf("position %s: %v", p, err)
		}
	}
	if _, err := src.Open(t.Context(), "shardId-000000000000", relay.Start{}); relay.ClassOf(err) != relay.Denied {
		t.Errorf("a shard of no stream: %v", err)
	}
}

// Newest counts at the first start alone: after that the cursor does, and an iterator that has expired resumes at it.
func TestNewestOnce(t *testing.T) {
	w := newWorld(t, 1)
	leases, err := memory.OpenLeases("", "relay.k", memory.LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = leases.Close() })
	w.put("k", numbers(5)...)
	later(t)
	var end relaytest.Sink
	newest := func(o *relay.Options) { o.Leases, o.From = leases, relay.From{Newest: true} }
	c := carry(t, w.source(), &end, newest)
	until(t, "the shard is read", func() bool { return w.p.Done()["GetRecords"] > 0 })

	total := 0
	expired := func(n int) {
		t.Helper()
		before := w.p.Requests()["GetShardIterator"]
		remove := w.p.Add(refuse("GetRecords", "ExpiredIteratorException"))
		w.put("k", numbers(n)...)
		until(t, "iterators expire", func() bool { return w.p.Requests()["GetShardIterator"] > before+3 })
		w.put("k", numbers(n)...)
		remove()
		total += 2 * n
		until(t, fmt.Sprint(total, " events"), func() bool { return len(end.Taken()) >= total })
	}
	expired(3) // before anything was read
	expired(4) // and after it
	c.stop()
	w.put("k", numbers(5)...) // while nobody reads
	total += 5
	carry(t, w.source(), &end, newest)
	w.put("k", numbers(2)...)
	total += 2
	until(t, fmt.Sprint(total, " events"), func() bool { return len(end.Taken()) >= total })
	if got := end.Taken(); len(got) != total || distinct(got) != total {
		t.Errorf("%d events, %d distinct, want %d", len(got), distinct(got), total)
	}
	clean(t, &end)
}

// What was trimmed before it was read is told, and what only looks like it is not.
func TestTrimmed(t *testing.T) {
	w := newWorld(t, 1)
	src := w.source()
	src.Hurry(10*time.Millisecond, 0)
	shard := w.partitions(src)[0]
	seqs := w.put("k", numbers(10)...)
	at := func(i int) relay.Start { return relay.Start{After: relay.Position(seqs[i])} }
	whole := w.open(src, shard, relay.Start{})
	w.read(whole, 10)
	if _, err := whole.Read(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	mark := whole.(relay.Placed).Position()
	if !strings.HasPrefix(string(mark), seqs[9]+"@") {
		t.Fatalf("read to the tip, it stands at %s", mark)
	}
	var floor atomic.Value // records before it are gone
	floor.Store(seqs[6])
	var behind atomic.Int64
	w.p.Add(edit("GetRecords", func(m map[string]any, _ any) {
		kept := []any{}
		for _, r := range m["Records"].([]any) {
			if r.(map[string]any)["SequenceNumber"].(string) >= floor.Load().(string) {
				kept = append(kept, r)
			}
		}
		m["Records"] = kept
		if n := behind.Load(); n > 0 && len(kept) > 0 {
			m["MillisBehindLatest"] = n
		}
	}))
	w.read(w.open(src, shard, relay.Start{}), 4)
	w.read(w.open(src, shard, at(6)), 3)
	for _, i := range []int{2, 5} {
		r := w.open(src, shard, at(i))
		g := w.gap(r)
		if g.From != at(i).After || g.To == "" || g.Partition != shard {
			t.Errorf("%+v", g)
		}
		w.read(r, 4)
		w.read(w.open(src, shard, relay.Start{After: g.To}), 4) // after a restart
	}
	// Everything is gone.
	floor.Store("9")
	r := w.open(src, shard, at(8))
	g := w.gap(r)
	if g.From != at(8).After {
		t.Errorf("%+v", g)
	}
	// A shard that was read to its tip and has been quiet since has lost nothing, unless that was long ago.
	quiet := w.open(src, shard, relay.Start{After: mark})
	if _, err := quiet.Read(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	long := w.open(src, shard, relay.Start{After: relay.Position(seqs[9] + "@1700000000000")})
	w.gap(long)
	if w.gap(w.open(src, shard, relay.Start{After: "@1700000000000"})).From != "@1700000000000" {
		t.Error("a moment that is long past")
	}
	floor.Store(seqs[9])
	more := w.put("k", numbers(6)...)
	w.read(quiet, 6)
	w.read(long, 6)
	w.read(r, 6)

	// Read at the retention's edge, records go while they are being read.
	floor.Store(seqs[9])
	behind.Store((24*time.Hour - time.Minute).Milliseconds())
	edge := w.open(src, shard, at(9))
	if some, err := edge.Read(t.Context(), 2); len(some) != 2 || err != nil {
		t.Fatal(len(some), err)
	}
	floor.Store(more[4])
	if g := w.gap(edge); g.From != relay.Position(more[1]) {
		t.Errorf("%+v", g)
	}
	behind.Store(0)
	w.read(edge, 2)
	// A number that the shard never had.
	other := strings.Replace(seqs[3], seqs[3][:12], "495900000000", 1)
	r = w.open(src, shard, relay.Start{After: relay.Position(other)})
	w.gap(r)
	w.read(r, 2)
}

// A shard that is gone, and a stream that was made anew, end with a gap; the new one has partitions of its own.
func TestGone(t *testing.T) {
	w := newWorld(t, 1)
	src := w.source()
	shard := w.partitions(src)[0]
	_, birth, _ := strings.Cut(shard, ".")
	seqs := w.put("k", numbers(3)...)
	ends := func(partition string, from relay.Start) {
		t.Helper()
		r := w.open(src, partition, from)
		g := w.gap(r)
		if g.From != from.After {
			t.Errorf("%+v", g)
		}
		for _, r := range []relay.Reader{r, w.open(src, partition, relay.Start{After: g.To})} {
			if err := w.fails(r); !errors.Is(err, relay.ErrEnd) {
				t.Errorf("behind the gap: %v", err)
			}
		}
	}
	ends("shardId-000000000077."+birth, relay.Start{})
	live := w.open(src, shard, relay.Start{})
	w.read(live, 3)
	if _, err := w.client.DeleteStream(t.Context(), &api.DeleteStreamInput{StreamName: &w.stream}); err != nil {
		t.Fatal(err)
	}
	until(t, "it is gone", func() bool {
		_, err := w.client.DescribeStreamSummary(t.Context(), &api.DescribeStreamSummaryInput{StreamName: &w.stream})
		return err != nil
	})
	if err := w.fails(live); relay.ClassOf(err) != relay.Denied {
		t.Errorf("no stream: %v", err)
	}
	until(t, "another second", func() bool { return fmt.Sprint(time.Now().Unix()-2) > birth })
	w.create(1)
	anew := w.partitions(src)[0]
	if anew == shard {
		t.Fatalf("both are %s", anew)
	}
	w.put("k", numbers(2)...)
	ends(shard, relay.Start{After: relay.Position(seqs[2])})
	ends(shard, relay.Start{})
	w.read(w.open(src, anew, relay.Start{}), 2)
}

// A shard bears five reads a second; throttled ones wait, and are told when it goes on for long.
func TestPace(t *testing.T) {
	w := newWorld(t, 1)
	src, err := kinesis.OpenSource(t.Context(), w.options())
	if err != nil {
		t.Fatal(err)
	}
	shard := w.partitions(src)[0]
	begun := time.Now()
	r := w.open(src, shard, relay.Start{})
	for range 2 {
		if _, err := r.Read(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
	}
	if n, most := w.p.Requests()["GetRecords"], int(time.Since(begun)/(200*time.Millisecond))+1; n > most || n < 2 {
		t.Errorf("%d reads, want 2 to %d", n, most)
	}
	src.Hurry(10*time.Millisecond, time.Minute)
	w.put("k", numbers(3)...)
	w.p.Add(faultproxy.Rule{Op: "GetRecords", Fault: faultproxy.Throttle, Times: 5})
	w.p.Add(faultproxy.Rule{Op: "GetShardIterator", Fault: faultproxy.Throttle, Times: 5})
	r = w.open(src, shard, relay.Start{})
	w.read(r, 3)
	remove := w.p.Add(faultproxy.Rule{Op: "GetRecords", Fault: faultproxy.Throttle})
	if err := w.fails(r); relay.ClassOf(err) != relay.Throttled {
		t.Errorf("for long: %v", err)
	}
	remove()
	w.put("k", "4")
	w.read(r, 1) // it goes on at its place, though the relay would open another
}

// Parents are known of splits and merges, over several pages.
func TestParents(t *testing.T) {
	w := newWorld(t, 2)
	src := w.source()
	w.split(0)
	w.merge(0, 1)
	// kinesalite knows one page only.
	w.p.Add(faultproxy.Rule{Op: "ListShards", Handle: func(_ string, body []byte, forward func([]byte) (int, []byte)) (int, []byte) {
		if strings.Contains(string(body), "NextToken") {
			if strings.Contains(string(body), "StreamName") {
				return 400, []byte(`{"__type":"InvalidArgumentException"}`)
			}
			return 200, []byte(`{"Shards":[{"ShardId":"shardId-000000000099","ParentShardId":"shardId-000000000004"}]}`)
		}
		status, answer := forward(body)
		return status, []byte(strings.Replace(string(answer), "{", `{"NextToken":"more",`, 1))
	}})
	list, err := src.Partitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, p := range list {
		name, _, _ := strings.Cut(p.Name, ".")
		for _, parent := range p.Parents {
			parent, _, _ = strings.Cut(parent, ".")
			got[name] += parent[len(parent)-2:] + " "
		}
	}
	want := map[string]string{"shardId-000000000002": "00 ", "shardId-000000000003": "00 ", "shardId-000000000004": "02 03 ", "shardId-000000000099": "04 "}
	if fmt.Sprint(got) != fmt.Sprint(want) || len(list) != 6 {
		t.Errorf("parents %v of %d shards, want %v", got, len(list), want)
	}
}
