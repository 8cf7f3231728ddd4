package room_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
)

// deaf is a store whose followers hear nothing more once it is dead, though everything else works: a subscription that
// was lost without a sign. Following anew works while well.
type deaf struct {
	*memory.Engine
	dead, well atomic.Bool
	follows    atomic.Int64
}

type deafFollower struct {
	room.Follower
	of  *deaf
	old bool
}

func (d *deaf) Follow(ctx context.Context, id string, f room.Follower) error {
	n := d.follows.Add(1)
	return d.Engine.Follow(ctx, id, &deafFollower{f, d, n == 1 || !d.well.Load()})
}

func (f *deafFollower) Reset(m *room.Mirror) {
	if !f.of.dead.Load() || !f.old {
		f.Follower.Reset(m)
	}
}

func (f *deafFollower) Apply(events []room.Event) {
	if !f.of.dead.Load() || !f.old {
		f.Follower.Apply(events)
	}
}

// A log that no longer arrives makes the node unready within 10 s, and is followed anew until it does.
func TestALogThatDoesNotArrive(t *testing.T) { // cases/push 9, 10
	synctest.Test(t, func(t *testing.T) {
		engine, err := memory.Open(t.TempDir(), memory.Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		store := &deaf{Engine: engine}
		rooms, err := room.Open(t.Context(), store, room.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer rooms.Close()
		cfg := room.DefaultConfig("premiere")
		cfg.Capacity.Active = 1
		r, err := rooms.Configure(t.Context(), cfg, 0)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // quiet is not dead
		if err := rooms.Health(); err != nil {
			t.Fatal(err)
		}
		store.dead.Store(true)
		if _, err := r.Enter(t.Context(), room.Ref{}, [16]byte{}); err != nil {
			t.Fatal(err)
		}
		behind := r.Head()
		time.Sleep(10 * time.Second)
		if err := rooms.Health(); err == nil || !strings.Contains(err.Error(), "premiere") {
			t.Errorf("10 s after its log fell silent: %v", err)
		}
		if r.Head() != behind {
			t.Error("it was not silent: nothing was tested")
		}
		store.well.Store(true)
		time.Sleep(10 * time.Second)
		if err := rooms.Health(); err != nil {
			t.Errorf("it did not heal: %v", err)
		}
		if !behind.Before(r.Head()) || store.follows.Load() < 2 {
			t.Errorf("at %v, followed %d times", r.Head(), store.follows.Load())
		}
	})
}
