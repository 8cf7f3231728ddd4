package room_test

import (
	"testing"

	"github.com/ushergo/usher/room"
)

// An answer may reach its node before the log does, with the events of those who stand ahead. The place told then must
// not be one that rises once they are read.
func TestPlaceDoesNotRiseWhenTheLogCatchesUp(t *testing.T) {
	m := room.NewMirror()
	enter := func(seq uint64) {
		m.Apply(&room.Event{Epoch: 1, N: m.N + 1, Type: room.Entered, Ref: room.Ref{Seq: seq, ID: room.ID{byte(seq)}}, Pos: seq})
	}
	enter(1)
	enter(2)
	me := room.View{Ref: room.Ref{Seq: 7, ID: room.ID{7}}, State: room.Waiting, Pos: 7}
	last, ok := m.Place(me)
	if !ok || last != 7 {
		t.Fatalf("place %d, %v with two tickets read; want 7", last, ok)
	}
	for seq := uint64(3); seq <= 9; seq++ {
		enter(seq)
		place, _ := m.Place(me)
		if place > last {
			t.Fatalf("place rose from %d to %d when ticket %d was read", last, place, seq)
		}
		last = place
	}
	if last != 7 {
		t.Errorf("place %d, want 7", last)
	}
}
