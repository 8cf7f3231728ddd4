package memory_test

import (
	"context"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
)

func open(t testing.TB, dir string) (*memory.Engine, *room.Rooms) {
	t.Helper()
	e, err := memory.Open(dir, memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rs, err := room.Open(context.Background(), e, room.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e, rs
}

func config(active int64) room.Config {
	c := room.DefaultConfig("premiere")
	c.Capacity.Active = active
	c.Match = []room.Match{{Path: "/"}}
	return c
}

func TestRestartKeepsPlaces(t *testing.T) {
	dir, ctx := t.TempDir(), context.Background()
	e, rs := open(t, dir)
	r, err := rs.Configure(ctx, config(2), 0)
	if err != nil {
		t.Fatal(err)
	}
	var refs []room.Ref
	for i := range 5 {
		v, err := r.Enter(ctx, room.Ref{}, [16]byte{byte(i + 1)})
		if err != nil {
			t.Fatal(err)
		}
		if want := max(0, int64(i-1)); v.Place != want {
			t.Errorf("enter %d: place %d, want %d", i, v.Place, want)
		}
		refs = append(refs, v.Ref)
	}
	for round := range 3 {
		rs.Close()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		e, rs = open(t, dir)
		if r, err = rs.Get(ctx, "premiere"); err != nil {
			t.Fatal(err)
		}
		for i, ref := range refs {
			v, err := r.Status(ctx, ref)
			if err != nil || v.Ref != ref || (v.State == room.Active) != (i < 2) || v.Place != max(0, int64(i-1)) {
				t.Fatalf("round %d, ticket %d: %+v %v", round, i, v, err)
			}
			again, err := r.Enter(ctx, room.Ref{}, [16]byte{byte(i + 1)})
			if err != nil || again.Ref != ref || again.Created {
				t.Fatalf("round %d, ticket %d entered again: %+v %v", round, i, again, err)
			}
		}
	}
	events, next, err := r.Log(ctx, room.Cursor{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		t.Logf("%v %v", e.N, e.Type)
	}
	if next.N != uint64(len(events)) {
		t.Errorf("next %v after %d events", next, len(events))
	}
	rs.Close()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	_ = time.Now
}
