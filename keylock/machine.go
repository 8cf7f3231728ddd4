package keylock

// The machine is the state of a part of the keys: who holds, who waits, in which order. It has no clock: time is a count
// of ticks that the shell makes. It takes no locks and wakes nobody; it says who is to be woken.

// ticket is one who waits.
type ticket struct {
	e          *entry
	prev, next *ticket
	gen        uint64 // of the grant; 0: still waiting
	w          *waiter
}

// entry is one key.
type entry struct {
	key        string
	s          *shard
	gen        uint64 // of the holder; 0: nobody
	retiring   bool   // between a forced release and the end of its clean-up
	at         uint64 // tick of the grant, or of the last release
	head, tail *ticket
	waiting    int
	prev, next *entry // in held or idle
	own        holding
}

// list is held entries by the time of their grant, or idle ones by that of their release.
type list struct {
	head, tail *entry
	n          int
}

func (l *list) push(e *entry) {
	e.prev, e.next = l.tail, nil
	if l.tail == nil {
		l.head = e
	} else {
		l.tail.next = e
	}
	l.tail = e
	l.n++
}

func (l *list) remove(e *entry) {
	if e.prev == nil {
		l.head = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		l.tail = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
	l.n--
}

// maxIdle is how many keys that nobody wants are kept: a key used again at once is then found instead of made.
const maxIdle = 32

// table is a machine.
type table struct {
	keys       map[string]*entry
	held, idle list
	retiring   int
	gen        uint64
	tick       uint64
	maxWaiting int
	peak       int
	late       map[uint64]struct{} // holds that were ended by force and did not come back yet
	counts     Stats
}

// lock grants a free key. gen 0: it is held, and there is room in its queue unless full.
func (t *table) lock(key string) (e *entry, gen uint64, full bool) {
	e = t.keys[key]
	if e == nil {
		e = t.enter(key)
	} else if e.gen != 0 || e.retiring {
		return e, 0, e.waiting >= t.maxWaiting
	} else {
		t.idle.remove(e)
	}
	t.grant(e)
	return e, e.gen, false
}

func (t *table) enter(key string) *entry {
	var e *entry
	if t.idle.n >= maxIdle {
		e = t.idle.head
		t.drop(e)
	} else {
		e = new(entry)
	}
	e.key = key
	t.keys[key] = e
	t.peak = max(t.peak, len(t.keys))
	return e
}

func (t *table) drop(e *entry) {
	t.idle.remove(e)
	delete(t.keys, e.key)
	e.key = ""
}

func (t *table) grant(e *entry) {
	t.gen++
	e.gen, e.at = t.gen, t.tick
	t.held.push(e)
	t.counts.Granted++
}

// wait puts a ticket at the end of a key's queue.
func (t *table) wait(e *entry, w *ticket) {
	w.e, w.gen, w.prev, w.next = e, 0, e.tail, nil
	if e.tail == nil {
		e.head = w
	} else {
		e.tail.next = w
	}
	e.tail = w
	e.waiting++
	t.counts.Waiting++
}

// leave takes a ticket that was not granted out of the queue, wherever it stands.
func (t *table) leave(w *ticket) {
	e := w.e
	if w.prev == nil {
		e.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		e.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	e.waiting--
	t.counts.Waiting--
}

// verdict is what a release was.
type verdict uint8

const (
	released verdict = iota
	again            // it had been released
	late             // it had been ended by force
)

// release ends a hold. next: whom the key was granted to.
func (t *table) release(e *entry, gen uint64) (next *ticket, v verdict) {
	if e.gen != gen {
		if _, ok := t.late[gen]; ok {
			delete(t.late, gen)
			return nil, late
		}
		return nil, again
	}
	t.held.remove(e)
	e.gen = 0
	return t.pass(e), released
}

// pass grants a free key to the next in line.
func (t *table) pass(e *entry) *ticket {
	w := e.head
	if w == nil {
		e.at = t.tick
		t.idle.push(e)
		if t.idle.n > maxIdle {
			t.drop(t.idle.head)
		}
		return nil
	}
	t.leave(w)
	t.grant(e)
	w.gen = e.gen
	return w
}

// advance counts a tick. It takes the key from one holder whose grant is more than limit ticks old, if there is one;
// it is called again with count false until there is none. The key is free after retired.
func (t *table) advance(limit uint64, count bool) (e *entry, gen uint64) {
	if count {
		t.tick++
		t.prune()
	}
	e = t.held.head
	if e == nil || limit == 0 || t.tick-e.at <= limit {
		return nil, 0
	}
	gen = e.gen
	t.held.remove(e)
	e.gen, e.retiring = 0, true
	t.retiring++
	if t.late == nil {
		t.late = make(map[uint64]struct{})
	}
	t.late[gen] = struct{}{}
	t.counts.Forced++
	return e, gen
}

// retired ends the clean-up after a forced release.
func (t *table) retired(e *entry) *ticket {
	e.retiring = false
	t.retiring--
	return t.pass(e)
}

// prune forgets keys that were idle for a whole tick, and gives back the memory of many.
func (t *table) prune() {
	for e := t.idle.head; e != nil && t.tick-e.at > 1; e = t.idle.head {
		t.drop(e)
	}
	if t.peak < 512 || len(t.keys) > t.peak/4 {
		return
	}
	keys := make(map[string]*entry, len(t.keys))
	for k, e := range t.keys {
		keys[k] = e
	}
	t.keys, t.peak = keys, len(keys)
}

// holds says whether that grant still stands.
func (t *table) holds(key string, gen uint64) bool {
	e := t.keys[key]
	return e != nil && e.gen == gen
}

func (t *table) stats() Stats {
	s := t.counts
	s.Keys = len(t.keys) - t.idle.n
	s.Held, s.Late = t.held.n, len(t.late)
	return s
}
