package loadtest

import (
	"container/heap"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/ushergo/usher/room"
)

// logEvent is one event of the room's log as the admin API shows it.
type logEvent struct {
	Epoch    uint64    `json:"epoch"`
	N        uint64    `json:"n"`
	At       time.Time `json:"at"`
	Type     string    `json:"type"`
	TicketID string    `json:"ticket_id"`
	Data     struct {
		Seq      uint64        `json:"seq"`
		Pos      uint64        `json:"pos"`
		Prequeue bool          `json:"prequeue"`
		From     string        `json:"from"`
		Reason   string        `json:"reason"`
		Limit    *int64        `json:"limit"`
		Order    string        `json:"order"`
		Opening  *room.Opening `json:"opening"`
	} `json:"data"`
}

// logTicket is a ticket as the log has it.
type logTicket struct {
	id         string
	seq, pos   uint64
	epoch      uint64
	state      ticketState
	ordered    bool // entered while the order was fifo
	admittedAt time.Time
	reason     string
}

type ticketState uint8

const (
	inLine ticketState = iota
	holding
	over
)

// auditor replays a room's log and judges every position of it: was the line overtaken, was a ticket admitted twice,
// were more inside than the limit, does a seq come twice. It trusts nothing but the events. Not safe for concurrent use.
type auditor struct {
	faults  *faults                       // nil while the time before the run is replayed
	observe func(e *logEvent, a *auditor) // after each event; may be nil
	tickets map[string]*logTicket
	line    posHeap // of those in line, and lazily of some who no longer are
	pre     []*logTicket

	epoch, n  uint64
	events    int64
	gaps      int64 // events that the log should have had
	lastSeq   uint64
	order     string
	limit     int64 // -1: none
	limitSeen bool
	active    int64
	waiting   int64
	unordered int64 // in line, entered under another order than fifo
	admitted  int64
	blind     bool // the log does not reach back to the room's beginning
}

func newAuditor() *auditor {
	return &auditor{tickets: map[string]*logTicket{}, limit: -1, order: string(room.FIFO)}
}

func (a *auditor) add(e *logEvent) {
	a.position(e)
	switch e.Type {
	case "entered":
		a.enter(e)
	case "admitted":
		a.admit(e)
	case "left", "expired", "abandoned":
		a.end(e)
	case "limit":
		a.limitSeen = true
		a.limit = -1
		if e.Data.Limit != nil {
			a.limit = *e.Data.Limit
		}
		if e.Data.Order != "" {
			a.order = e.Data.Order
		}
	case "state":
		if o := e.Data.Opening; o != nil && o.Seed != "" && len(a.pre) > 0 {
			a.open(o)
		}
	}
	if a.observe != nil {
		a.observe(e, a)
	}
}

// position follows the numbering: 1, 2, 3 within an epoch.
func (a *auditor) position(e *logEvent) {
	switch {
	case a.events == 0:
		a.blind = e.N > 1
	case e.Epoch == a.epoch && e.N > a.n+1:
		a.gaps += int64(e.N - a.n - 1)
	case e.Epoch == a.epoch && e.N <= a.n:
		a.fault(unlogged, "log position %d.%d follows %d.%d", e.Epoch, e.N, a.epoch, a.n)
	}
	a.epoch, a.n = e.Epoch, e.N
	a.events++
}

func (a *auditor) fault(k faultKind, format string, args ...any) {
	if a.faults != nil {
		a.faults.add(k, format, args...)
	}
}

func (a *auditor) enter(e *logEvent) {
	t := a.tickets[e.TicketID]
	if t != nil {
		if e.Epoch == t.epoch {
			a.fault(lostPlace, "log %d.%d: ticket %s entered a second time", e.Epoch, e.N, e.TicketID)
		}
		a.take(t) // taken up again in a new epoch, at its own pos
	} else {
		if e.Data.Seq <= a.lastSeq && a.lastSeq != 0 && e.Epoch == a.epoch {
			a.fault(lostPlace, "log %d.%d: seq %d comes after seq %d", e.Epoch, e.N, e.Data.Seq, a.lastSeq)
		}
		a.lastSeq = max(a.lastSeq, e.Data.Seq)
		t = &logTicket{id: e.TicketID}
		a.tickets[e.TicketID] = t
	}
	t.seq, t.pos, t.epoch = e.Data.Seq, e.Data.Pos, e.Epoch
	t.state, t.ordered = inLine, a.order == string(room.FIFO)
	a.waiting++
	if !t.ordered {
		a.unordered++
	}
	switch {
	case e.Data.Prequeue:
		t.pos = 0
		a.pre = append(a.pre, t)
	case t.pos == 0:
		t.pos = t.seq
		fallthrough
	default:
		heap.Push(&a.line, t)
	}
}

// open gives the tickets of the prequeue their positions, by repeating the draw from its published seed.
func (a *auditor) open(o *room.Opening) {
	seed, err := hex.DecodeString(o.Seed)
	pre := a.pre
	a.pre = nil
	if err != nil || uint64(len(pre)) != o.Count {
		a.fault(orderInversion, "the opening at log %d.%d speaks of %d tickets, the log has %d", a.epoch, a.n, o.Count, len(pre))
		return
	}
	ids, byID := make([]room.ID, len(pre)), make(map[room.ID]*logTicket, len(pre))
	for i, t := range pre {
		if ids[i], err = room.ParseID(t.id); err != nil {
			a.fault(orderInversion, "the opening at log %d.%d cannot be checked: %v", a.epoch, a.n, err)
			return
		}
		byID[ids[i]] = t
	}
	drawn, order := room.Draw(seed, o.FirstPos, ids)
	if drawn.SeedHash != o.SeedHash && o.SeedHash != "" || drawn.Root != o.Root && o.Root != "" {
		a.fault(orderInversion, "the opening at log %d.%d does not follow from its seed and the tickets before it", a.epoch, a.n)
	}
	for i, id := range order {
		t := byID[id]
		t.pos = o.FirstPos + uint64(i)
		if t.state == inLine {
			heap.Push(&a.line, t)
		}
	}
}

func (a *auditor) admit(e *logEvent) {
	t := a.tickets[e.TicketID]
	if t == nil {
		if !a.blind {
			a.fault(unlogged, "log %d.%d: ticket %s admitted, but it never entered", e.Epoch, e.N, e.TicketID)
		}
		t = &logTicket{id: e.TicketID, seq: e.Data.Seq, pos: e.Data.Pos, epoch: e.Epoch, state: inLine, ordered: true}
		a.tickets[e.TicketID] = t
		a.waiting++
	}
	if t.state != inLine {
		a.fault(doubleAdmission, "log %d.%d: ticket %s, pos %d, admitted again", e.Epoch, e.N, e.TicketID, t.pos)
		if t.state == holding {
			return
		}
		a.active++ // it holds a slot again
		t.state = holding
		return
	}
	if e.Data.Pos != 0 && t.pos != 0 && e.Data.Pos != t.pos {
		a.fault(lostPlace, "log %d.%d: ticket %s had pos %d and is admitted with %d", e.Epoch, e.N, e.TicketID, t.pos, e.Data.Pos)
	}
	a.take(t)
	if a.order == string(room.FIFO) && a.unordered == 0 && t.ordered {
		if first := a.line.first(); first != nil && first.pos < t.pos {
			a.fault(orderInversion, "log %d.%d: pos %d admitted while pos %d was waiting", e.Epoch, e.N, t.pos, first.pos)
		}
	}
	t.state, t.admittedAt = holding, e.At
	a.active++
	a.admitted++
	if a.limit >= 0 && a.active > a.limit && a.order != string(room.Passthrough) {
		a.fault(limitOverrun, "log %d.%d: %d inside, limit %d", e.Epoch, e.N, a.active, a.limit)
	}
}

// take removes t from whatever it is counted in.
func (a *auditor) take(t *logTicket) {
	switch t.state {
	case inLine:
		a.waiting--
		if !t.ordered {
			a.unordered--
		}
	case holding:
		a.active--
	}
	t.state = over
}

func (a *auditor) end(e *logEvent) {
	t := a.tickets[e.TicketID]
	if t == nil {
		// From before the log's beginning. What it held was counted in the room's own number (see baseline).
		if e.Data.From == "admitted" {
			a.active--
		} else {
			a.waiting--
		}
		return
	}
	if t.state == over {
		a.fault(unlogged, "log %d.%d: ticket %s ended a second time", e.Epoch, e.N, e.TicketID)
		return
	}
	a.take(t)
	t.reason = e.Data.Reason
	if t.reason == "" {
		t.reason = e.Type
	}
}

func (a *auditor) String() string {
	return fmt.Sprintf("%d events, %d waiting, %d active, limit %d, order %s", a.events, a.waiting, a.active, a.limit, a.order)
}

// posHeap is a min-heap by pos; first drops those who are no longer in line.
type posHeap []*logTicket

func (h posHeap) Len() int           { return len(h) }
func (h posHeap) Less(i, j int) bool { return h[i].pos < h[j].pos }
func (h posHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *posHeap) Push(x any)        { *h = append(*h, x.(*logTicket)) }
func (h *posHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return t
}

func (h *posHeap) first() *logTicket {
	for len(*h) > 0 && (*h)[0].state != inLine {
		heap.Pop(h)
	}
	if len(*h) == 0 {
		return nil
	}
	return (*h)[0]
}
