package push

// urgent takes what the log brought, and tells.
func (s *shard) urgent() {
	s.take()
	s.settle()
}

// take marks connections by what the log brought. It writes nothing, so it may be called in the midst of anything.
func (s *shard) take() {
	s.mu.Lock()
	s.flagged.Store(false)
	changes, all, flooded := s.changes, s.news, s.flooded
	s.changes, s.news, s.flooded = nil, nil, false
	s.mu.Unlock()
	for i := range changes {
		ch := &changes[i]
		for c := s.tickets[ch.ID]; c != nil; c = c.next {
			if c.room == ch.room {
				s.changed(c, &ch.Change)
			}
		}
	}
	for _, n := range all {
		for _, c := range s.rooms[n.room] {
			switch {
			case n.gone:
				if c.closing == 0 {
					c.closing = CodeRoomGone
				}
			case n.reset:
				s.look(c)
			}
			s.ready = append(s.ready, c)
		}
	}
	if flooded {
		for _, list := range s.rooms {
			for _, c := range list {
				s.look(c)
			}
		}
	}
}

func (s *shard) changed(c *Conn, ch *Change) {
	if c.state == Ended {
		return
	}
	if ch.Type == ChangeEnded {
		c.gen++
		c.clear(dirty)
		s.ended(c, ch.Reason, ch.At, Cursor{c.room.Head().Epoch, ch.N - 1})
		return
	}
	// Also where the store was ahead of its log: then the cursor that was taken for one from after the admission was not.
	c.set(again)
	s.look(c)
}

// ended says why, and that coming back is of no use. Its cursor is from before the event: whoever was told, and comes
// back all the same, is told again.
func (s *shard) ended(c *Conn, reason string, at int64, cursor Cursor) {
	c.state = Ended
	if reason != "left" {
		s.sure(c, &Message{Topic: TopicTimeout, Of: c.ticket.Name, Cursor: cursor, Body: appendTimeout(nil, reason, at)})
	}
	if c.closing == 0 {
		c.closing = CodeEnded
	}
	s.ready = append(s.ready, c)
}

// sure queues what must not be lost.
func (s *shard) sure(c *Conn, m *Message) {
	if len(c.sure) >= maxSure {
		c.closing = CodeBehind
		return
	}
	c.sure = append(c.sure, m)
}

// maxSure bounds the admissions and timeouts of one ticket: there is one of each, and repeats.
const maxSure = 8

// look marks a connection and has its ticket looked at.
func (s *shard) look(c *Conn) {
	if c.has(dead) || c.state == Ended {
		return
	}
	c.gen++
	c.set(dirty)
	if !c.has(looking) {
		c.set(looking)
		s.lookq = append(s.lookq, c)
	}
}

func (s *shard) looked(r result) {
	c := r.c
	if c.has(dead) {
		return
	}
	c.clear(looking)
	switch {
	case !c.has(dirty):
		return
	case r.gen != c.gen: // something happened meanwhile
		c.set(looking)
		s.lookq = append(s.lookq, c)
		s.settle()
		return
	case r.err != nil:
		s.retry = append(s.retry, c)
		return
	}
	c.clear(dirty)
	s.stand(c, &r.st, r.head)
	s.settle()
}

// stand takes over what has become of a ticket.
func (s *shard) stand(c *Conn, st *Standing, head Cursor) {
	switch st.State {
	case Ended:
		s.ended(c, st.Reason, st.At, head)
		return
	case Admitted:
		if c.state != Admitted || c.has(again) {
			c.clear(again)
			s.sure(c, &Message{Topic: TopicAdmission, Of: c.ticket.Name, Cursor: head, Body: appendAdmission(nil, st.Admission, st.At)})
		}
	default:
		c.spot = st.Spot
		c.set(forced)
	}
	c.state = st.State
	s.ready = append(s.ready, c)
}
