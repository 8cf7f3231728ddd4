package relay_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/relaytest"
)

// A process that stands still for longer than its lease loses its partitions; the sink refuses what it sends then.
func TestTheFenceKeepsAZombieOut(t *testing.T) {
	g := newRig(t, "a")
	g.opts.Lease = lease.Options{Lease: 500 * time.Millisecond, Flush: 20 * time.Millisecond, Retry: time.Millisecond}
	store := &gate{Store: g.leases}
	zombie := *g
	zombie.opts.Leases = store
	zombieSink := &relaytest.Sink{Block: make(chan struct{})}
	both := &fenced{to: []*relaytest.Sink{zombieSink, g.sink}}
	zombie.opts.Sink = both.as(0)
	g.opts.Sink = both.as(1)
	z, _ := zombie.start()
	g.source.Put("a", "k")
	until(t, "the first process carries it", func() bool { return len(z.Lanes()) == 1 })
	store.shut(true) // it cannot beat any more, and its Send hangs
	g.start()
	until(t, "the second process has it", g.took(1))
	close(zombieSink.Block)
	store.shut(false)
	last := g.source.Put("a", "k")
	until(t, "the second goes on", func() bool { return g.sink.Sent(last)+zombieSink.Sent(last) > 0 })
	if wrong := both.bad(); wrong != nil {
		t.Fatal(wrong)
	}
}

// gate is a lease store that can be shut.
type gate struct {
	lease.Store
	mu     sync.Mutex
	closed bool
}

func (g *gate) shut(v bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = v
}

func (g *gate) err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return lease.ErrUnavailable
	}
	return nil
}

func (g *gate) Beat(ctx context.Context, b lease.Beat) (bool, error) {
	if err := g.err(); err != nil {
		return false, err
	}
	return g.Store.Beat(ctx, b)
}

func (g *gate) Workers(ctx context.Context) ([]lease.WorkerRow, error) {
	if err := g.err(); err != nil {
		return nil, err
	}
	return g.Store.Workers(ctx)
}

func (g *gate) Flush(ctx context.Context, cs []lease.Cursor) ([]bool, error) {
	if err := g.err(); err != nil {
		return nil, err
	}
	return g.Store.Flush(ctx, cs)
}

// fenced is one sink with two doors, that checks fences where it writes.
type fenced struct {
	mu    sync.Mutex
	to    []*relaytest.Sink
	max   uint64
	wrong []string
}

type door struct {
	*relaytest.Sink
	f *fenced
}

func (f *fenced) as(i int) relay.Sink { return &door{f.to[i], f} }

func (f *fenced) bad() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wrong
}

func (d *door) Send(ctx context.Context, b relay.Batch) []error {
	errs := d.Sink.Send(ctx, b)
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if b.Fence < d.f.max {
		if errs == nil || slices.Contains(errs, nil) {
			return relay.All(len(b.Events), relay.Errorf(relay.Fenced, "fence %d, seen %d", b.Fence, d.f.max))
		}
		return errs
	}
	d.f.max = b.Fence
	return errs
}
