package room

import (
	"encoding/binary"
	"fmt"
	"iter"
	"time"
)

// State is a room in parts, as an engine stores it that keeps no Machine; Rebuild makes the Machine of it. Presence is not
// in it: everybody counts as just heard from.
type State struct {
	Cursor
	At       int64 // last decision time, µs since 1970
	Now      time.Duration
	Limit    LimitData // the last
	State    StateData // the last
	Seq      uint64
	Admitted uint64
	RateNext time.Duration // theoretical arrival time of the next admission, room time
	Orders   []OrderFrom
	Held     map[uint64]time.Duration // slots kept for tokens, by seq, and until when
	Draws    []DrawState              // openings with somebody still in line, by position
	Coming   *DrawState               // the prequeue
	IDs      iter.Seq[ID]             // of all who entered the prequeue, by seq; nil: nobody
	Tickets  iter.Seq[TicketRecord]   // by seq
	Sessions []SessionRecord
}

// OrderFrom is the order in force for positions from Pos on.
type OrderFrom struct {
	Pos   uint64
	Order Order
}

// DrawState is an opening's draw. Seqs First … First + len(Keys) − 1 took part, with those order keys.
type DrawState struct {
	First uint64
	Keys  [][8]byte
	Seed  []byte
	Dead  []uint64 // coming: seqs that left before the opening
}

// TicketRecord is one ticket.
type TicketRecord struct {
	Ref
	Request [16]byte
	State   TicketState
	Reason  Reason
}

// SessionRecord is what an admitted ticket holds, in room time.
type SessionRecord struct {
	Seq, Pos           uint64
	Start, Seen, Token time.Duration
	Claimed            bool
}

// Rebuild makes a machine from parts; ErrLayout if they do not fit together.
func Rebuild(s *State) (*Machine, error) {
	m := NewMachine()
	m.Cursor, m.at, m.now = s.Cursor, s.At, s.Now
	l := &s.Limit
	m.config, m.revision, m.digest, m.instances, m.limit = l.Config, l.Revision, l.Digest, l.Instances, l.Limit
	d := &s.State
	m.state, m.phase, m.message, m.closed, m.opening, m.seed = d.State, d.Phase, d.Message, d.Closed, d.Opening, d.Seed
	m.seq, m.admitted = s.Seq, s.Admitted
	m.rate.set(l.Config.Capacity.RatePerMinute, m.now, true)
	m.rate.next = s.RateNext
	for _, o := range s.Orders {
		m.orders = append(m.orders, orderFrom{o.Pos, o.Order})
	}
	for seq, until := range s.Held {
		m.held.push(due{until, seq})
	}
	for i := range s.Draws {
		d := s.Draws[i].draw()
		d.seal()
		m.line.draws = append(m.line.draws, d)
	}
	if s.Coming != nil {
		m.line.pre = s.Coming.draw()
		for _, seq := range s.Coming.Dead {
			m.line.pre.kill(binary.BigEndian.Uint64(s.Coming.Keys[seq-s.Coming.First][:]))
		}
	}
	if s.IDs != nil {
		for id := range s.IDs {
			m.tree.add(id)
		}
	}
	for t := range s.Tickets {
		if t.Seq == 0 || t.Seq > m.seq || t.State == 0 {
			return nil, fmt.Errorf("%w: ticket %d, the last is %d", ErrLayout, t.Seq, m.seq)
		}
		m.tickets.put(t.Ref, t.Request, m.tick())
		if t.Request != [16]byte{} {
			m.requests[t.Request] = t.Seq
		}
		switch t.State {
		case Waiting:
			if pos := m.posOf(t.Ref); pos != 0 {
				if len(m.line.words) == 0 {
					m.line.base = (m.lowest(t.Seq) - 1) / blockBits * blockBits
				}
				m.line.add(pos)
			}
		case Active:
			m.tickets.set(t.Seq, codeActive)
		case Ended:
			m.tickets.set(t.Seq, codeEnded+ticketCode(t.Reason))
			m.ended = append(m.ended, due{m.now, t.Seq})
		}
	}
	for _, r := range s.Sessions {
		c, i := m.tickets.at(r.Seq)
		if c == nil || c.state[i] != codeActive {
			return nil, fmt.Errorf("%w: a session of ticket %d, which is not admitted", ErrLayout, r.Seq)
		}
		n := &session{id: c.id[i], pos: r.Pos, start: r.Start, seen: r.Seen, claimed: r.Claimed, token: r.Token}
		m.sessions[r.Seq] = n
		at, _ := m.deadline(n)
		m.expiry.push(due{at, r.Seq})
	}
	return m, nil
}

func (s *DrawState) draw() *draw {
	d := newDraw(s.First)
	d.seed = s.Seed
	for i, key := range s.Keys {
		d.add(binary.BigEndian.Uint64(key[:]), s.First+uint64(i))
	}
	return d
}

// Look is a ticket as the log left it: no time passes, and nobody is heard.
func (m *Machine) Look(ref Ref) View { return m.view(ref, false) }

// Entered is the Merkle root of those in the coming draw, and how many they are. See Opening.
func (m *Machine) Entered() (n uint64, root string) { return m.tree.n, m.tree.root() }
