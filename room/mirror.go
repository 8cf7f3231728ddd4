package room

import (
	"math"
	"time"
)

// Mirror is what one node knows of a room from its log alone: the line, the sessions, the
// state, and how fast the line moves. It answers places without asking the store, and is
// exact as of its Cursor. Not safe for concurrent use.
type Mirror struct {
	Cursor
	At      int64 // decision time of the last event, µs since 1970
	Summary Summary
	Line    *Line
	Inside  map[ID]Inside // admitted tickets
	// Mixed: of tickets up to this seq the log alone does not say in which order they wait, since the room's has changed.
	// Whoever makes a mirror otherwise than by NewMirror and Apply must set it.
	Mixed uint64
	pace  pace
}

// Inside is an admitted ticket as the log shows it.
type Inside struct {
	Seq     uint64
	Claimed bool
}

// NewMirror is the mirror of a room of which nothing has been read.
func NewMirror() *Mirror {
	return &Mirror{Line: &Line{}, Inside: map[ID]Inside{}}
}

// Mirror returns a mirror of m, independent of it.
func (m *Machine) Mirror() *Mirror {
	r := &Mirror{Cursor: m.Cursor, At: m.at, Summary: m.Summary(), Line: m.line.clone(), Inside: make(map[ID]Inside, len(m.sessions))}
	if len(m.orders) > 1 || len(m.orders) == 1 && m.orders[0].order != m.config.Queue.Order {
		r.Mixed = m.seq
	}
	for seq, s := range m.sessions {
		r.Inside[s.id] = Inside{seq, s.claimed}
	}
	return r
}

// Apply keeps the mirror up with one event. Events at or before the cursor are skipped, so
// that a reader may start a little early; ok is false for an event after a gap, which changes
// nothing.
func (m *Mirror) Apply(e *Event) (ok bool) {
	switch {
	case e.Epoch < m.Epoch || (e.Epoch == m.Epoch && e.N <= m.N):
		return true
	case e.Epoch == m.Epoch && e.N != m.N+1:
		return false
	}
	m.Cursor, m.At = Cursor{e.Epoch, e.N}, e.At
	s := &m.Summary
	s.Now = max(s.Now, e.Room)
	m.Line.apply(e)
	switch e.Type {
	case Entered:
		s.LastSeq = max(s.LastSeq, e.Seq)
	case Admitted:
		m.Inside[e.ID] = Inside{Seq: e.Seq}
		s.AdmittedTotal++
		if m.Line.Positioned() > 0 {
			m.pace.note(s.Now, 1, 0, m.Line.Positioned())
		}
	case Claimed:
		if in, ok := m.Inside[e.ID]; ok {
			in.Claimed = true
			m.Inside[e.ID] = in
		}
	case Left, Expired, Abandoned:
		if e.WasActive {
			delete(m.Inside, e.ID)
		} else {
			m.pace.note(s.Now, 0, 1, m.Line.Positioned())
		}
	case LimitChanged:
		if e.Limit.Config.Queue.Order != s.Config.Queue.Order {
			m.Mixed = s.LastSeq
		}
		s.Config, s.Revision, s.Instances, s.Limit = e.Limit.Config, e.Limit.Revision, e.Limit.Instances, e.Limit.Limit
	case StateChanged:
		s.State, s.Phase, s.Message, s.Opening = e.State.State, e.State.Phase, e.State.Message, e.State.Opening
		m.pace = pace{} // what was measured in another state says nothing about this one
	}
	s.Active, s.Waiting = int64(len(m.Inside)), int64(m.Line.Len())
	return true
}

// waits says for certain that the ticket of that seq waits, in order, at a pos of the same number; false: perhaps.
func (m *Mirror) waits(seq uint64) bool {
	return seq > m.Mixed && m.Summary.Config.Queue.Order == FIFO && m.Line.pre == nil && m.Line.drawOf(seq) == nil && m.Line.Has(seq)
}

// Place is where a waiter stands: living waiters before it, plus one. ok is false where there
// is no place to tell: before the opening, and where the order is random.
func (m *Mirror) Place(v View) (place int64, ok bool) {
	if v.State != Waiting || v.Pos == 0 || v.Random || m.Summary.Phase == PhaseBefore || m.Summary.Phase == PhasePrequeue {
		return 0, false
	}
	place = int64(m.Line.Before(v.Pos)) + 1
	if last := m.Summary.LastSeq; v.Pos > last+1 {
		// The answer overtook the log: of those with seqs in between this node has not read yet. Counting
		// them as waiting keeps the place from rising when it has.
		place += int64(v.Pos - last - 1)
	}
	return place, true
}

// ETA estimates how long the waiter at place still waits.
func (m *Mirror) ETA(place int64) (ETA, bool) {
	if m.Summary.State == StatePaused {
		return ETA{}, false
	}
	return m.pace.eta(m.Summary.Now, place)
}

// ETA is a range for a wait, in seconds, and what it is based on.
type ETA struct {
	LowS  int64  `json:"low_s"`
	HighS int64  `json:"high_s"`
	Basis string `json:"basis"` // measured: from the rate at which places moved in the last two minutes
}

// pace counts how fast the line moves, in slots of a second of room time over two minutes.
type pace struct {
	slots [120]struct{ admitted, gone uint32 }
	head  int64         // second of the newest slot
	start time.Duration // room time of the first count
	began bool
	line  float64 // smoothed length of the line
}

func (p *pace) advance(now time.Duration) {
	sec := int64(now / time.Second)
	if sec-p.head >= int64(len(p.slots)) {
		clear(p.slots[:])
		p.head = sec
	}
	for p.head < sec {
		p.head++
		p.slots[p.head%int64(len(p.slots))] = struct{ admitted, gone uint32 }{}
	}
}

func (p *pace) note(now time.Duration, admitted, gone uint32, line int) {
	if !p.began {
		p.began, p.start, p.line = true, now, float64(line)
	}
	p.advance(now)
	s := &p.slots[p.head%int64(len(p.slots))]
	s.admitted += admitted
	s.gone += gone
	p.line += (float64(line) - p.line) / 64
}

// eta solves dp/dt = −(a + d·p) for the time at which place p reaches 0: a admissions a
// second, and each waiter ahead gives up at rate d a second. The range is that of the counts'
// own chance (a Poisson count k is k ± 1.64·√k nine times out of ten), and at least a tenth
// either way. Nothing is said before five admissions in ten seconds have been seen.
func (p *pace) eta(now time.Duration, place int64) (ETA, bool) {
	if !p.began || place <= 0 {
		return ETA{}, false
	}
	p.advance(now)
	span := min(now-p.start, time.Duration(len(p.slots))*time.Second).Seconds()
	var admitted, gone float64
	for _, s := range p.slots {
		admitted += float64(s.admitted)
		gone += float64(s.gone)
	}
	if span < 10 || admitted < 5 {
		return ETA{}, false
	}
	wait := func(admitted, gone float64) float64 {
		a, d := admitted/span, gone/span/max(p.line, 1)
		if d*float64(place) < a/1000 {
			return float64(place) / a
		}
		return math.Log1p(d*float64(place)/a) / d
	}
	low := wait(admitted+1.64*math.Sqrt(admitted), gone+1.64*math.Sqrt(gone)) * 0.95
	high := wait(max(1, admitted-1.64*math.Sqrt(admitted)), max(0, gone-1.64*math.Sqrt(gone))) * 1.05
	return ETA{LowS: int64(low), HighS: int64(math.Ceil(high)), Basis: "measured"}, true
}
