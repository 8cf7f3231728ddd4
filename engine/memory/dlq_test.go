package memory_test

import (
	"fmt"
	"testing"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/relaytest"
)

func TestDeadLetters(t *testing.T) {
	dirs := map[relay.DeadLetters]string{}
	openIn := func(t *testing.T, dir string) relay.DeadLetters {
		d, err := memory.OpenDeadLetters(dir, memory.DeadLetterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		dirs[d] = dir
		return d
	}
	t.Run("durable", func(t *testing.T) {
		relaytest.DeadLetters(t, func(t *testing.T) relay.DeadLetters { return openIn(t, t.TempDir()) }, relaytest.DeadAbilities{
			Restart: func(t *testing.T, d relay.DeadLetters) relay.DeadLetters {
				if err := d.(*memory.DeadLetters).Close(); err != nil {
					t.Fatal(err)
				}
				return openIn(t, dirs[d])
			},
		})
	})
	t.Run("nowhere", func(t *testing.T) {
		relaytest.DeadLetters(t, func(t *testing.T) relay.DeadLetters { return openIn(t, "") }, relaytest.DeadAbilities{})
	})
}

// Letters come back from a snapshot and the log after it, whatever was dropped in between.
func TestDeadLettersAfterSnapshots(t *testing.T) {
	dir := t.TempDir()
	d, err := memory.OpenDeadLetters(dir, memory.DeadLetterOptions{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	pad := fmt.Sprintf("%01000d", 0)
	for round := range 3 {
		for n := range 300 {
			l := relaytest.Letter("a", n)
			l.Reason = fmt.Sprint(round, pad)
			if err := d.Put(t.Context(), l, relay.DeadBounds{}); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 200 {
			if _, err := d.Drop(t.Context(), "a", relaytest.Letter("a", n).Event.ID); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Snap(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Drop(t.Context(), "a", relaytest.Letter("a", 299).Event.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = memory.OpenDeadLetters(dir, memory.DeadLetterOptions{}); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	got, err := d.List(t.Context(), "a", 0, 1000)
	if err != nil || len(got) != 99 {
		t.Fatalf("%d letters, %v; want 99", len(got), err)
	}
}
