package room_test

import (
	"testing"

	"github.com/ushergo/usher/room"
)

// TestAdoptedTickets: after a failover seqs skip ahead, and tickets of the skipped range may come back, in any order, to a
// machine and a mirror that have long dropped what lay there.
func TestAdoptedTickets(t *testing.T) {
	id := func(seq uint64) (id room.ID) {
		for i := range 8 {
			id[i] = byte(seq >> (8 * i))
		}
		id[15] = 1
		return id
	}
	m := room.NewMachine()
	c := room.DefaultConfig("r")
	c.Capacity.Active = 1
	m.Step(&room.Command{Op: room.OpConfigure, Config: &c}, 1)
	mirror := m.Mirror()
	n := uint64(0)
	apply := func(e room.Event) error {
		n++
		e.Epoch, e.N, e.At = 2, n, 2
		if err := m.Apply(&e); err != nil {
			n--
			return err
		}
		mirror.Apply(&e)
		return nil
	}
	entered := func(seq uint64) error {
		return apply(room.Event{Type: room.Entered, Ref: room.Ref{Seq: seq, ID: id(seq)}, Pos: seq})
	}
	for _, seq := range []uint64{1_000_010, 1_000_011, 500_000, 7, 499_999, 900_000} {
		if err := entered(seq); err != nil {
			t.Fatal(err)
		}
	}
	if err := entered(7); err == nil {
		t.Error("a ticket was taken up twice")
	}
	for k, want := range []uint64{7, 499_999, 500_000, 900_000, 1_000_010, 1_000_011} {
		if got := mirror.Line.At(k); got != want {
			t.Errorf("mirror: place %d has %d, want %d", k+1, got, want)
		}
		if v := m.Look(room.Ref{Seq: want, ID: id(want)}); v.State != room.Waiting || v.Pos != want {
			t.Errorf("%d: %+v", want, v)
		}
		if got := m.Mirror().Line.Before(want); got != k {
			t.Errorf("machine: %d stand before %d, want %d", got, want, k)
		}
	}
	if mirror.Summary.LastSeq != 1_000_011 || m.Summary().LastSeq != 1_000_011 {
		t.Errorf("last seq %d, %d", mirror.Summary.LastSeq, m.Summary().LastSeq)
	}
	if err := apply(room.Event{Type: room.Admitted, Ref: room.Ref{Seq: 7, ID: id(7)}, Pos: 7}); err != nil {
		t.Fatal(err)
	}
	if mirror.Line.At(0) != 499_999 {
		t.Errorf("head %d", mirror.Line.At(0))
	}
}
