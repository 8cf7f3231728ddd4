package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/relaytest"
)

// rig is a relay with what it needs, whose processes can be started and killed.
type rig struct {
	t      *testing.T
	source *relaytest.Source
	sink   *relaytest.Sink
	leases *memory.Leases
	dead   relay.DeadLetters
	opts   relay.Options
}

func newRig(t *testing.T, partitions ...string) *rig {
	t.Helper()
	leases, err := memory.OpenLeases("", "relay."+"test", memory.LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = leases.Close() })
	dead, err := memory.OpenDeadLetters("", memory.DeadLetterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dead.Close() })
	g := &rig{t: t, source: relaytest.NewSource(partitions...), sink: &relaytest.Sink{}, leases: leases, dead: dead}
	g.opts = relay.Options{
		ID: "test", Source: g.source, Sink: g.sink, Leases: leases, Dead: dead,
		// A lease that no busy machine loses, looked at often.
		Lease:    lease.Options{Observe: 50 * time.Millisecond, Desired: time.Second, Flush: 20 * time.Millisecond, Retry: 10 * time.Millisecond},
		Discover: 20 * time.Millisecond,
		Tuning:   relay.Tuning{Backoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond, Attempts: 3, GiveUp: 50 * time.Millisecond},
	}
	return g
}

// start runs the relay as one more process would; stop ends it gracefully.
func (g *rig) start() (r *relay.Relay, stop func()) {
	g.t.Helper()
	r, err := relay.New(g.opts)
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				g.t.Errorf("Run ended with %v", err)
			}
		case <-time.After(30 * time.Second):
			g.t.Error("Run does not end")
		}
	})
	g.t.Cleanup(stop)
	return r, stop
}

// until waits for a condition.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(40 * time.Second); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("40 s and not yet: %s", what)
		}
	}
}

func (g *rig) took(n int) func() bool {
	return func() bool { return len(ids(g.sink.Taken())) >= n }
}

// ids are the distinct events, in the order in which they came first.
func ids(events []relay.Event) (list []string) {
	seen := map[string]bool{}
	for _, e := range events {
		if !seen[e.ID] {
			seen[e.ID] = true
			list = append(list, e.ID)
		}
	}
	return list
}

func TestEveryEventReachesTheSinkInOrder(t *testing.T) {
	g := newRig(t, "a", "b")
	g.opts.Tuning.Attempts = 50
	g.sink.Answer = func(e *relay.Event, before int) error {
		if rand.IntN(5) == 0 {
			return errors.New("not now")
		}
		return nil
	}
	_, stop := g.start()
	var want []relay.Event
	for n := range 2000 {
		p, key := []string{"a", "b"}[n%2], fmt.Sprint("k", n%2, rand.IntN(200))
		want = append(want, relay.Event{ID: g.source.Put(p, key), Key: key})
		if n%500 == 250 { // a deploy
			stop()
			_, stop = g.start()
		}
	}
	until(t, "all events are taken", g.took(2000))
	if err := relaytest.Audit(want, g.sink.Taken()); err != nil {
		t.Fatal(err)
	}
	if wrong := g.sink.Wrong(); wrong != nil {
		t.Fatal(wrong)
	}
	if s, _ := g.dead.Stats(t.Context(), "test"); s.Letters != 0 {
		t.Fatalf("%d dead letters: the sink takes all in the end", s.Letters)
	}
	stop()
	sent := len(g.sink.Taken())
	_, stop = g.start() // the cursor is at the end: nothing comes again
	g.source.Put("a", "last")
	until(t, "the last one is taken", g.took(2001)) // it may be refused first
	if n := len(g.sink.Taken()) - sent; n != 1 {
		t.Fatalf("%d events came again after a graceful stop", n-1)
	}
	stop()
}

func TestASinkThatStandsStillDelaysNoOther(t *testing.T) {
	g := newRig(t, "a")
	blocked := &relaytest.Sink{Block: make(chan struct{})}
	other := *g
	space, err := memory.OpenLeases("", "relay.other", memory.LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = space.Close() })
	other.opts.ID, other.opts.Sink, other.opts.Leases = "other", blocked, space
	other.start()
	g.start()
	for n := range 500 {
		g.source.Put("a", fmt.Sprint(n%50))
	}
	until(t, "the living sink has all", g.took(500))
	if n := len(blocked.Taken()); n != 0 {
		t.Fatalf("the blocked sink took %d", n)
	}
	close(blocked.Block)
	until(t, "the other has all too", func() bool { return len(ids(blocked.Taken())) == 500 })
}

func TestOnlyWhatFailedIsSentAgain(t *testing.T) {
	g := newRig(t, "a")
	bad := map[string]bool{}
	for n := 1; n <= 100; n++ {
		id := g.source.Put("a", fmt.Sprint(n))
		if n%20 == 0 {
			bad[id] = true
		}
	}
	g.sink.Answer = func(e *relay.Event, before int) error {
		if bad[e.ID] && before == 0 {
			return errors.New("not yet")
		}
		return nil
	}
	g.start()
	until(t, "all are taken", g.took(100))
	for n := 1; n <= 100; n++ {
		id, want := fmt.Sprintf("a/1.%d", n), 1
		if bad[id] {
			want = 2
		}
		if got := g.sink.Sent(id); got != want {
			t.Fatalf("%s was sent %d times, want %d", id, got, want)
		}
	}
}

func TestPoisonGoesToTheDeadLettersAndHoldsUpNothing(t *testing.T) {
	g := newRig(t, "a")
	heal := make(chan struct{})
	g.sink.Answer = func(e *relay.Event, _ int) error {
		select {
		case <-heal:
			return nil
		default:
		}
		switch e.ID {
		case "a/1.3":
			return relay.Errorf(relay.Rejected, "no such seat")
		case "a/1.5":
			return errors.New("500")
		}
		return nil
	}
	r, _ := g.start()
	for range 10 {
		g.source.Put("a", "k") // all of one key
	}
	live := make(chan struct{})
	var putting sync.WaitGroup
	putting.Go(func() { // others show that the sink lives
		for n := 0; ; n++ {
			select {
			case <-live:
				return
			case <-time.After(time.Millisecond):
				g.source.Put("a", fmt.Sprint("o", n))
			}
		}
	})
	until(t, "the key goes on", func() bool { return g.sink.Sent("a/1.10") > 0 })
	close(live)
	putting.Wait()
	letters, err := g.dead.List(t.Context(), "test", 0, 10)
	if err != nil || len(letters) != 2 {
		t.Fatalf("%d dead letters, %v", len(letters), err)
	}
	if l := letters[0]; l.Event.ID != "a/1.3" || l.Class != "rejected" || l.Attempts != 1 || l.Reason != "no such seat" {
		t.Fatalf("%+v", l)
	}
	if l := letters[1]; l.Event.ID != "a/1.5" || l.Class != "transient" || l.Attempts < 4 || l.Last.Sub(l.First) < 50*time.Millisecond {
		t.Fatalf("%+v", l)
	}
	out, err := r.Redrive(t.Context(), relay.Redrive{PerSecond: 1000, IDs: []string{"a/1.3"}})
	if err != nil || out != (relay.Redriven{Failed: 1}) {
		t.Fatalf("redrive of what is still refused: %+v, %v", out, err)
	}
	if l, err := g.dead.Get(t.Context(), "test", "a/1.3"); err != nil || l.Redriven != 1 || l.Attempts != 2 {
		t.Fatalf("%+v, %v", l, err)
	}
	close(heal)
	for range 2 { // the second time there is nothing to bring back
		out, err = r.Redrive(t.Context(), relay.Redrive{PerSecond: 1000})
		if err != nil || out.Failed != 0 {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	late := 0
	for _, e := range g.sink.Taken() {
		if e.Late != (e.ID == "a/1.3" || e.ID == "a/1.5") {
			t.Fatalf("%s: late %v", e.ID, e.Late)
		}
		if e.Late {
			late++
		}
	}
	if s, _ := g.dead.Stats(t.Context(), "test"); late != 2 || s.Letters != 0 {
		t.Fatalf("%d brought back, %d left", late, s.Letters)
	}
}

func TestFullDeadLettersStopTheRelayUntilThereIsRoom(t *testing.T) {
	g := newRig(t, "a")
	g.opts.Bounds = relay.DeadBounds{Letters: 3}
	g.sink.Answer = func(e *relay.Event, _ int) error {
		if e.Key == "bad" {
			return relay.Errorf(relay.Rejected, "never")
		}
		return nil
	}
	r, _ := g.start()
	for range 4 {
		g.source.Put("a", "bad")
	}
	until(t, "the relay stands still", func() bool {
		l := r.Lanes()
		return len(l) == 1 && l[0].Alarm == relay.AlarmDeadFull
	})
	good := g.source.Put("a", "good")
	for range 20 { // not at all proven by waiting, but it would show
		if g.sink.Sent(good) > 0 {
			t.Fatal("it sends though nothing can be buried")
		}
		time.Sleep(time.Millisecond)
	}
	if n, err := g.dead.Drop(t.Context(), "test", "a/1.1"); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	until(t, "it goes on", func() bool { return g.sink.Sent(good) > 0 })
	if s, _ := g.dead.Stats(t.Context(), "test"); s.Letters != 3 {
		t.Fatalf("%d letters", s.Letters)
	}
}

func TestAPanicOfAHandlerIsOneEventsFault(t *testing.T) {
	g := newRig(t, "a")
	g.opts.Handlers = []relay.Handler{func(_ context.Context, e *relay.Event) (bool, error) {
		if e.ID == "a/1.2" {
			panic("upset")
		}
		e.ID, e.Key = "stolen", "stolen" // which stay as they were
		e.Payload = []byte(`{"changed":true}`)
		return true, nil
	}}
	g.opts.Logger = slog.New(slog.DiscardHandler)
	g.start()
	for range 3 {
		g.source.Put("a", "k")
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				g.source.Put("a", fmt.Sprint("o", n))
			}
		}
	})
	until(t, "the key goes on", func() bool { return g.sink.Sent("a/1.3") > 0 })
	close(stop)
	wg.Wait()
	if l, err := g.dead.Get(t.Context(), "test", "a/1.2"); err != nil || l.Class != "transient" {
		t.Fatalf("%+v, %v", l, err)
	}
	for _, e := range g.sink.Taken() {
		if e.Key == "stolen" || string(e.Payload) != `{"changed":true}` {
			t.Fatalf("%+v", e)
		}
	}
}

func TestASourceThatFailsIsTriedAgain(t *testing.T) {
	g := newRig(t, "a")
	r, _ := g.start()
	g.source.Put("a", "k")
	until(t, "one is taken", g.took(1))
	g.source.Fail(errors.New("away"))
	g.source.Put("a", "k")
	until(t, "the alarm", func() bool {
		l := r.Lanes()
		return len(l) == 1 && l[0].Alarm == relay.AlarmSource
	})
	g.source.Fail(nil)
	until(t, "the second is taken", g.took(2))
	if n := g.sink.Sent("a/1.1"); n != 1 {
		t.Fatalf("the first was sent %d times", n)
	}
}
