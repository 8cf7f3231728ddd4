// Package relaytest holds engines, sources and sinks of a relay to what the package relay says of them.
package relaytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/relay"
)

// DeadAbilities say what a store of dead letters can be put through.
type DeadAbilities struct {
	// Restart closes the store as a crash would and opens it again; nil: it cannot be.
	Restart func(t *testing.T, d relay.DeadLetters) relay.DeadLetters
}

// DeadLetters runs the suite; open makes an empty store each time.
func DeadLetters(t *testing.T, open func(t *testing.T) relay.DeadLetters, can DeadAbilities) {
	for name, test := range map[string]func(*testing.T, relay.DeadLetters, DeadAbilities){
		"keeps":   deadKeeps,
		"bounds":  deadBounds,
		"expires": deadExpires,
		"crowd":   deadCrowd,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t), can) })
	}
}

// Letter makes a letter of a relay for event n.
func Letter(of string, n int) relay.Letter {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(n) * time.Minute)
	e := relay.Event{ID: relay.RoomID("premiere", 1, uint64(n)), Key: fmt.Sprint("key", n), Type: "admitted", At: at, Payload: []byte(fmt.Sprintf(`{"n":%d}`, n)), Position: relay.Position(fmt.Sprintf("1.%d", n))}
	return relay.Letter{Relay: of, Partition: "premiere", Event: e.Envelope(), Class: "rejected", Reason: "no such seat", Attempts: 1, First: at, Last: at.Add(time.Second)}
}

func put(t *testing.T, d relay.DeadLetters, l relay.Letter) {
	t.Helper()
	if err := d.Put(t.Context(), l, relay.DeadBounds{}); err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, d relay.DeadLetters, of string, after uint64, limit int) []relay.Letter {
	t.Helper()
	letters, err := d.List(t.Context(), of, after, limit)
	if err != nil {
		t.Fatal(err)
	}
	return letters
}

func deadKeeps(t *testing.T, d relay.DeadLetters, can DeadAbilities) {
	for n := range 25 {
		put(t, d, Letter("a", n))
	}
	put(t, d, Letter("b", 3))
	binary := Letter("a", 25)
	binary.Event.Payload, binary.Event.Binary = nil, []byte{0, 255, 10, 13}
	put(t, d, binary)
	again := Letter("a", 7)
	again.Attempts, again.Redriven, again.Reason, again.First, again.Last = 9, 2, "still none", time.Now(), again.Last.Add(time.Hour)
	put(t, d, again)
	check := func(d relay.DeadLetters) {
		t.Helper()
		var all []relay.Letter
		for after := uint64(0); ; {
			page := list(t, d, "a", after, 10)
			if len(page) == 0 {
				break
			}
			all = append(all, page...)
			after = page[len(page)-1].Seq
		}
		if len(all) != 26 {
			t.Fatalf("%d letters, want 26", len(all))
		}
		for n, l := range all {
			want := Letter("a", n)
			switch n {
			case 7:
				want.Attempts, want.Redriven, want.Reason, want.Last = again.Attempts, again.Redriven, again.Reason, again.Last
			case 25:
				want.Event = binary.Event
			}
			want.Seq = l.Seq
			same(t, l, want)
			got, err := d.Get(t.Context(), "a", want.Event.ID)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, want)
		}
		if s, err := d.Stats(t.Context(), "a"); err != nil || s.Letters != 26 || s.Bytes <= 0 || !s.Oldest.Equal(all[0].First) {
			t.Fatalf("stats %+v, %v", s, err)
		}
		if got := list(t, d, "b", 0, 10); len(got) != 1 {
			t.Fatalf("relay b has %d letters", len(got))
		}
		if got := list(t, d, "c", 0, 10); len(got) != 0 {
			t.Fatalf("a relay without letters has %d", len(got))
		}
	}
	check(d)
	if can.Restart != nil {
		d = can.Restart(t, d)
		check(d)
	}
	if _, err := d.Get(t.Context(), "a", "premiere/9.9"); !errors.Is(err, relay.ErrNoLetter) {
		t.Fatalf("a letter that was never put: %v", err)
	}
	ids := []string{relay.RoomID("premiere", 1, 3), relay.RoomID("premiere", 1, 4), "premiere/9.9"}
	for want := 2; want >= 0; want -= 2 { // the second time there are none
		if n, err := d.Drop(t.Context(), "a", ids...); err != nil || n != want {
			t.Fatalf("dropped %d, %v; want %d", n, err, want)
		}
	}
	if can.Restart != nil {
		d = can.Restart(t, d)
	}
	if got := list(t, d, "a", 0, 100); len(got) != 24 {
		t.Fatalf("%d letters after two were dropped", len(got))
	}
	last := list(t, d, "a", 0, 100)[23].Seq
	put(t, d, Letter("a", 3))
	if l, err := d.Get(t.Context(), "a", ids[0]); err != nil || l.Seq <= last {
		t.Fatalf("a letter put anew has seq %d, not above %d (%v)", l.Seq, last, err)
	}
}

func same(t *testing.T, got, want relay.Letter) {
	t.Helper()
	a, b := fmt.Sprintf("%+v", plain(got)), fmt.Sprintf("%+v", plain(want))
	if a != b {
		t.Fatalf("got\n%s\nwant\n%s", a, b)
	}
}

// plain makes letters comparable as text.
func plain(l relay.Letter) any {
	first, last, at := l.First.UTC(), l.Last.UTC(), l.Event.At.UTC()
	payload, binary := string(l.Event.Payload), string(l.Event.Binary)
	l.First, l.Last, l.Event.At, l.Event.Payload, l.Event.Binary = time.Time{}, time.Time{}, time.Time{}, nil, nil
	return struct {
		L               relay.Letter
		First, Last, At time.Time
		Payload, Binary string
	}{l, first, last, at, payload, binary}
}

func deadBounds(t *testing.T, d relay.DeadLetters, _ DeadAbilities) {
	few := relay.DeadBounds{Letters: 3, Bytes: 1 << 20}
	for n := range 3 {
		if err := d.Put(t.Context(), Letter("a", n), few); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Put(t.Context(), Letter("a", 3), few); !errors.Is(err, relay.ErrDeadFull) {
		t.Fatalf("a fourth letter of three: %v", err)
	}
	if err := d.Put(t.Context(), Letter("a", 2), few); err != nil {
		t.Fatalf("one that is there already: %v", err)
	}
	if err := d.Put(t.Context(), Letter("b", 3), few); err != nil {
		t.Fatalf("another relay's: %v", err)
	}
	if _, err := d.Drop(t.Context(), "a", Letter("a", 0).Event.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.Put(t.Context(), Letter("a", 3), few); err != nil {
		t.Fatalf("after one was dropped: %v", err)
	}
	small := Letter("c", 1)
	tight := relay.DeadBounds{Letters: 10, Bytes: small.Size() + 10}
	if err := d.Put(t.Context(), small, tight); err != nil {
		t.Fatal(err)
	}
	if err := d.Put(t.Context(), Letter("c", 2), tight); !errors.Is(err, relay.ErrDeadFull) {
		t.Fatalf("bytes beyond the bound: %v", err)
	}
}

func deadExpires(t *testing.T, d relay.DeadLetters, _ DeadAbilities) {
	for n := range 10 {
		put(t, d, Letter("a", n))
		put(t, d, Letter("b", n))
	}
	if n, err := d.Expire(t.Context(), "a", Letter("a", 4).Last); err != nil || n != 4 {
		t.Fatalf("expired %d, %v; want 4", n, err)
	}
	if got := list(t, d, "a", 0, 100); len(got) != 6 || got[0].Event.ID != Letter("a", 4).Event.ID {
		t.Fatalf("%d letters are left", len(got))
	}
	if got := list(t, d, "b", 0, 100); len(got) != 10 {
		t.Fatalf("another relay has %d letters left", len(got))
	}
}

func deadCrowd(t *testing.T, d relay.DeadLetters, _ DeadAbilities) {
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for n := range 40 {
				if err := d.Put(context.WithoutCancel(t.Context()), Letter("a", w*20+n), relay.DeadBounds{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got := list(t, d, "a", 0, 1000)
	if len(got) != 7*20+40 {
		t.Fatalf("%d letters", len(got))
	}
	if !slices.IsSortedFunc(got, func(a, b relay.Letter) int { return int(int64(a.Seq - b.Seq)) }) {
		t.Fatal("not by seq")
	}
	for i := 1; i < len(got); i++ {
		if got[i].Seq == got[i-1].Seq {
			t.Fatalf("two letters with seq %d", got[i].Seq)
		}
	}
}
