package room_test

import (
	"context"
	"sync"
	"testing"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
)

// lastAsked keeps the last command that brought a ticket.
type lastAsked struct {
	room.Store
	mu   sync.Mutex
	last room.Command
}

func (s *lastAsked) Do(ctx context.Context, id string, cmd *room.Command) (room.Result, error) {
	s.mu.Lock()
	if cmd.Ref.Seq != 0 {
		s.last = *cmd
	}
	s.mu.Unlock()
	return s.Store.Do(ctx, id, cmd)
}

// TestPresentedProofs: what came with a ticket goes to the store with what is asked for it, and with nothing else.
func TestPresentedProofs(t *testing.T) {
	engine, err := memory.Open(t.TempDir(), memory.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	store := &lastAsked{Store: engine}
	rooms, err := room.Open(t.Context(), store, room.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer rooms.Close()
	c := room.DefaultConfig("r")
	c.Capacity.Active = 2
	r, err := rooms.Configure(t.Context(), c, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, err := r.Enter(t.Context(), room.Ref{}, [16]byte{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.Enter(t.Context(), room.Ref{}, [16]byte{})
	if err != nil {
		t.Fatal(err)
	}
	r.Presented(a.Ref, 12345, false)
	ask := func(ref room.Ref, issued int64, admitted bool) {
		t.Helper()
		if _, err := r.Claim(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		store.mu.Lock()
		defer store.mu.Unlock()
		if store.last.Ref != ref || store.last.Issued != issued || store.last.Admitted != admitted {
			t.Errorf("%+v; want issued %d, admitted %v", store.last, issued, admitted)
		}
	}
	ask(a.Ref, 12345, false)
	ask(b.Ref, 0, false)
	r.Presented(a.Ref, 12345, true)
	r.Presented(a.Ref, 12345, false) // the weaker takes nothing back
	ask(a.Ref, 12345, true)
	for i := range 100_000 { // bounded, whatever comes
		var id room.ID
		id[0], id[1], id[2], id[3] = byte(i), byte(i>>8), byte(i>>16), 1
		r.Presented(room.Ref{Seq: 9, ID: id}, 1, false)
	}
	r.Presented(b.Ref, 7, false)
	ask(b.Ref, 7, false)
}
