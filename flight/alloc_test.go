package flight_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/ushergo/usher/flight"
)

// stuck starts a load of key 1 that runs until the returned function is called.
func stuck(g *flight.Group[int, int]) (release func()) {
	started, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		g.Do(context.Background(), 1, func(context.Context) (int, error) {
			close(started)
			<-end
			return 1, nil
		})
	}()
	<-started
	return func() { close(end); <-done }
}

func never(context.Context) (int, error) { panic("a joiner's load ran") }

func TestJoiningAllocatesNothing(t *testing.T) {
	var g flight.Group[int, int]
	release := stuck(&g)
	g.Do(leaving, 1, never) // the first joiner makes the channel that all wait on
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := g.Do(leaving, 1, never); err == nil {
			t.Error("stayed")
		}
	}); n != 0 {
		t.Errorf("joining and leaving allocates %v times", n)
	}
	release()
}

// leaving is the context of a caller who leaves as soon as she has joined: it has no error yet at the door.
var leaving = &leaver{Context: context.Background()}

type leaver struct {
	context.Context
	asked int
}

var gone = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (*leaver) Done() <-chan struct{} { return gone }

func (c *leaver) Err() error {
	c.asked++
	if c.asked%2 == 1 {
		return nil
	}
	return context.Canceled
}

func TestAbandonedWaitersLeaveNothingBehind(t *testing.T) { // cases/flight 18
	var g flight.Group[int, int]
	release := stuck(&g)
	g.Do(leaving, 1, never)
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	const n = 100_000
	for range n {
		g.Do(leaving, 1, never)
	}
	if per := float64(heap()-before) / n; per > 0.5 {
		t.Errorf("an abandoned waiter holds %.2f bytes", per)
	}
	release()
}

func TestLeadingAllocations(t *testing.T) {
	var g flight.Group[int, int]
	load := func(context.Context) (int, error) { return 1, nil }
	if n := testing.AllocsPerRun(1000, func() { g.Do(context.Background(), 1, load) }); n > 1 {
		t.Errorf("leading inline allocates %v times, want the flight alone", n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if n := testing.AllocsPerRun(1000, func() { g.Do(ctx, 1, load) }); n > 5 {
		t.Errorf("leading detached allocates %v times", n)
	}
}

func BenchmarkInline(b *testing.B) {
	var g flight.Group[string, int]
	b.ReportAllocs()
	for b.Loop() {
		g.Do(context.Background(), "key", func(context.Context) (int, error) { return 1, nil })
	}
}

func BenchmarkDetached(b *testing.B) {
	var g flight.Group[string, int]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		g.Do(ctx, "key", func(context.Context) (int, error) { return 1, nil })
	}
}
