package push

import "time"

// flush gathers all there is to say to a connection into one write. What cannot be written now stays owed: places and
// stats are read at the time of writing, so a slow reader gets the newest ones.
func (s *shard) flush(c *Conn) {
	if c.flags&(busy|dead|shut) != 0 {
		return
	}
	now := s.hub.now()
	head := c.room.Head() // before what was said up to it is looked at
	if s.flagged.Load() {
		s.take()
	}
	b := append(s.buf[:0], c.bytes...)
	c.bytes = nil
	if !c.has(dirty) {
		b = s.appendSays(c, b)
	}
	b = s.appendSure(c, b)
	if !c.has(dirty) && c.closing == 0 {
		b = s.appendRank(c, b, head, now)
		b = s.appendStats(c, b, now)
	}
	beat := c.room.source.Beat()
	if len(b) == 0 && now-c.wrote >= int64(beat) {
		b = c.codec.AppendBeat(b)
	}
	b = s.alive(c, b, now, beat)
	if c.closing != 0 {
		b = append(b, c.last...)
		b = c.codec.AppendClose(b, c.closing, c.closing.String(), c.after)
		c.set(shut)
	}
	if cap(b) <= 64<<10 {
		s.buf = b[:0]
	}
	if len(b) > 0 {
		c.wrote = now
		s.write(c, b)
		s.spent.Add(s.hub.now() - now)
	}
	if c.has(shut) && c.flags&(busy|dead) == 0 {
		s.leave(c)
	}
}

// appendSays appends what the operator says, each word of it.
func (s *shard) appendSays(c *Conn, b []byte) []byte {
	says, lost := c.room.saysAfter(c.said)
	if lost {
		c.closing = CodeBehind
		return b
	}
	for _, y := range says {
		c.said = y.n
		if c.wants(TopicStats) {
			b = s.shared(c, b, y.m)
			c.stats, c.statted = y.m, s.hub.now()
		}
	}
	return b
}

// appendSure appends admissions and timeouts.
func (s *shard) appendSure(c *Conn, b []byte) []byte {
	if len(c.sure) == 0 {
		return b
	}
	keep := c.sure[:0]
	for _, m := range c.sure {
		if !c.wants(m.Topic) {
			keep = append(keep, m)
			continue
		}
		m.Reset = s.resets(c, m.Topic)
		b = c.codec.AppendMessage(b, m, c.subs[m.Topic])
	}
	if c.sure = keep; len(keep) == 0 {
		c.sure = nil
	}
	return b
}

func (s *shard) appendRank(c *Conn, b []byte, head Cursor, now int64) []byte {
	if c.state != Waiting || !c.wants(TopicRank) {
		return b
	}
	every := s.hub.pace.Load().rankEvery(c, &s.hub.opts)
	if c.has(held) && now-c.ranked >= int64(every) {
		c.clear(held)
	}
	if !c.has(forced) && now-c.ranked < int64(every-s.step()) {
		return b
	}
	r := c.room.source.Rank(c.spot)
	if !c.has(forced) && r.Place == c.place && r.Waiting == c.waiting {
		return b
	}
	c.clear(forced)
	c.place, c.waiting, c.ranked = r.Place, r.Waiting, now
	s.body = appendRank(s.body[:0], &r)
	m := &s.msg
	m.Topic, m.Of, m.Cursor, m.Body, m.Reset = TopicRank, c.ticket.Name, head, s.body, s.resets(c, TopicRank)
	return c.codec.AppendMessage(b, m, c.subs[TopicRank])
}

func (s *shard) appendStats(c *Conn, b []byte, now int64) []byte {
	m := c.room.stats.Load()
	if m == c.stats || m == nil || !c.wants(TopicStats) {
		return b
	}
	if c.stats != nil || c.has(held) { // the first one is told at once
		if every := s.hub.pace.Load().statsEvery(c, &s.hub.opts); now-c.statted < int64(every-s.step()) {
			return b
		}
	}
	c.stats, c.statted = m, now
	return s.shared(c, b, m)
}

// shared appends a message that others get too.
func (s *shard) shared(c *Conn, b []byte, m *Message) []byte {
	if s.resets(c, m.Topic) {
		own := Message{Topic: m.Topic, Of: m.Of, Cursor: m.Cursor, Body: m.Body, Reset: true}
		return c.codec.AppendMessage(b, &own, c.subs[m.Topic])
	}
	return m.appendShared(b, c.codec, c.subs[m.Topic])
}

// resets says whether the next message to a topic is a new beginning.
func (s *shard) resets(c *Conn, t Topic) bool {
	if c.reset&(1<<t) == 0 {
		return false
	}
	c.reset &^= 1 << t
	if !c.codec.Topical() {
		c.reset = 0
	}
	return true
}

// alive judges whether the peer is there, and passes it on: by what it sends, if it answers pings; else by our writes
// not being stuck.
func (s *shard) alive(c *Conn, b []byte, now int64, beat time.Duration) []byte {
	if c.has(pings) && c.closing == 0 && now-c.heard.Load() > int64(s.hub.opts.SilentAfter) {
		c.closing = CodeSilent
		return b
	}
	if now-c.noted < int64(beat) {
		return b
	}
	if c.has(pings) {
		if len(b) > 0 { // news flows, but a ping is what is answered
			b = c.codec.AppendBeat(b)
		}
		if c.heard.Load() <= c.noted {
			return b
		}
	}
	c.noted = now
	if c.state == Waiting {
		c.room.source.Heard(c.ticket)
	}
	return b
}
