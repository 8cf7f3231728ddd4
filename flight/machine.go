package flight

import "time"

// The machine decides who leads, who joins, who waits and who is refused. It has no clock, no lock and no goroutine:
// the shell (flight.go) calls it under the group's mutex, tells it the time where it matters and does what it answers.

type machine[K comparable, V any] struct {
	opts    Options[K, V]
	budget  budget[K, V]
	flights map[K]*flight[K, V] // the newest running or pending flight of each key; solo ones are not here
	memos   memos[K]

	queued, running, late list[K, V]

	// ready is what the shell must see to before it unlocks: flights that may start, and flights that will never start
	// (state ended, err set), whose callers must be told.
	ready []*flight[K, V]

	blank func() *flight[K, V] // makes a zero flight

	gen, epoch uint64
	tick       uint32
	ticks      uint32 // a flight stamped in tick t has had its whole timeout when tick t+ticks+1 begins
	waiters    int    // over all flights
	orphans    int
	closed     bool
}

// beat is how far apart the ticks are: a sixteenth of the timeout, but not less than a millisecond.
func (m *machine[K, V]) beat() time.Duration {
	return max(time.Millisecond, (m.opts.Timeout+15)/16)
}

// verdict is the machine's answer to a caller.
type verdict uint8

const (
	lead      verdict = iota // the caller's load starts now
	join                     // wait for the flight
	wait                     // wait for the flight, which is the caller's own and has not begun
	take                     // the flight has delivered: take its value
	refused                  // see the error
	backedOff                // the key failed lately
)

func newMachine[K comparable, V any](opts Options[K, V]) *machine[K, V] {
	opts = opts.withDefaults()
	m := &machine[K, V]{opts: opts, flights: make(map[K]*flight[K, V]), blank: func() *flight[K, V] { return new(flight[K, V]) }}
	if opts.Timeout > 0 {
		m.ticks = uint32((opts.Timeout + m.beat() - 1) / m.beat())
	}
	m.budget.init(opts.Budget)
	m.memos.init(opts.Remember)
	return m
}

// needsClock: whether ask and end will look at the time.
func (m *machine[K, V]) needsClock() bool { return m.budget.rated || len(m.memos.of) > 0 }

// count is how many flights there are, in any state but ended.
func (m *machine[K, V]) count() int {
	return m.queued.n + m.running.n + m.late.n + m.budget.pending
}

// joinable: whether who comes now may have what f brings.
func (m *machine[K, V]) joinable(f *flight[K, V]) bool {
	switch {
	case f.state != running:
		return true
	case f.settled && !f.delivered:
		return false
	}
	return !f.abandoned && !f.forgotten && f.epoch == m.epoch
}

// find is the flight a new caller of key would share, or nil; cur is the one that runs.
func (m *machine[K, V]) find(key K) (f, cur *flight[K, V]) {
	cur = m.flights[key]
	switch {
	case cur == nil:
		return nil, nil
	case m.joinable(cur):
		return cur, cur
	}
	return cur.after, cur
}

// ask is a call for key. With lead, join or wait the caller has been counted as a waiter of the flight.
// A refusal is an error of errors.go; for backedOff the memo is returned.
func (m *machine[K, V]) ask(key K, w *With, now int64) (verdict, *flight[K, V], *memo[K], error) {
	solo := w.Alone
	if m.closed {
		return refused, nil, nil, ErrClosed
	}
	if m.waiters >= m.opts.MaxWaiters {
		return refused, nil, nil, busyWaiters
	}
	if len(m.memos.of) > 0 {
		if mm := m.memos.of[key]; mm != nil && now < mm.until {
			if !mm.unshareable {
				return backedOff, nil, mm, nil
			}
			solo = true
		}
	}
	var f, cur *flight[K, V]
	if !solo {
		if f, cur = m.find(key); f != nil {
			return m.join(f, w)
		}
	}
	if m.count() >= m.opts.MaxFlights {
		return refused, nil, nil, busyFlights
	}
	m.gen++
	f = m.blank()
	f.key, f.gen, f.solo, f.waiters = key, m.gen, solo, 1
	if w.Args != "" {
		f.args = w.Args
	}
	if cur != nil {
		f.class = m.budget.class(w.Class)
		f.state, f.stamp = queued, m.tick
		m.queued.push(f)
		cur.after = f
		m.waiters++
		return wait, f, nil, nil
	}
	if m.budget.limited {
		f.class = m.budget.class(w.Class)
		if !m.submit(f, now) {
			return refused, nil, nil, busyPending
		}
	}
	m.waiters++
	if !solo {
		m.flights[key] = f
	}
	if f.state == pending {
		return wait, f, nil, nil
	}
	m.start(f)
	return lead, f, nil, nil
}

// submit asks the budget for f's start. First all who wait and may start now do so: whoever still waits then cannot use
// what f may get, so f overtakes nobody.
func (m *machine[K, V]) submit(f *flight[K, V], now int64) bool {
	if m.budget.pending > 0 {
		m.grant(now)
	}
	return m.budget.submit(f, m.tick, now)
}

func (m *machine[K, V]) join(f *flight[K, V], w *With) (verdict, *flight[K, V], *memo[K], error) {
	switch {
	case f.args != w.Args:
		return refused, nil, nil, ErrArgs
	case f.delivered:
		return take, f, nil, nil
	case int(f.waiters) >= m.opts.MaxWaitersPerKey:
		return refused, nil, nil, busyKeyWaiters
	}
	f.waiters++
	m.waiters++
	f.shared = true
	if f.orphan { // left by all, by policy still running, and wanted again
		f.orphan = false
		m.orphans--
	}
	return join, f, nil, nil
}

// start moves f, which is in no list, among the running. The budget has been taken.
func (m *machine[K, V]) start(f *flight[K, V]) {
	f.state, f.stamp, f.epoch = running, m.tick, m.epoch
	if m.opts.Timeout < 0 {
		f.late = true
		m.late.push(f)
		return
	}
	m.running.push(f)
}

// grant starts what the budget now allows.
func (m *machine[K, V]) grant(now int64) {
	for f := m.budget.grant(now); f != nil; f = m.budget.grant(now) {
		m.start(f)
		m.ready = append(m.ready, f)
	}
}

// leave takes one waiter from f, who has not been told anything. cancel: the load's context must be cancelled.
func (m *machine[K, V]) leave(f *flight[K, V]) (cancel bool) {
	if f.settled {
		return false
	}
	f.waiters--
	m.waiters--
	if f.waiters > 0 {
		return false
	}
	if f.state != running {
		m.drop(f)
		return false
	}
	f.orphan = true
	m.orphans++
	if m.opts.OnLastLeave == CancelLoad || f.solo { // nobody else could have what a solo load brings
		f.abandoned = true
		return true
	}
	return false
}

// drop removes a flight that has not begun.
func (m *machine[K, V]) drop(f *flight[K, V]) {
	cur := m.flights[f.key]
	switch {
	case f.state == queued:
		m.queued.remove(f)
		if cur != nil && cur.after == f {
			cur.after = nil
		}
		if f.class != nil {
			m.budget.unref(f.class)
		}
	case f.state == pending:
		m.budget.drop(f)
		if cur == f {
			delete(m.flights, f.key)
		}
	}
	f.state = ended
}

// settle marks that f's callers are told now. It answers false when they have been already.
func (m *machine[K, V]) settle(f *flight[K, V]) bool {
	if f.settled {
		return false
	}
	f.settled = true
	f.superseded = f.forgotten || (f.state == running && f.epoch != m.epoch)
	m.waiters -= int(f.waiters)
	f.waiters = 0
	return true
}

// deliver is settle before the end: the deadline no longer counts. An unshareable flight makes room for others of its
// key, who will not wait for it.
func (m *machine[K, V]) deliver(f *flight[K, V], out *outcome, now int64) (settled bool) {
	if f.state != running || !m.settle(f) {
		return false
	}
	if !f.late {
		m.running.remove(f)
		f.late = true
		m.late.push(f)
	}
	m.remember(f, out, now)
	if out.unshareable && !f.solo {
		m.unlink(f, now)
		m.grant(now)
		f.solo = true
	}
	f.delivered = out.err == nil && !out.unshareable
	return true
}

// outcome is what a load brought, as far as the machine must know.
type outcome struct {
	err         error
	class       Class
	hold        func(failures int) int64 // how long to leave the key alone, in ns
	unshareable bool
	markFor     int64 // ns
}

// end is the real end of a load: its key and its budget are free again.
func (m *machine[K, V]) end(f *flight[K, V], out *outcome, now int64) (settled bool) {
	if f.late {
		m.late.remove(f)
	} else {
		m.running.remove(f)
	}
	if f.orphan {
		f.orphan = false
		m.orphans--
	}
	if !f.settled && (out.err != nil || out.unshareable || len(m.memos.of) > 0) {
		m.remember(f, out, now)
	}
	settled = m.settle(f)
	f.state = ended
	if f.class != nil {
		m.budget.release(f)
	}
	switch {
	case f.solo:
	case f.after == nil:
		delete(m.flights, f.key)
	default:
		m.unlink(f, now)
	}
	if m.budget.pending > 0 {
		m.grant(now)
	}
	return settled
}

// remember keeps a failure or an unshareable verdict. What a Forget has overtaken says nothing about now, and what
// was cancelled says nothing about the origin.
func (m *machine[K, V]) remember(f *flight[K, V], out *outcome, now int64) {
	if f.forgotten || f.epoch != m.epoch || f.abandoned || f.timedOut {
		return
	}
	switch {
	case out.unshareable:
		m.memos.mark(f.key, now, now+out.markFor)
	case out.err == nil:
		if len(m.memos.of) > 0 {
			m.memos.forget(f.key)
		}
	case out.hold != nil:
		m.memos.fail(f.key, out.err, out.class, out.hold, now)
	}
}

// unlink frees the key of f, which is in the map, and lets the next generation go for the budget.
func (m *machine[K, V]) unlink(f *flight[K, V], now int64) {
	n := f.after
	if n == nil {
		delete(m.flights, f.key)
		return
	}
	f.after = nil
	m.queued.remove(n)
	m.flights[f.key] = n
	if m.budget.limited {
		if !m.submit(n, now) {
			delete(m.flights, f.key)
			n.state, n.err = ended, busyPending
			m.ready = append(m.ready, n)
			return
		}
		if n.state == pending {
			return
		}
	}
	m.start(n)
	m.ready = append(m.ready, n)
}

// forget parts the key's running load from all who come from now on, and what is remembered from the key.
func (m *machine[K, V]) forget(key K) *flight[K, V] {
	m.memos.forget(key)
	f := m.flights[key]
	if f != nil && f.state == running {
		f.forgotten = true
		return f
	}
	return nil
}

// forgetAll is forget for every key, in one step.
func (m *machine[K, V]) forgetAll() {
	m.epoch++
	m.memos.clear()
}

// advance begins the next tick. It answers the running flights that have had their time, to be told and cancelled;
// those that never got their turn are in ready.
func (m *machine[K, V]) advance() (timedOut []*flight[K, V]) {
	m.tick++
	due := func(f *flight[K, V]) bool { return f != nil && m.tick-f.stamp > m.ticks }
	for f := m.running.head; due(f); f = m.running.head {
		m.running.remove(f)
		f.late, f.timedOut = true, true
		m.late.push(f)
		if !f.orphan {
			f.orphan = true
			m.orphans++
		}
		timedOut = append(timedOut, f)
	}
	m.refuse(busyWait, due)
	return timedOut
}

// close refuses all calls from now on; what has not begun is in ready.
func (m *machine[K, V]) close() {
	m.closed = true
	m.refuse(ErrClosed, func(f *flight[K, V]) bool { return f != nil })
}

// refuse drops from the queues' heads what has not begun and is due.
func (m *machine[K, V]) refuse(err error, due func(*flight[K, V]) bool) {
	drain := func(l *list[K, V]) {
		for f := l.head; due(f); f = l.head {
			m.drop(f)
			f.err = err
			m.ready = append(m.ready, f)
		}
	}
	drain(&m.queued)
	for _, c := range m.budget.waiting() {
		drain(&c.queue)
	}
}
