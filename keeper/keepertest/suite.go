package keepertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/keeper"
)

// Row is a message as a sink has it.
type Row struct {
	Connection string
	Seq        int64
	Fence      uint64
	Binary     bool
	Data       string
}

// Fixture is a fresh, empty sink.
type Fixture struct {
	Sink keeper.Sink
	// Rows reads everything that is stored, in any order.
	Rows func(t *testing.T) []Row
	// FenceFirst: the fence is looked at before messages are written, not in one step with them. A batch that was on its way
	// when a higher fence came may then still be written.
	FenceFirst bool
}

// Run holds a sink to what keeper.Sink says.
func Run(t *testing.T, fresh func(t *testing.T) Fixture) {
	t.Run("each message once", func(t *testing.T) { once(t, fresh(t)) })
	t.Run("a lower fence is refused", func(t *testing.T) { fenced(t, fresh(t)) })
	t.Run("what is stored is what came", func(t *testing.T) { faithful(t, fresh(t)) })
	t.Run("many batches in one call", func(t *testing.T) { many(t, fresh(t)) })
	t.Run("two owners at once", func(t *testing.T) { owners(t, fresh(t)) })
	t.Run("a call that was cut is repeated", func(t *testing.T) { cut(t, fresh(t)) })
}

func batch(id string, fence uint64, seqs ...int64) keeper.Batch {
	b := keeper.Batch{Connection: id, Fence: fence}
	for _, n := range seqs {
		b.Messages = append(b.Messages, keeper.Message{Seq: n, At: time.Now(), Data: fmt.Appendf(nil, `{"seq":%d}`, n)})
	}
	return b
}

func store(t *testing.T, s keeper.Sink, batches ...keeper.Batch) []bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for try := 0; ; try++ {
		ok, err := s.Store(ctx, batches)
		if err == nil {
			if len(ok) != len(batches) {
				t.Fatalf("%d answers to %d batches", len(ok), len(batches))
			}
			return ok
		}
		if try == 20 || ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

func sorted(rows []Row) []Row {
	slices.SortFunc(rows, func(a, b Row) int {
		if c := strings.Compare(a.Connection, b.Connection); c != 0 {
			return c
		}
		return int(a.Seq - b.Seq)
	})
	return rows
}

func seqs(rows []Row, id string) (list []int64) {
	for _, r := range sorted(rows) {
		if r.Connection == id {
			list = append(list, r.Seq)
		}
	}
	return list
}

func want(t *testing.T, f Fixture, id string, list ...int64) {
	t.Helper()
	if got := seqs(f.Rows(t), id); !slices.Equal(got, list) {
		t.Fatalf("%s has %v, want %v", id, got, list)
	}
}

func once(t *testing.T, f Fixture) {
	for _, b := range []keeper.Batch{batch("a", 1, 1, 2), batch("a", 1, 1, 2), batch("a", 1, 2, 3), batch("a", 2, 1, 2, 3, 4)} {
		if ok := store(t, f.Sink, b); !ok[0] {
			t.Fatalf("%v is refused", b)
		}
	}
	want(t, f, "a", 1, 2, 3, 4)
	for _, r := range f.Rows(t) {
		if wantFence := uint64(1); r.Seq == 4 && r.Fence != 2 || r.Seq < 4 && r.Fence != wantFence {
			t.Fatalf("message %d has fence %d: a repeated one has changed it", r.Seq, r.Fence)
		}
	}
}

func fenced(t *testing.T, f Fixture) {
	if ok := store(t, f.Sink, batch("a", 7, 1)); !ok[0] {
		t.Fatal("the first is refused")
	}
	if ok := store(t, f.Sink, batch("a", 9)); !ok[0] { // makes itself known, without a message
		t.Fatal("a higher fence is refused")
	}
	if ok := store(t, f.Sink, batch("a", 7, 2), batch("b", 7, 1), batch("a", 8)); ok[0] || !ok[1] || ok[2] {
		t.Fatalf("answers %v, want false true false", ok)
	}
	want(t, f, "a", 1)
	want(t, f, "b", 1)
	if ok := store(t, f.Sink, batch("a", 9, 2)); !ok[0] {
		t.Fatal("the highest fence is refused")
	}
	want(t, f, "a", 1, 2)
	const big = 1<<53 - 1 // what engines with a clock give out is µs since 1970, and below this
	if ok := store(t, f.Sink, batch("a", big, 3)); !ok[0] {
		t.Fatal("a large fence is refused")
	}
	if ok := store(t, f.Sink, batch("a", big-1, 4)); ok[0] {
		t.Fatal("one below a large fence is taken")
	}
}

func faithful(t *testing.T, f Fixture) {
	id := "A.b_c:d/e@f=g+h,i-" + strings.Repeat("x", 200)
	data := []byte{0, 1, 0xff, '\'', '"', '\\', 0}
	long := []byte(strings.Repeat("ü€", 30_000))
	b := keeper.Batch{Connection: id, Fence: 3, Messages: []keeper.Message{
		{Seq: 0, At: time.Now(), Data: []byte{}},
		{Seq: 5, At: time.Now(), Binary: true, Data: data},
		{Seq: 1<<63 - 1, At: time.Now(), Data: long},
	}}
	store(t, f.Sink, b, keeper.Batch{Connection: strings.ToLower(id), Fence: 1})
	rows := sorted(f.Rows(t))
	wanted := []Row{{id, 0, 3, false, ""}, {id, 5, 3, true, string(data)}, {id, 1<<63 - 1, 3, false, string(long)}}
	if !slices.Equal(rows, wanted) {
		t.Fatalf("got %.300s, want %.300s", fmt.Sprint(rows), fmt.Sprint(wanted))
	}
}

func many(t *testing.T, f Fixture) {
	var batches []keeper.Batch
	for i := range 30 {
		b := keeper.Batch{Connection: fmt.Sprintf("c%03d", i), Fence: uint64(i + 1)}
		for n := range int64(15) {
			b.Messages = append(b.Messages, keeper.Message{Seq: n + 1, At: time.Now(), Data: []byte("x")})
		}
		batches = append(batches, b)
	}
	rand.Shuffle(len(batches), func(i, j int) { batches[i], batches[j] = batches[j], batches[i] })
	for range 2 {
		if ok := store(t, f.Sink, batches...); slices.Contains(ok, false) {
			t.Fatalf("answers %v", ok)
		}
	}
	if n := len(f.Rows(t)); n != 30*15 {
		t.Fatalf("%d rows, want %d", n, 30*15)
	}
}

// owners lets a zombie and its successor write at the same time.
func owners(t *testing.T, f Fixture) {
	const n = 40
	var wg sync.WaitGroup
	accepted := make([][]bool, 3)
	for fence := uint64(1); fence <= 2; fence++ {
		wg.Go(func() {
			for i := range int64(n) {
				accepted[fence] = append(accepted[fence], store(t, f.Sink, batch("a", fence, i+1))[0])
			}
		})
	}
	wg.Wait()
	if slices.Contains(accepted[2], false) {
		t.Fatal("the higher fence was refused")
	}
	if i := slices.Index(accepted[1], false); i >= 0 && slices.Contains(accepted[1][i:], true) {
		t.Fatal("a zombie was refused, and then taken")
	}
	rows := f.Rows(t)
	if len(rows) != n {
		t.Fatalf("%d rows, want %d", len(rows), n)
	}
	// Where message k is the zombie's, it came before the successor's k. So no zombie's may stand behind a message that it
	// was refused.
	if i := slices.Index(accepted[1], false); i >= 0 && !f.FenceFirst {
		for _, r := range rows {
			if r.Fence == 1 && r.Seq > int64(i) {
				t.Fatalf("message %d is stored under fence 1, which was refused it", r.Seq)
			}
		}
	}
}

func cut(t *testing.T, f Fixture) {
	var list []int64
	for i := range int64(20) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(3000))*time.Microsecond)
		_, _ = f.Sink.Store(ctx, []keeper.Batch{batch("a", 1, 2*i+1, 2*i+2)})
		cancel()
		if ok := store(t, f.Sink, batch("a", 1, 2*i+1, 2*i+2)); !ok[0] {
			t.Fatal("refused")
		}
		list = append(list, 2*i+1, 2*i+2)
	}
	want(t, f, "a", list...)
}
