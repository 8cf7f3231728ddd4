package push

import "time"

// room says whether one more connection of a ticket may come.
func (s *shard) room(id ID) error {
	if s.hub.draining.Load() {
		return ErrDraining
	}
	n := 0
	for o := s.tickets[id]; o != nil; o = o.next {
		n++
	}
	if n >= s.hub.opts.MaxPerTicket {
		return ErrTicket
	}
	return nil
}

// attach takes a connection on.
func (s *shard) attach(c *Conn, st Standing, from Cursor, p *Peer) error {
	if err := s.room(c.ticket.ID); err != nil {
		return err
	}
	r := c.room
	c.next = s.tickets[c.ticket.ID]
	s.tickets[c.ticket.ID] = c
	c.index = int32(len(s.rooms[r]))
	s.rooms[r] = append(s.rooms[r], c)
	s.hub.conns.Add(1)
	add(&s.hub.counts.transports, c.codec.Name(), 1)
	r.conns.Add(1) // before recall: what it does not know of, will be told
	now := s.hub.now()
	c.noted, c.wrote = now, now

	seen := false // what is true now
	if p.After != nil {
		changed, exact := r.recall(c.ticket.ID, *p.After)
		switch {
		case exact:
			seen = !changed
			c.said = r.saidBy(*p.After)
		default:
			c.reset = 1<<topics - 1
			s.hub.counts.resets.Add(1)
		}
	}
	if p.After == nil || c.reset != 0 {
		if says := *r.says.Load(); len(says) > 0 {
			c.said = says[len(says)-1].n // the newest stats hold what is said now
		}
	}
	if p.Hold && p.After != nil && c.reset == 0 {
		c.set(held)
		c.stats = r.stats.Load()
		if c.stats != nil && p.After.Before(c.stats.Cursor) {
			c.stats = nil // told when it is due
		}
		// The client has had its place a moment ago: the next one is due as on a stream.
		c.place, c.waiting = s.rank(c)
		c.ranked, c.statted = now, now
		if p.After.Before(r.Head()) {
			c.place = -1
		}
	} else {
		c.set(forced)
	}
	switch st.State {
	case Admitted:
		if !seen {
			s.sure(c, &Message{Topic: TopicAdmission, Of: c.ticket.Name, Cursor: from, Body: appendAdmission(nil, st.Admission, st.At)})
		}
	case Ended:
		c.state = Waiting // so that it can end
		s.ended(c, st.Reason, st.At, from)
	}
	if changed, exact := r.recall(c.ticket.ID, from); changed || !exact {
		s.look(c)
	}
	s.flush(c)
	s.schedule(c)
	return nil
}

func (s *shard) rank(c *Conn) (place, waiting int64) {
	if c.state != Waiting {
		return 0, 0
	}
	r := c.room.source.Rank(c.spot)
	return r.Place, r.Waiting
}

// drop closes at once: nothing more can be said.
func (s *shard) drop(c *Conn, code Code) {
	if c.closing == 0 {
		c.closing = code
	}
	s.remove(c)
}

// leave waits a moment for the peer to take the last words: closing at once could undo them.
func (s *shard) leave(c *Conn) {
	if c.nc == nil {
		s.remove(c)
		return
	}
	if hc, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = hc.CloseWrite()
	}
	s.linger = append(s.linger, leaving{c, s.hub.now() + int64(time.Second)})
}

// remove forgets a connection and closes its socket.
func (s *shard) remove(c *Conn) {
	if c.has(dead) {
		return
	}
	if c.has(busy) && c.nc != nil {
		s.hub.slow.Add(-1)
	}
	c.set(dead)
	if c.nc != nil {
		_ = c.nc.Close()
	}
	if c.out != nil {
		close(c.out)
	}
	for p := s.tickets[c.ticket.ID]; p != nil; p = p.next {
		if p == c {
			if c.next == nil {
				delete(s.tickets, c.ticket.ID)
			} else {
				s.tickets[c.ticket.ID] = c.next
			}
			break
		}
		if p.next == c {
			p.next = c.next
			break
		}
	}
	list := s.rooms[c.room]
	end := len(list) - 1
	list[c.index] = list[end]
	list[c.index].index = c.index
	list[end] = nil
	if end == 0 {
		delete(s.rooms, c.room)
	} else {
		s.rooms[c.room] = list[:end]
	}
	s.hub.conns.Add(-1)
	add(&s.hub.counts.transports, c.codec.Name(), -1)
	c.room.conns.Add(-1)
	s.hub.Forget(c.addr)
	code := c.closing
	if code == 0 {
		code = CodeNormal
	}
	add(&s.hub.counts.closed, code, 1)
	c.next, c.sure, c.bytes, c.stats, c.last = nil, nil, nil, nil, nil
}

func (s *shard) stop() {
	for _, list := range s.rooms {
		for len(list) > 0 {
			s.remove(list[len(list)-1])
			list = list[:len(list)-1]
		}
	}
}
