package room

import (
	"encoding/hex"
	"fmt"
	"time"
)

// Apply replays one event of the room's log onto the state its predecessor left. An event out
// of order is an error, and changes nothing.
func (m *Machine) Apply(e *Event) error {
	if e.Epoch < m.Epoch || (e.Epoch == m.Epoch && e.N != m.N+1) {
		return fmt.Errorf("%w: event %d.%d after %v", ErrLayout, e.Epoch, e.N, m.Cursor)
	}
	if e.Seq != 0 {
		c, i := m.tickets.find(e.Ref)
		switch e.Type {
		case Entered:
			if e.Seq <= m.seq && (m.Epoch < 2 || e.Prequeue || c != nil || m.known(e.Seq)) { // else it was lost, and is taken up again
				return fmt.Errorf("%w: event %d.%d gives seq %d again", ErrLayout, e.Epoch, e.N, e.Seq)
			}
		case Admitted, Abandoned:
			if c == nil || c.state[i] != codeWaiting {
				return fmt.Errorf("%w: event %d.%d, %v of a ticket that does not wait", ErrLayout, e.Epoch, e.N, e.Type)
			}
		case Claimed, Expired:
			if m.sessions[e.Seq] == nil {
				return fmt.Errorf("%w: event %d.%d, %v of a ticket without a session", ErrLayout, e.Epoch, e.N, e.Type)
			}
		case Left:
			if c == nil || c.state[i] >= codeEnded || e.WasActive != (m.sessions[e.Seq] != nil) {
				return fmt.Errorf("%w: event %d.%d, %v of a ticket that is not there", ErrLayout, e.Epoch, e.N, e.Type)
			}
		}
	}
	m.apply(e)
	return nil
}

// known says whether there is a ticket with that seq.
func (m *Machine) known(seq uint64) bool {
	c, i := m.tickets.at(seq)
	return c != nil && c.state[i] != codeNone
}

// apply is the only thing that changes what a log would have to bring back.
func (m *Machine) apply(e *Event) {
	m.Epoch, m.N, m.at, m.now = e.Epoch, e.N, max(m.at, e.At), max(m.now, e.Room)
	switch e.Type {
	case Entered:
		m.seq = max(m.seq, e.Seq)
		m.tickets.put(e.Ref, e.Request, m.tick())
		if e.Request != [16]byte{} {
			m.requests[e.Request] = e.Seq
		}
		if e.Prequeue {
			m.tree.add(e.ID)
		}
	case Admitted:
		m.tickets.set(e.Seq, codeActive)
		s := &session{id: e.ID, pos: e.Pos, start: m.now, seen: m.now}
		m.sessions[e.Seq] = s
		at, _ := m.deadline(s)
		m.expiry.push(due{at, e.Seq})
		if m.config.Queue.Order != Passthrough {
			m.rate.take(m.now)
		}
		m.admitted++
	case Claimed:
		s := m.sessions[e.Seq]
		s.claimed, s.seen = true, max(s.seen, m.now)
		at, _ := m.deadline(s) // a claim may bring the end nearer, where idle is shorter than claim
		m.expiry.push(due{at, e.Seq})
	case Left, Expired, Abandoned:
		m.tickets.set(e.Seq, codeEnded+ticketCode(e.Reason))
		m.ended = append(m.ended, due{m.now, e.Seq})
		delete(m.sessions, e.Seq)
		if e.Hold != 0 {
			m.held.push(due{e.Hold, e.Seq})
		}
	case LimitChanged:
		m.applyLimit(e.Limit)
	case StateChanged:
		d := e.State
		opened := m.line.pre
		m.state, m.phase, m.message, m.opening, m.seed, m.closed = d.State, d.Phase, d.Message, d.Opening, d.Seed, d.Closed
		m.line.apply(e)
		if len(d.Seed) == 0 { // no draw is coming: the next one starts a new tree
			m.tree = merkle{}
		}
		if opened != nil && m.line.pre == nil {
			opened.seed, _ = hex.DecodeString(d.Opening.Seed)
		}
		return
	}
	m.line.apply(e)
}

func (m *Machine) applyLimit(l *LimitData) {
	first := m.revision == 0
	order := FIFO
	if n := len(m.orders); n > 0 {
		order = m.orders[n-1].order
	}
	if l.Config.Queue.Order != order {
		head := m.line.At(0)
		for len(m.orders) > 1 && m.orders[1].pos <= head { // nobody waits under it any more
			m.orders = m.orders[1:]
		}
		m.orders = append(m.orders, orderFrom{m.seq + 1, l.Config.Queue.Order})
	}
	old := m.config.Session
	m.config, m.revision, m.digest, m.instances, m.limit = l.Config, l.Revision, l.Digest, l.Instances, l.Limit
	m.rate.set(l.Config.Capacity.RatePerMinute, m.now, first)
	if n := l.Config.Session; n.Idle < old.Idle || n.Max < old.Max || n.Claim != old.Claim {
		m.expiry = m.expiry[:0] // ends may have moved nearer
		for seq, s := range m.sessions {
			if n.Idle < old.Idle || n.Max < old.Max { // tokens signed until now last as long as they say
				s.token = max(s.token, min(m.now+time.Duration(old.Idle), s.start+time.Duration(old.Max)))
			}
			at, _ := m.deadline(s)
			m.expiry.push(due{at, seq})
		}
	}
}

// Summary is what a room is doing, as a whole.
type Summary struct {
	Config        Config
	Revision      uint64
	Instances     int64
	Limit         int64 // Unlimited: none
	State         string
	Phase         Phase
	Message       string
	Opening       Opening
	Active        int64
	Waiting       int64
	AdmittedTotal uint64
	LastSeq       uint64
	Now           time.Duration // room time
}

// Summary of the machine's state.
func (m *Machine) Summary() Summary {
	return Summary{
		Config: m.config, Revision: m.revision, Instances: m.instances, Limit: m.limit,
		State: m.state, Phase: m.phase, Message: m.message, Opening: m.opening,
		Active: int64(len(m.sessions)), Waiting: int64(m.line.Len()), AdmittedTotal: m.admitted, LastSeq: m.seq, Now: m.now,
	}
}
