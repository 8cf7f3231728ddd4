package gate

import (
	"time"
)

// Machine is one key's state. It is not safe for concurrent use.
//
// What it knows of an id is kept until one lease after the permit's end, whichever way it
// ended, so that a repeated acquire is recognised and a spent id is never granted anew.
type Machine struct {
	now   int64 // µs; never goes back
	set   bool
	auto  bool // made by an acquire, so forgotten when idle
	idle  int64
	used  int64 // ms, of the last grant
	limit int64
	held  int64

	ids     map[ID]*grant
	expiry  queue // those held, by expiry
	memory  queue // all, by when they are forgotten
	fence   uint64
	reopen  uint64 // no permit with a smaller fence may settle
	verdict verdict
	next    promise
}

// grant is what is known of one permit's id.
type grant struct {
	id      ID
	n       int // permits of the acquire, at its first id; 0 at the others
	fence   uint64
	expires int64 // ms
	forget  int64 // ms
	state   state
	at      [2]int // where in expiry and in memory; -1: not in it
}

type state uint8

const (
	holding state = iota
	released
	expired
)

type verdict struct {
	text  string
	fence uint64
	until int64 // ms; 0: none
}

// promise is to the node whose first waiter was refused first.
type promise struct {
	node      uint64 // 0: none
	until     int64  // ms
	overtaken int
}

// NewMachine makes a key about which nothing is known but that fences up to floor were drawn.
// A permit from before cannot settle it: what became of the key meanwhile is not known.
func NewMachine(floor uint64) *Machine {
	return &Machine{
		ids: map[ID]*grant{}, fence: floor, reopen: floor + 1,
		expiry: queue{by: 0}, memory: queue{by: 1},
	}
}

// Fence is the last fence drawn.
func (m *Machine) Fence() uint64 { return m.fence }

// Forgetting reports whether ids are left whose time to be forgotten has come: a step forgets at most MaxMoves.
func (m *Machine) Forgetting(now int64) bool {
	return len(m.memory.list) > 0 && m.memory.list[0].key <= max(m.now, now)/1000
}

// Idle reports whether the key may be forgotten but for its fence: nobody set it, or an
// acquire made it and it was not acquired for Command.Idle. now is µs since 1970.
func (m *Machine) Idle(now int64) bool {
	ms := max(m.now, now) / 1000
	return len(m.ids) == 0 && m.verdict.until <= ms && (!m.set || m.auto && ms >= m.used+m.idle)
}

// Step obeys one command that passed Check. now is µs since 1970; where it is less than that
// of an earlier step, the earlier one counts.
func (m *Machine) Step(c *Command, now int64) Result {
	m.now = max(m.now, now)
	r := Result{At: m.now}
	ms := m.now / 1000
	m.reclaim(ms, &r)
	freed := r.Expired > 0
	switch c.Op {
	case OpAcquire:
		m.acquire(c, ms, &r)
	case OpRelease:
		m.release(c, ms, &r)
	case OpExtend:
		m.extend(c, ms, &r)
	case OpSettle:
		m.settle(c, ms, &r)
	case OpReopen:
		m.verdict = verdict{}
		m.reopen = m.draw()
		r.Fence, r.Wake = m.reopen, true
	case OpSet:
		r.Wake = c.Permits > m.limit
		m.set, m.auto, m.limit = true, false, c.Permits
	case OpDelete:
		m.delete()
		r.Wake = true // they learn that it is gone
	}
	if v := m.verdict; c.Op == OpStatus && v.until > ms {
		r.Verdict, r.Fence, r.Until = v.text, v.fence, v.until
	}
	r.Set, r.Limit, r.Free = m.set, m.limit, m.limit-m.held
	r.Wake = r.Wake || freed && r.Free > 0
	return r
}

func (m *Machine) acquire(c *Command, ms int64, r *Result) {
	if g := m.known(c.ID, ms); g != nil {
		m.again(g, ms, r)
		return
	}
	if v := m.verdict; v.until > ms {
		r.Err, r.Verdict, r.Fence, r.Until = ErrSettled, v.text, v.fence, v.until
		return
	}
	if !m.set {
		if c.Permits == 0 {
			r.Err = ErrNotSet
			return
		}
		m.set, m.auto, m.limit, m.idle = true, true, c.Permits, c.Idle.Milliseconds()
	}
	kept := m.next.node != 0 && m.next.node != c.Node && m.next.until > ms && m.next.overtaken >= MaxOvertakes
	if m.limit-m.held < int64(c.N) || kept {
		r.Err, r.Next = ErrFull, m.nextExpiry(ms)
		if kept { // the promise ends by itself
			if left := time.Duration(m.next.until-ms) * time.Millisecond; r.Next == 0 || left < r.Next {
				r.Next = left
			}
		}
		m.promise(c, ms)
		return
	}
	switch {
	case m.next.node == c.Node || m.next.until <= ms:
		m.next = promise{}
	default:
		m.next.overtaken++
	}
	r.Fence, r.N = m.draw(), c.N
	r.Expires = ms + c.Lease.Milliseconds()
	m.used = ms
	for i, id := range c.ID.Members(c.N) {
		g := &grant{id: id, fence: r.Fence, expires: r.Expires, forget: r.Expires + c.Lease.Milliseconds()}
		if i == 0 {
			g.n = c.N
		}
		if old := m.ids[id]; old != nil { // forgotten, but not taken back yet
			m.drop(old, r)
		}
		m.ids[id] = g
		m.expiry.push(g, g.expires)
		m.memory.push(g, g.forget)
	}
	m.held += int64(c.N)
	if m.limit <= m.held && c.Patience > 0 { // for a line, which waits for it
		r.Next = m.nextExpiry(ms)
	}
}

func (m *Machine) nextExpiry(ms int64) time.Duration {
	if len(m.expiry.list) == 0 {
		return 0
	}
	return time.Duration(max(m.expiry.list[0].key-ms, 0)) * time.Millisecond
}

// known is what is remembered of an id.
func (m *Machine) known(id ID, ms int64) *grant {
	if g := m.ids[id]; g != nil && g.forget > ms {
		return g
	}
	return nil
}

// again answers an acquire whose id is known.
func (m *Machine) again(g *grant, ms int64, r *Result) {
	switch {
	case g.state == holding && g.expires > ms:
		r.Again, r.Fence, r.Expires, r.N = true, g.fence, g.expires, max(g.n, 1)
	case g.state == released:
		r.Err = ErrReleased
	default:
		r.Err = ErrExpired
	}
}

// promise notes that c's node waits, unless another was promised the next permit before.
func (m *Machine) promise(c *Command, ms int64) {
	if c.Node == 0 || c.Patience <= 0 {
		return
	}
	until := ms + c.Patience.Milliseconds()
	if m.next.node == c.Node && m.next.until > ms {
		if 2*(m.next.until-ms) < c.Patience.Milliseconds() { // not a write for each refusal
			m.next.until = until
		}
	} else if m.next.node == 0 || m.next.until <= ms {
		m.next = promise{node: c.Node, until: until}
	}
}

func (m *Machine) release(c *Command, ms int64, r *Result) {
	n := 1
	if first := m.known(c.ID, ms); first != nil {
		if first.state == released {
			return // repeated
		}
		n = max(first.n, 1)
	}
	freed := false
	for _, id := range c.ID.Members(n) {
		g := m.ids[id]
		if g == nil || g.state != holding {
			r.Err = ErrExpired
			continue
		}
		freed = true
		if g.expires <= ms { // not taken back yet: it is now
			m.expire(g, r)
			r.Err = ErrExpired
			continue
		}
		m.expiry.remove(g)
		g.state = released
		g.forget = ms + g.forget - g.expires // one lease from now
		m.memory.move(g, g.forget)
		m.held--
	}
	r.Wake = freed && m.limit > m.held // a lowered limit may still have to be reached
}

func (m *Machine) extend(c *Command, ms int64, r *Result) {
	first := m.known(c.ID, ms)
	if first == nil {
		r.Err = ErrExpired
		return
	}
	ids := c.ID.Members(max(first.n, 1))
	for _, id := range ids {
		switch g := m.ids[id]; {
		case g != nil && g.state == released:
			r.Err = ErrReleased
			return
		case g == nil || g.state != holding || g.expires <= ms:
			r.Err = ErrExpired
			return
		}
	}
	r.N, r.Fence, r.Expires = len(ids), first.fence, ms+c.Lease.Milliseconds()
	for _, id := range ids {
		g := m.ids[id]
		g.expires = r.Expires
		g.forget = r.Expires + c.Lease.Milliseconds()
		m.expiry.move(g, g.expires)
		m.memory.move(g, g.forget)
	}
	m.used = ms
}

func (m *Machine) settle(c *Command, ms int64, r *Result) {
	if g := m.known(c.ID, ms); c.Fence < m.reopen || c.Fence > m.fence || g != nil && g.fence != c.Fence {
		r.Err = ErrStale
		return
	}
	m.verdict = verdict{c.Verdict, c.Fence, ms + c.TTL.Milliseconds()}
	r.Fence, r.Verdict, r.Until, r.Wake = c.Fence, c.Verdict, m.verdict.until, true
}

// draw takes the next fence: the time in µs, or one more than the last, so that even a store
// that has forgotten everything goes on above it.
func (m *Machine) draw() uint64 {
	m.fence = max(m.fence+1, uint64(max(m.now, 0)))
	return m.fence
}

// reclaim takes back permits whose lease has ended, and forgets ids whose time has come: at
// most MaxMoves of each, the earliest first.
func (m *Machine) reclaim(ms int64, r *Result) {
	for n := 0; len(m.expiry.list) > 0 && m.expiry.list[0].key <= ms; n++ {
		if n == MaxMoves {
			r.More = true
			break
		}
		m.expire(m.expiry.list[0].grant, r)
	}
	for n := 0; n < MaxMoves && len(m.memory.list) > 0 && m.memory.list[0].key <= ms; n++ {
		g := m.memory.list[0].grant
		m.memory.remove(g)
		if g.state != holding { // else expire deletes it, when the loop above has come so far
			delete(m.ids, g.id)
		}
	}
}

// expire takes one permit back.
func (m *Machine) expire(g *grant, r *Result) {
	m.expiry.remove(g)
	g.state = expired
	m.held--
	r.Expired++
	if g.at[1] < 0 {
		delete(m.ids, g.id)
	}
}

// drop makes room for another grant of the same id.
func (m *Machine) drop(g *grant, r *Result) {
	if g.state == holding {
		m.expire(g, r)
	}
	if g.at[1] >= 0 {
		m.memory.remove(g)
	}
	delete(m.ids, g.id)
}

// delete forgets the key, but neither its fence nor its ids: a spent one is not granted anew.
func (m *Machine) delete() {
	for _, e := range m.expiry.list {
		if e.grant.state = expired; e.grant.at[1] < 0 {
			delete(m.ids, e.grant.id)
		}
	}
	old := *m
	*m = *NewMachine(old.fence)
	m.now, m.ids, m.memory = old.now, old.ids, old.memory
}
