package relay_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ushergo/usher/relay"
)

func TestAGapIsToldAndStopsTheRelay(t *testing.T) {
	g := newRig(t, "a")
	g.opts.Handlers = []relay.Handler{relay.Only("admitted")}
	for range 10 {
		g.source.Put("a", "k")
	}
	r, stop := g.start()
	until(t, "ten are taken", g.took(10))
	stop()
	for range 10 {
		g.source.Put("a", "k")
	}
	g.source.Trim("a", 4)
	for round := range 2 { // also after a restart it stands at the gap
		r, stop = g.start()
		until(t, "the alarm", func() bool {
			l := r.Lanes()
			return len(l) == 1 && l[0].Alarm == relay.AlarmGap
		})
		if n := len(ids(g.sink.Taken())); n != 11 {
			t.Fatalf("%d events, want ten and the gap (round %d)", n, round)
		}
		if round == 0 {
			stop()
		}
	}
	gap := g.sink.Taken()[10]
	if gap.Type != relay.TypeGap || gap.ID != "a/gap/10-16" {
		t.Fatalf("%+v", gap)
	}
	if err := r.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "it goes on", g.took(15))
	stop()
	_, stop = g.start()
	last := g.source.Put("a", "k")
	until(t, "the last is taken", func() bool { return g.sink.Sent(last) > 0 })
	stop()
}

func TestPauseResumeAndSeek(t *testing.T) {
	g := newRig(t, "a")
	r, _ := g.start()
	g.source.Put("a", "k")
	until(t, "one is taken", g.took(1))
	if err := r.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "nobody carries it", func() bool { return len(r.Lanes()) == 0 })
	g.source.Put("a", "k")
	if s, err := r.Status(t.Context()); err != nil || !s.Paused || s.Partitions[0].State != "paused" {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := r.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "two are taken", g.took(2))
	time.Sleep(2 * time.Millisecond)
	middle := time.Now()
	g.source.Put("a", "k")
	until(t, "three are taken", g.took(3))
	if err := r.Seek(t.Context(), relay.From{At: middle}); err != nil {
		t.Fatal(err)
	}
	until(t, "the third comes again", func() bool { return g.sink.Sent("a/1.3") == 2 })
	if err := r.Seek(t.Context(), relay.From{}); err != nil {
		t.Fatal(err)
	}
	until(t, "all come again", func() bool { return g.sink.Sent("a/1.3") == 3 })
	if a, b := g.sink.Sent("a/1.1"), g.sink.Sent("a/1.2"); a != 2 || b != 2 {
		t.Fatalf("the first was sent %d times, the second %d", a, b)
	}
	if err := r.Seek(t.Context(), relay.From{After: "2"}); err != nil {
		t.Fatal(err)
	}
	until(t, "the third comes once more", func() bool { return g.sink.Sent("a/1.3") == 4 })
	if a := g.sink.Sent("a/1.2"); a != 2 {
		t.Fatalf("the second came too (%d)", a)
	}
}

func TestNewestBeginsOnceAndForAll(t *testing.T) {
	g := newRig(t, "a")
	g.source.Put("a", "k")
	time.Sleep(2 * time.Millisecond)
	g.opts.From = relay.From{Newest: true}
	_, stop := g.start()
	until(t, "a reader is open", func() bool { return g.source.Opens() > 0 })
	stop()
	second := g.source.Put("a", "k") // while nobody runs
	_, stop = g.start()
	until(t, "it is taken", func() bool { return g.sink.Sent(second) > 0 })
	if n := g.sink.Sent("a/1.1"); n != 0 {
		t.Fatal("what was before the beginning is sent")
	}
	stop()
}

func TestParentsComeFirst(t *testing.T) {
	g := newRig(t, "p1", "p2")
	for n := range 200 {
		g.source.Put([]string{"p1", "p2"}[n%2], fmt.Sprint("k", n%20))
	}
	g.source.Replace([]string{"p1", "p2"}, "merged")
	g.source.Put("merged", "k1")
	g.source.Replace([]string{"merged"}, "c1", "c2")
	g.source.Put("c1", "k1")
	g.source.Put("c2", "k2")
	hold := make(chan struct{})
	g.sink.Answer = func(e *relay.Event, _ int) error {
		select {
		case <-hold:
			return nil
		default:
		}
		if e.ID == "p2/1.100" {
			return errors.New("not yet")
		}
		return nil
	}
	r, stop := g.start()
	_, stop2 := g.start()
	until(t, "all of the parents but one are taken", g.took(199))
	g.source.Hide("p1")
	g.source.Hide("p2")
	for range 20 {
		if g.sink.Sent("merged/1.1") > 0 {
			t.Fatal("the child is read before both parents are finished")
		}
		time.Sleep(time.Millisecond)
	}
	close(hold)
	until(t, "all are taken", g.took(203))
	got := ids(g.sink.Taken())
	if m := slices.Index(got, "merged/1.1"); m < slices.Index(got, "p2/1.100") || m > slices.Index(got, "c1/1.1") || m > slices.Index(got, "c2/1.1") {
		t.Fatal("not parents first")
	}
	until(t, "the ended ones are known", func() bool {
		s, err := r.Status(t.Context())
		return err == nil && len(s.Partitions) == 5 && s.Partitions[2].State == "ended"
	})
	stop()
	g.source.Put("c1", "k9")
	g.source.Put("c2", "k9")
	until(t, "the other process carries on", g.took(205))
	stop2()
}
