package relay_test

import (
	"context"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/relaytest"
)

// A row that says stopped, of a partition that is not at its end, is started again, as long as nobody has said pause.
func TestStoppedRow(t *testing.T) {
	leases, err := memory.OpenLeases("", "relay.a", memory.LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dead, err := memory.OpenDeadLetters("", memory.DeadLetterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	src := relaytest.NewSource("p")
	var sink relaytest.Sink
	r, err := relay.New(relay.Options{
		ID: "a", Source: src, Sink: &sink, Leases: leases, Dead: dead, Discover: 10 * time.Millisecond,
		Lease: lease.Options{Lease: 5 * time.Second, Desired: 50 * time.Millisecond, Flush: 10 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-done
		_, _ = leases.Close(), dead.Close()
	})
	row := func() lease.Row {
		rows, _, err := leases.List(ctx, "", lease.MaxList)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			if row.ID == "p" {
				return row
			}
		}
		return lease.Row{}
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %+v", what, row())
			}
		}
	}
	src.Put("p", "k")
	wait("the first event", func() bool { return len(sink.Taken()) == 1 })
	if _, err := leases.Put(ctx, lease.Put{ID: "p", Desired: lease.Stopped}); err != nil {
		t.Fatal(err)
	}
	src.Put("p", "k")
	wait("the second", func() bool { return len(sink.Taken()) == 2 })
	if err := r.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := leases.Put(ctx, lease.Put{ID: "p", Desired: lease.Started}); err != nil {
		t.Fatal(err)
	}
	wait("it is paused", func() bool { return row().Desired == lease.Stopped })
}
