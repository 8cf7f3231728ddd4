package roomtest

import (
	"fmt"
	"time"

	"github.com/ushergo/usher/room"
)

// Audit reads a room's log from its first event and returns the first thing in it that must
// never happen: more admitted than the limit, a ticket admitted twice, an order inversion, more
// than the rate, a number that is missing or used twice, time that runs back.
func Audit(events []room.Event) error {
	m := room.NewMachine()
	admitted := map[room.ID]bool{}
	entered := map[room.ID]uint64{}
	var admissions []time.Duration
	var limit, rate, active int64
	order := room.FIFO
	mixed := false // the order has changed: positions alone no longer tell whose turn it was
	var last room.Event
	waiting := &waiters{}
	for i := range events {
		e := &events[i]
		bad := func(format string, args ...any) error {
			return fmt.Errorf("event %d.%d, %v: %s", e.Epoch, e.N, e.Type, fmt.Sprintf(format, args...))
		}
		if err := m.Apply(e); err != nil {
			return err
		}
		if e.At < last.At || e.Room < last.Room {
			return bad("time runs back from %v, %v", last.At, last.Room)
		}
		last = *e
		switch e.Type {
		case room.LimitChanged:
			c := e.Limit.Config
			if limit = e.Limit.Limit; c.Queue.Order != order && e.N > 1 {
				mixed = true
			}
			order = c.Queue.Order
			if c.Capacity.RatePerMinute != rate {
				rate, admissions = c.Capacity.RatePerMinute, nil
			}
		case room.StateChanged:
			waiting.opened(m)
		case room.Entered:
			if entered[e.ID] != 0 {
				return bad("the id was given before, with seq %d", entered[e.ID])
			}
			entered[e.ID] = e.Seq
			waiting.add(e)
		case room.Admitted:
			if admitted[e.ID] {
				return bad("admitted twice")
			}
			admitted[e.ID] = true
			if active++; active > limit && order != room.Passthrough {
				return bad("%d admitted, limit %d", active, limit)
			}
			if first := waiting.first(); order == room.FIFO && !mixed && first != e.Pos {
				return bad("pos %d was admitted before pos %d", e.Pos, first)
			}
			waiting.remove(e.Pos)
			if order != room.Passthrough {
				admissions = append(admissions, e.Room)
			}
			if n := int64(len(admissions)); rate > 0 && n > rate && admissions[n-1]-admissions[n-1-rate] < time.Minute {
				return bad("%d admissions within %v, rate %d a minute", rate+1, admissions[n-1]-admissions[n-1-rate], rate)
			}
		case room.Left, room.Expired, room.Abandoned:
			if e.WasActive {
				active--
			} else {
				waiting.remove(e.Pos)
			}
		}
	}
	return nil
}

// waiters are the positions alive, as a plain sorted walk: positions only grow.
type waiters struct {
	alive map[uint64]bool
	head  uint64
	end   uint64
	pre   bool
}

func (w *waiters) add(e *room.Event) {
	if w.alive == nil {
		w.alive = map[uint64]bool{}
	}
	if e.Prequeue {
		w.pre = true
		return
	}
	w.alive[e.Pos] = true
	w.end = max(w.end, e.Pos)
}

// opened takes over the positions of a draw, as the machine drew them.
func (w *waiters) opened(m *room.Machine) {
	line := m.Mirror().Line
	if !w.pre || line.Positioned() < line.Len() {
		return
	}
	w.pre = false
	for k := range line.Len() {
		pos := line.At(k)
		w.alive[pos] = true
		w.end = max(w.end, pos)
	}
}

func (w *waiters) remove(pos uint64) { delete(w.alive, pos) }

func (w *waiters) first() uint64 {
	for w.head <= w.end && !w.alive[w.head] {
		w.head++
	}
	return w.head
}
