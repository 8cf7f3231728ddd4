package relaysink_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/keeper"
	"github.com/ushergo/usher/keeper/keepertest"
	"github.com/ushergo/usher/keeper/relaysink"
	"github.com/ushergo/usher/relay"
)

// receiver takes an event of a name once, and checks fences.
type receiver struct {
	mu     sync.Mutex
	seen   map[string]bool
	fences map[string]uint64
	busy   map[string]bool
	rows   []keepertest.Row
	fault  func(e relay.Event) error
	t      *testing.T
}

func (r *receiver) Limits() relay.Limits { return relay.Limits{EventBytes: 300_000} }
func (r *receiver) Close() error         { return nil }

func (r *receiver) Send(ctx context.Context, b relay.Batch) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := make([]error, len(b.Events))
	for i, e := range b.Events {
		if r.busy[e.Key] {
			r.t.Errorf("two of %s at once", e.Key)
		}
		r.busy[e.Key] = true
		r.mu.Unlock()
		time.Sleep(time.Microsecond)
		r.mu.Lock()
		r.busy[e.Key] = false
		if b.Fence < r.fences[b.Partition] {
			errs[i] = relay.Errorf(relay.Fenced, "fence %d", b.Fence)
			continue
		}
		r.fences[b.Partition] = b.Fence
		if r.fault != nil {
			if errs[i] = r.fault(e); errs[i] != nil {
				continue
			}
		}
		if ctx.Err() != nil || r.seen[e.ID] {
			errs[i] = ctx.Err()
			continue
		}
		r.seen[e.ID] = true
		n, _ := parse(e.Position)
		r.rows = append(r.rows, keepertest.Row{Connection: e.Key, Seq: n, Fence: b.Fence, Data: string(e.Payload)})
	}
	return errs
}

func parse(p relay.Position) (n int64, err error) {
	for _, c := range p {
		n = n*10 + int64(c-'0')
	}
	return n, nil
}

func fresh(t *testing.T) *receiver {
	return &receiver{t: t, seen: map[string]bool{}, fences: map[string]uint64{}, busy: map[string]bool{}}
}

func TestOrderAndOnce(t *testing.T) {
	r := fresh(t)
	n := 0
	r.fault = func(relay.Event) error {
		if n++; n%3 == 0 {
			return errors.New("not now")
		}
		return nil
	}
	s := relaysink.New(r, 4)
	var batches []keeper.Batch
	for _, id := range []string{"a", "b", "c/d"} {
		b := keeper.Batch{Connection: id, Fence: 5}
		for seq := range int64(20) {
			b.Messages = append(b.Messages, keeper.Message{Seq: seq + 1, At: time.Now(), Data: []byte("x")})
		}
		batches = append(batches, b)
	}
	for try := 0; ; try++ {
		ok, err := s.Store(context.Background(), batches)
		if err == nil {
			if slices.Contains(ok, false) {
				t.Fatal(ok)
			}
			break
		}
		if try > 1000 {
			t.Fatal(err)
		}
		if try == 20 {
			r.fault = nil
		}
	}
	if len(r.rows) != 60 {
		t.Fatalf("%d rows", len(r.rows))
	}
	last := map[string]int64{}
	for _, row := range r.rows {
		if row.Seq != last[row.Connection]+1 {
			t.Fatalf("%s: %d after %d", row.Connection, row.Seq, last[row.Connection])
		}
		last[row.Connection] = row.Seq
	}
}

func TestFences(t *testing.T) {
	r := fresh(t)
	r.fences["a"] = 9 // somebody else's
	s := relaysink.New(r, 0)
	m := []keeper.Message{{Seq: 1, Data: []byte("x")}}
	ok, err := s.Store(context.Background(), []keeper.Batch{{Connection: "a", Fence: 8, Messages: m}, {Connection: "b", Fence: 8, Messages: m}})
	if err != nil || ok[0] || !ok[1] {
		t.Fatal(ok, err)
	}
	if ok, err = s.Store(context.Background(), []keeper.Batch{{Connection: "b", Fence: 10}, {Connection: "c", Fence: 1}}); err != nil || !ok[0] || !ok[1] {
		t.Fatal(ok, err)
	}
	if ok, err = s.Store(context.Background(), []keeper.Batch{{Connection: "b", Fence: 9, Messages: m}}); err != nil || ok[0] {
		t.Fatal(ok, err)
	}
}

func TestTooLong(t *testing.T) {
	s := relaysink.New(fresh(t), 0)
	_, err := s.Store(context.Background(), []keeper.Batch{{Connection: "a", Fence: 1, Messages: []keeper.Message{{Seq: 7, Data: make([]byte, 400_000)}}}})
	if err == nil || !strings.Contains(err.Error(), "a/7") || !strings.Contains(err.Error(), "max_message") {
		t.Fatal(err)
	}
}
