package room_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
)

// counted counts the commands of a store, and can fail them.
type counted struct {
	room.Store
	ops  [16]atomic.Int64
	fail atomic.Bool
}

func (c *counted) Do(ctx context.Context, id string, cmd *room.Command) (room.Result, error) {
	c.ops[cmd.Op].Add(1)
	if c.fail.Load() {
		return room.Result{}, room.ErrUnavailable
	}
	return c.Store.Do(ctx, id, cmd)
}

// A poll of somebody who waits costs the store nothing; the signs of life go together.
func TestStatusOfWaitersAsksNoStore(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		engine, err := memory.Open(dir, memory.Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		store := &counted{Store: engine}
		ctx := context.Background()
		rooms, err := room.Open(ctx, store, room.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer rooms.Close()
		c := room.DefaultConfig("premiere")
		c.Capacity.Active = 1
		c.Queue.Grace = room.Duration(30 * time.Second)
		r, err := rooms.Configure(ctx, c, 0)
		if err != nil {
			t.Fatal(err)
		}
		var refs []room.Ref
		for range 101 {
			v, err := r.Enter(ctx, room.Ref{}, [16]byte{})
			if err != nil {
				t.Fatal(err)
			}
			refs = append(refs, v.Ref)
		}
		const rounds = 10
		time.Sleep(500 * time.Millisecond) // from here on half a second off the moments at which signs of life are sent
		for range rounds {                 // a hundred seconds of polling: more than three times the grace
			time.Sleep(10 * time.Second)
			if _, err := r.Renew(ctx, refs[0]); err != nil {
				t.Fatal(err)
			}
			for i, ref := range refs[1:] {
				if v, err := r.Status(ctx, ref); err != nil || v.State != room.Waiting || v.Place != int64(i)+1 || v.Waiting != 100 {
					t.Fatalf("%d: %v %+v", i, err, v)
				}
			}
		}
		if n := store.ops[room.OpStatus].Load(); n != 0 {
			t.Errorf("%d statuses of waiters went to the store", n)
		}
		if n := store.ops[room.OpHeard].Load(); n < rounds-1 || n > rounds {
			t.Errorf("%d rounds of polls of 100 became %d calls", rounds, n)
		}

		// A node whose signs of life do not arrive must not say that all is well: the others may have given them up.
		store.fail.Store(true)
		if _, err := r.Status(ctx, refs[5]); err != nil {
			t.Errorf("nothing has failed yet: %v", err)
		}
		time.Sleep(time.Second)
		if _, err := r.Status(ctx, refs[5]); !errors.Is(err, room.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		store.fail.Store(false)
		time.Sleep(time.Second)
		before := store.ops[room.OpStatus].Load()
		if _, err := r.Status(ctx, refs[5]); err != nil || store.ops[room.OpStatus].Load() != before {
			t.Errorf("%v, or the store was asked again", err)
		}
	})
}

// Where the order has changed, the log alone does not say who is drawn, and the store is asked.
func TestStatusAsksWhereTheLogDoesNotSay(t *testing.T) {
	engine, err := memory.Open(t.TempDir(), memory.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	store := &counted{Store: engine}
	ctx := context.Background()
	rooms, err := room.Open(ctx, store, room.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer rooms.Close()
	c := room.DefaultConfig("draw")
	c.Capacity.Active, c.Queue.Order = 1, room.Random
	enter := func(r *room.Room) room.Ref {
		v, err := r.Enter(ctx, room.Ref{}, [16]byte{})
		if err != nil {
			t.Fatal(err)
		}
		return v.Ref
	}
	r, err := rooms.Configure(ctx, c, 0)
	if err != nil {
		t.Fatal(err)
	}
	enter(r)
	drawn := enter(r)
	c.Queue.Order = room.FIFO
	if _, err := rooms.Configure(ctx, c, 0); err != nil {
		t.Fatal(err)
	}
	inLine := enter(r)
	asked := func(ref room.Ref, random bool) int64 {
		t.Helper()
		before := store.ops[room.OpStatus].Load()
		v, err := r.Status(ctx, ref)
		if err != nil || v.Random != random || v.State != room.Waiting {
			t.Errorf("%v %+v", err, v)
		}
		return store.ops[room.OpStatus].Load() - before
	}
	if n := asked(drawn, true); n != 1 {
		t.Errorf("the store was asked %d times about one who will be drawn", n)
	}
	if n := asked(inLine, false); n != 0 {
		t.Errorf("the store was asked %d times about one in line", n)
	}
	rooms.Close()
	if rooms, err = room.Open(ctx, store, room.Options{}); err != nil { // from a snapshot
		t.Fatal(err)
	}
	defer rooms.Close()
	if r, err = rooms.Get(ctx, "draw"); err != nil {
		t.Fatal(err)
	}
	if n := asked(drawn, true); n != 1 {
		t.Errorf("the store was asked %d times about one who will be drawn", n)
	}
}
