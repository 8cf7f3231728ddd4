package push

import "time"

// turn moves the wheel on and visits those who are due.
func (s *shard) turn() {
	now := s.hub.now()
	step := int64(s.step())
	for n := 0; s.turned+step <= now && n < slots; n++ {
		s.turned += step
		list := s.wheel[s.hand]
		s.wheel[s.hand] = nil
		s.hand = (s.hand + 1) % slots
		for i, c := range list {
			if !c.has(dead) {
				s.flush(c)
				if !c.has(dead) && !c.has(shut) {
					s.schedule(c)
				}
			}
			s.breathe(i)
		}
	}
	if s.turned+step <= now { // the machine slept
		s.turned = now
	}
	s.old(now)
}

// schedule puts a connection where it is due next.
func (s *shard) schedule(c *Conn) {
	p, now := s.hub.pace.Load(), s.hub.now()
	every := left(c.statted, p.statsEvery(c, &s.hub.opts), now)
	if c.state == Waiting && c.wants(TopicRank) {
		every = min(every, left(c.ranked, p.rankEvery(c, &s.hub.opts), now))
	}
	every = min(every, c.room.source.Beat(), longest)
	n := int(every / s.step())
	n = max(1, min(n, slots-1))
	i := (s.hand + n - 1) % slots
	s.wheel[i] = append(s.wheel[i], c)
}

// left is how long it is until something told at last is due again; what is overdue had not changed, and is looked at
// again after as long.
func left(last int64, every time.Duration, now int64) time.Duration {
	if d := time.Duration(last + int64(every) - now); d > 0 && d < every {
		return d
	}
	return every
}

// old closes who has had a second to take the last words, and asks again what nobody could answer.
func (s *shard) old(now int64) {
	for len(s.linger) > 0 && (s.linger[0].at <= now || s.linger[0].c.has(dead)) {
		s.remove(s.linger[0].c)
		s.linger = s.linger[1:]
	}
	if len(s.retry) > 0 && now%int64(time.Second) < int64(s.step()) {
		for _, c := range s.retry {
			if c.has(dirty) && !c.has(looking) && !c.has(dead) {
				c.set(looking)
				s.lookq = append(s.lookq, c)
			}
		}
		s.retry = s.retry[:0]
	}
}
