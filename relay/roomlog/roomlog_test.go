package roomlog_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/roomlog"
	"github.com/ushergo/usher/room"
)

const patience = 40 * time.Second

func engine(t *testing.T, opts memory.Options, c room.Config) *memory.Engine {
	t.Helper()
	e, err := memory.Open(t.TempDir(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	do(t, e, &room.Command{Op: room.OpConfigure, Config: &c, Seed: make([]byte, 32)})
	return e
}

func do(t *testing.T, e *memory.Engine, cmd *room.Command) room.Result {
	t.Helper()
	res, err := e.Do(context.Background(), "premiere", cmd)
	if err != nil || res.Err != nil {
		t.Fatal(err, res.Err)
	}
	return res
}

func config(t *testing.T) room.Config {
	t.Helper()
	c := room.DefaultConfig("premiere")
	c.Capacity.Active = 1_000_000
	return c
}

// enter makes an admission: two events.
func enter(t *testing.T, e *memory.Engine) room.Ref {
	t.Helper()
	cmd := &room.Command{Op: room.OpEnter}
	rand.Read(cmd.NewID[:])
	return do(t, e, cmd).View.Ref
}

func read(t *testing.T, r relay.Reader, n int) (events []relay.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(events) < n {
		got, err := r.Read(ctx, 100)
		if err != nil {
			t.Fatalf("after %d: %v", len(events), err)
		}
		events = append(events, got...)
	}
	return events
}

func TestEventsAreWhatTheLogSays(t *testing.T) {
	e := engine(t, memory.Options{NoSync: true}, config(t))
	src := roomlog.New(e, roomlog.Options{Poll: 5 * time.Millisecond})
	parts, err := src.Partitions(t.Context())
	if err != nil || len(parts) != 1 || parts[0].Name != "premiere" {
		t.Fatal(parts, err)
	}
	r, err := src.Open(t.Context(), "premiere", relay.Start{})
	if err != nil {
		t.Fatal(err)
	}
	refs := []room.Ref{enter(t, e), enter(t, e)}
	got := read(t, r, 6)[1:]
	if got[0].Type != "state" || got[0].Key != "premiere" {
		t.Fatalf("%+v", got[0])
	}
	for i, want := range []string{"state", "entered", "admitted", "entered", "admitted"} {
		ev := got[i]
		var p room.PublicEvent
		if err := json.Unmarshal(ev.Payload, &p); err != nil {
			t.Fatal(err)
		}
		if ev.Type != want || p.Type != want || ev.ID != relay.RoomID("premiere", p.Epoch, p.N) || string(ev.Position) != fmt.Sprintf("%d.%d", p.Epoch, p.N) {
			t.Errorf("%d: %+v", i, ev)
		}
		if i > 0 && ev.Key != refs[(i-1)/2].ID.String() {
			t.Errorf("%d: key %s", i, ev.Key)
		}
	}
	r, err = src.Open(t.Context(), "premiere", relay.Start{After: got[2].Position})
	if err != nil {
		t.Fatal(err)
	}
	if next := read(t, r, 1)[0]; next.ID != got[3].ID {
		t.Fatal(next.ID)
	}
	r, err = src.Open(t.Context(), "premiere", relay.Start{At: got[3].At})
	if err != nil {
		t.Fatal(err)
	}
	if next := read(t, r, 1)[0]; next.At.Before(got[3].At) {
		t.Fatal(next.ID)
	}
}

// What is fresh comes from memory; after a gap there, from the engine.
func TestListening(t *testing.T) {
	e := engine(t, memory.Options{NoSync: true}, config(t))
	rooms, err := room.Open(t.Context(), e, room.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer rooms.Close()
	var told func([]room.Event)
	src := roomlog.New(e, roomlog.Options{Poll: time.Hour, Listen: func(id string, f func([]room.Event)) (func(), bool) {
		r, ok := rooms.Lookup(id)
		if !ok {
			return nil, false
		}
		told = f
		return r.Listen(f), true
	}})
	r, err := src.Open(t.Context(), "premiere", relay.Start{})
	if err != nil {
		t.Fatal(err)
	}
	read(t, r, 2)
	n := 2
	for round := range 6 {
		for range 700 {
			enter(t, e)
		}
		if round == 3 {
			told(nil) // something may have been missed
		}
		for _, ev := range read(t, r, 1400) {
			if n++; ev.ID != relay.RoomID("premiere", 1, uint64(n)) {
				t.Fatalf("%s, want n %d", ev.ID, n)
			}
		}
	}
}

// A log is kept for its slowest reader, beyond log.retain, and up to log.max_bytes; then there is a gap, and it is told.
func TestLogIsKeptForTheSlowest(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a log of 1 MiB; -short")
	}
	c := config(t)
	c.Log.Retain, c.Log.MaxBytes = room.Duration(time.Minute), 1<<20
	e := engine(t, memory.Options{NoSync: true, SegmentBytes: 32 << 10, SnapshotBytes: 64 << 10}, c)
	src := roomlog.New(e, roomlog.Options{Poll: 5 * time.Millisecond})
	r, err := src.Open(t.Context(), "premiere", relay.Start{})
	if err != nil {
		t.Fatal(err)
	}
	at := read(t, r, 2)[1].Position
	if err := src.Retain(t.Context(), "premiere", "slow", at); err != nil {
		t.Fatal(err)
	}
	full := func() bool { return e.Stats()["premiere"].Floor > 0 }
	for end := time.Now().Add(patience); !full(); {
		if time.Now().After(end) {
			t.Fatal("the log is never trimmed, whatever its length")
		}
		for range 500 {
			ref := enter(t, e)
			do(t, e, &room.Command{Op: room.OpLeave, Ref: ref})
		}
	}
	if end := e.Stats()["premiere"].End; int64(end) < 1<<20 {
		t.Fatalf("trimmed at %d bytes, though a reader needs it", end)
	}
	// The log may be trimmed further while it is read: then another gap follows the first.
	var lost int64
	for from := at; ; {
		events, err := r.Read(t.Context(), 100)
		var gap *relay.GapError
		switch {
		case errors.As(err, &gap):
			if gap.From != from || gap.Lost < 1 {
				t.Fatalf("%+v after %s", gap, from)
			}
			from, lost = gap.To, lost+gap.Lost
			continue
		case err != nil || len(events) == 0:
			t.Fatal(events, err)
		}
		if _, _, n, _ := relay.ParseRoomID(events[0].ID); lost < 1 || int64(n) != lost+3 {
			t.Fatalf("%s follows gaps of %d", events[0].ID, lost)
		}
		return
	}
}

// A room that was deleted and made again is read on, in its later epoch.
func TestARoomThatIsMadeAgain(t *testing.T) {
	c := config(t)
	e := engine(t, memory.Options{NoSync: true}, c)
	src := roomlog.New(e, roomlog.Options{Poll: 2 * time.Millisecond})
	r, err := src.Open(t.Context(), "premiere", relay.Start{})
	if err != nil {
		t.Fatal(err)
	}
	enter(t, e)
	read(t, r, 4)
	if err := e.Delete(t.Context(), "premiere", true); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Read(t.Context(), 10); err != nil || len(got) != 0 {
		t.Fatal(got, err)
	}
	if err := src.Retain(t.Context(), "premiere", "x", "1.4"); err != nil {
		t.Fatal(err)
	}
	do(t, e, &room.Command{Op: room.OpConfigure, Config: &c, Seed: make([]byte, 32)})
	enter(t, e)
	for i, ev := range read(t, r, 4) {
		if ev.ID != relay.RoomID("premiere", 2, uint64(i+1)) {
			t.Fatalf("%d: %s", i, ev.ID)
		}
	}
}
