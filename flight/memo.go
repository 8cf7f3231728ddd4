package flight

// memo is what is remembered of a key after its load has ended: that it failed, or that it cannot be shared.
// Never a value.
type memo[K comparable] struct {
	key         K
	prev, next  *memo[K]
	until       int64 // before it, the key is left alone, or its callers load each for herself
	failures    int
	class       Class
	err         error
	unshareable bool
}

// memos is a bounded map in order of the last change; the oldest goes first.
type memos[K comparable] struct {
	of         map[K]*memo[K]
	head, tail *memo[K]
	most       int
}

func (s *memos[K]) init(most int) { s.most = most }

func (s *memos[K]) get(key K) *memo[K] {
	if s.of == nil {
		s.of = make(map[K]*memo[K])
	}
	m := s.of[key]
	if m == nil {
		if len(s.of) >= s.most {
			s.unlink(s.head)
		}
		m = &memo[K]{key: key}
		s.of[key] = m
	} else {
		s.cut(m)
	}
	m.prev = s.tail
	if s.tail == nil {
		s.head = m
	} else {
		s.tail.next = m
	}
	s.tail = m
	return m
}

func (s *memos[K]) cut(m *memo[K]) {
	if m.prev == nil {
		s.head = m.next
	} else {
		m.prev.next = m.next
	}
	if m.next == nil {
		s.tail = m.prev
	} else {
		m.next.prev = m.prev
	}
	m.prev, m.next = nil, nil
}

func (s *memos[K]) unlink(m *memo[K]) {
	s.cut(m)
	delete(s.of, m.key)
}

// fail counts one more failure. Failures in a row are those with no success and no Forget between them, and with less
// than the time that the key was last left alone between the end of that time and now: an old failure is stale news.
func (s *memos[K]) fail(key K, err error, c Class, hold func(int) int64, now int64) {
	if m := s.of[key]; m != nil && !m.unshareable && now < m.until {
		return // of a load that ran beside the one that counted
	}
	m := s.get(key)
	if m.unshareable || (m.failures > 0 && now > m.until+hold(m.failures)) {
		m.failures = 0
	}
	m.unshareable = false
	m.failures++
	m.class, m.err = c, err
	m.until = now + hold(m.failures)
}

func (s *memos[K]) mark(key K, now, until int64) {
	m := s.get(key)
	*m = memo[K]{key: key, prev: m.prev, next: m.next, until: max(until, now), unshareable: true}
}

func (s *memos[K]) forget(key K) {
	if m := s.of[key]; m != nil {
		s.unlink(m)
	}
}

func (s *memos[K]) clear() { s.of, s.head, s.tail = nil, nil, nil }
