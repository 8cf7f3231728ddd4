package kinesis_test

import (
	"fmt"
	"math/big"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/relaytest"
)

// shards are the open ones, by the keys they take.
func (w *world) shards() (open []types.Shard) {
	w.t.Helper()
	out, err := w.client.ListShards(w.t.Context(), &api.ListShardsInput{StreamName: &w.stream})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range out.Shards {
		if s.SequenceNumberRange.EndingSequenceNumber == nil {
			open = append(open, s)
		}
	}
	slices.SortFunc(open, func(a, b types.Shard) int {
		return number(a.HashKeyRange.StartingHashKey).Cmp(number(b.HashKeyRange.StartingHashKey))
	})
	return open
}

func number(s *string) *big.Int {
	n, _ := new(big.Int).SetString(*s, 10)
	return n
}

// split halves the nth open shard.
func (w *world) split(n int) {
	w.t.Helper()
	before := w.shards()
	s := before[n]
	middle := new(big.Int).Add(number(s.HashKeyRange.StartingHashKey), number(s.HashKeyRange.EndingHashKey))
	_, err := w.client.SplitShard(w.t.Context(), &api.SplitShardInput{StreamName: &w.stream, ShardToSplit: s.ShardId, NewStartingHashKey: aws.String(middle.Rsh(middle, 1).String())})
	if err != nil {
		w.t.Fatal(err)
	}
	until(w.t, "it is split", func() bool { return len(w.shards()) == len(before)+1 })
	w.active()
}

// merge joins the nth open shard with the mth, its neighbour.
func (w *world) merge(n, m int) {
	w.t.Helper()
	before := w.shards()
	_, err := w.client.MergeShards(w.t.Context(), &api.MergeShardsInput{StreamName: &w.stream, ShardToMerge: before[n].ShardId, AdjacentShardToMerge: before[m].ShardId})
	if err != nil {
		w.t.Fatal(err)
	}
	until(w.t, "they are merged", func() bool { return len(w.shards()) == len(before)-1 })
	w.active()
}

// load has a relay write events into the stream, with as many under way as it likes.
type load struct {
	src  *relaytest.Source
	want []relay.Event
	keys int
}

func (w *world) load(keys int) *load {
	l := &load{src: relaytest.NewSource("premiere"), keys: keys}
	carry(w.t, l.src, w.sink(), func(o *relay.Options) { o.Tuning.Batch = 40 })
	return l
}

func (l *load) put(n int) {
	for range n {
		key := fmt.Sprint("ticket", len(l.want)%l.keys)
		l.want = append(l.want, relay.Event{ID: l.src.Put("premiere", key), Key: key})
	}
}

// audit waits until all are there, and looks at order and doubles.
func (l *load) audit(t *testing.T, end *relaytest.Sink) {
	t.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for distinct(end.Taken()) < len(l.want) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d events: %v", distinct(end.Taken()), len(l.want), relaytest.Audit(l.want, end.Taken()))
		}
		time.Sleep(20 * time.Millisecond)
	}
	got := end.Taken()
	if err := relaytest.Audit(l.want, got); err != nil {
		t.Error(err)
	}
	if distinct(got) != len(l.want) {
		t.Errorf("%d distinct events, %d were put", distinct(got), len(l.want))
	}
	clean(t, end)
	t.Logf("%d events, %d taken", len(l.want), len(got))
}

func scale(n int) int {
	if os.Getenv("USHER_SOAK") == "1" {
		return n * 20
	}
	return n
}

// Into a stream and out of it, while requests are throttled, late, fail, hang, are dropped, and replies are lost.
func TestChaosFaults(t *testing.T) {
	w := newWorld(t, 2)
	heal := w.hurt()
	l := w.load(37)
	var end relaytest.Sink
	carry(t, w.source(), &end, nil)
	for range 5 {
		l.put(scale(120))
		until(t, "half of them", func() bool { return distinct(end.Taken()) >= len(l.want)/2 })
	}
	l.audit(t, &end)
	heal()
}

// 2 → 4 → 3 shards under load and faults, with two processes' worth of consumers of which one leaves and another comes.
func TestChaosReshard(t *testing.T) {
	w := newWorld(t, 2)
	leases, err := memory.OpenLeases("", "relay.k", memory.LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = leases.Close() })
	var end relaytest.Sink
	shared := func(o *relay.Options) { o.Leases, o.Lease = leases, quick }
	heal := w.hurt()
	l := w.load(61)
	first := carry(t, w.source(), &end, shared)
	carry(t, w.source(), &end, shared)
	rounds := 1
	if os.Getenv("USHER_SOAK") == "1" {
		rounds = 10
	}
	for range rounds {
		for step, change := range []func(){
			func() { w.split(0) }, func() { w.split(len(w.shards()) - 1) },
			func() { first.stop(); first = carry(t, w.source(), &end, shared) },
			func() { w.merge(1, 2) }, func() { w.merge(0, 1) }, // 3, and 2 again for the next round
		} {
			if step == 4 && rounds == 1 {
				break // 3 it stays
			}
			l.put(150)
			until(t, "some have come", func() bool { return distinct(end.Taken()) >= len(l.want)-100 })
			l.put(50)
			change()
		}
	}
	l.put(200)
	l.audit(t, &end)
	heal()
	if rounds == 1 && len(w.shards()) != 3 {
		t.Errorf("%d shards", len(w.shards()))
	}
}
