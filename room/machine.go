package room

import (
	"fmt"
	"math"
	"time"
)

// Phase is what a room's schedule says. A room without a schedule is always in PhaseOpen.
type Phase string

const (
	PhaseBefore   Phase = "before"   // before opens_at − prequeue: nobody enters
	PhasePrequeue Phase = "prequeue" // whoever enters takes part in the draw
	PhaseOpen     Phase = "open"
	PhaseClosed   Phase = "closed" // after closes_at: nobody enters, those waiting are drained
)

// States an operator gives a room.
const (
	StateOpen   = "open"
	StatePaused = "paused"
	StateClosed = "closed"
)

// EffectiveState is the room's state as visitors see it: open, paused, closed, not_open or
// prequeue.
func EffectiveState(state string, phase Phase) string {
	switch {
	case state == StateClosed || phase == PhaseClosed:
		return StateClosed
	case state == StatePaused:
		return StatePaused
	case phase == PhaseBefore:
		return "not_open"
	case phase == PhasePrequeue:
		return "prequeue"
	}
	return StateOpen
}

const (
	// maxInterval caps what one interval between commands adds to room time.
	maxInterval = 2 * time.Second
	// requestMemory is how long an ended ticket, and the request id that led to it, is remembered.
	requestMemory = 10 * time.Minute
	// Leeway is what origins allow admission tokens beyond their end.
	Leeway = 60 * time.Second
	// maxLooks bounds what one command looks at without moving it: sessions that were renewed
	// since, and ended tickets to forget.
	maxLooks = 4 * MaxMoves
)

// Machine is one room: a pure function of its state, a command and the time. It has no clock,
// no goroutine and no I/O, and is not safe for concurrent use.
//
// Step decides, and changes state only through apply, which is also what replaying a log does.
type Machine struct {
	Cursor               // head of the log
	at     int64         // last decision time, µs since 1970
	clock  int64         // engine's clock at the last command; 0: none since the start
	now    time.Duration // room time

	config    Config
	revision  uint64
	digest    string
	instances int64
	limit     int64
	state     string
	phase     Phase
	closed    bool // closes_at has been obeyed, or overruled by the operator since
	message   string
	opening   Opening
	seed      []byte // of the coming opening

	seq      uint64
	line     Line
	orders   []orderFrom
	tree     merkle // of the current prequeue's ids
	tickets  tickets
	requests map[[16]byte]uint64
	sessions map[uint64]*session
	expiry   dues // of sessions
	held     dues // slots kept for tokens of sessions that ended
	ended    []due
	rate     rate
	floor    uint32 // everybody counts as heard from at this tick of room time
	oldest   uint32 // no waiter was heard from before this
	admitted uint64 // ever

	events []Event
	moves  int
	draws  uint64 // random draws made in this step
}

// orderFrom is the order in force for positions from pos on.
type orderFrom struct {
	pos   uint64
	order Order
}

// NewMachine returns the empty room: it answers nothing until it is configured.
func NewMachine() *Machine {
	return &Machine{
		Cursor:    Cursor{Epoch: 1},
		requests:  map[[16]byte]uint64{},
		sessions:  map[uint64]*session{},
		instances: 1,
		state:     StateOpen,
		phase:     PhaseOpen,
	}
}

// Step obeys one command at the engine's time now (µs since 1970; steps of the clock are
// harmless). Everything that the command, or the time since the last one, changed is in
// Result.Events; state and events change together.
func (m *Machine) Step(cmd *Command, now int64) Result {
	m.advance(now)
	m.events, m.moves, m.draws = m.events[:0], 0, 0
	var r Result
	if m.revision == 0 && cmd.Op != OpConfigure {
		r.Err = ErrNotFound
	} else {
		m.schedule()
		r.View, r.Err = m.obey(cmd)
		r.More = m.promote(cmd.Rand)
		if r.View.State == Waiting && len(m.events) > 0 { // may have been admitted just now
			r.View = m.view(r.View.Ref, r.View.Created)
		}
	}
	r.More = r.More || m.moves >= MaxMoves
	r.At, r.Cursor, r.Events = m.at, m.Cursor, m.events
	return r
}

// advance lets room time pass: intervals are capped, and none is negative.
func (m *Machine) advance(clock int64) {
	if m.clock != 0 {
		d := time.Duration(clock-m.clock) * time.Microsecond
		m.now += min(max(d, 0), maxInterval)
	}
	m.clock = clock
	m.at = max(m.at, clock)
}

func (m *Machine) obey(cmd *Command) (View, error) {
	switch cmd.Op {
	case OpTick:
		m.expire()
		m.abandon()
		m.forget()
		return View{}, nil
	case OpEnter:
		return m.enter(cmd)
	case OpStatus:
		v, err := m.lookup(cmd.Ref)
		m.hear(cmd.Ref)
		return v, err
	case OpHeard:
		for _, ref := range cmd.Refs {
			m.hear(ref)
		}
		return View{}, nil
	case OpClaim, OpRenew:
		return m.use(cmd.Ref)
	case OpLeave:
		return m.leave(cmd.Ref)
	case OpConfigure:
		return View{}, m.configure(cmd)
	case OpState:
		return View{}, m.setState(cmd)
	case OpInstances:
		if cmd.Instances < 0 {
			return View{}, fmt.Errorf("%w: %d instances", ErrBadCommand, cmd.Instances)
		}
		if cmd.Instances != m.instances {
			m.emitLimit(m.config, m.revision, m.digest, cmd.Instances)
		}
		return View{}, nil
	}
	return View{}, fmt.Errorf("%w: op %d", ErrBadCommand, cmd.Op)
}

func (m *Machine) enter(cmd *Command) (View, error) {
	m.lapse(cmd.Ref)
	if c, i := m.tickets.find(cmd.Ref); c != nil && c.state[i] < codeEnded {
		m.hear(cmd.Ref)
		return m.view(cmd.Ref, false), nil
	}
	if cmd.Request != [16]byte{} {
		if seq, ok := m.requests[cmd.Request]; ok {
			c, i := m.tickets.at(seq)
			ref := Ref{Seq: seq, ID: c.id[i]}
			m.lapse(ref)
			if c.state[i] >= codeEnded {
				return m.view(ref, false), ErrSpent
			}
			m.hear(ref)
			return m.view(ref, false), nil
		}
	}
	switch {
	case m.state == StateClosed || m.phase == PhaseClosed:
		return View{}, ErrClosed
	case m.phase == PhaseBefore: // a pause lets nobody into the draw early
		return View{}, ErrNotOpen
	}
	before := m.phase == PhasePrequeue
	// Who would have to wait is refused where nobody waits or too many do already.
	if waiting := int64(m.line.Len()); waiting > 0 || !m.canAdmit() {
		if waiting >= m.config.Queue.MaxWaiting || (m.config.Queue.Order == Reject && !before) {
			return View{}, ErrFull
		}
	}
	if cmd.NewID == (ID{}) {
		return View{}, fmt.Errorf("%w: enter without a new id", ErrBadCommand)
	}
	e := Event{Type: Entered, Ref: Ref{Seq: m.seq + 1, ID: cmd.NewID}, Request: cmd.Request}
	if before {
		e.Prequeue, e.Key = true, OrderKey(m.seed, cmd.NewID)
		if m.line.pre != nil && m.line.pre.has(e.Key) {
			return View{}, ErrIDTaken
		}
	} else {
		e.Pos = e.Seq
	}
	m.emit(e)
	return View{Ref: e.Ref, State: Waiting, Created: true}, nil // Step looks again after promoting
}

// hear notes a sign of life of a waiter.
func (m *Machine) hear(ref Ref) {
	if c, i := m.tickets.find(ref); c != nil && c.state[i] == codeWaiting {
		c.seen[i] = m.tick()
	}
}

func (m *Machine) tick() uint32 { return uint32(m.now / seenTick) }

// lookup finds a ticket. Whoever holds a validly signed ticket that is forgotten has ended.
func (m *Machine) lookup(ref Ref) (View, error) {
	m.lapse(ref)
	c, i := m.tickets.find(ref)
	switch {
	case c == nil && ref.Seq > m.seq, ref.Seq == 0:
		return View{Ref: ref}, ErrNoTicket
	case c == nil:
		return View{Ref: ref, State: Ended, Reason: ReasonGone}, ErrEnded
	case c.state[i] >= codeEnded:
		return m.view(ref, false), ErrEnded
	}
	return m.view(ref, false), nil
}

// lapse ends a session whose time is up although no tick has come for it yet: using it must
// not revive it.
func (m *Machine) lapse(ref Ref) {
	if s := m.sessions[ref.Seq]; s != nil && s.id == ref.ID {
		if at, why := m.deadline(s); at <= m.now {
			m.end(ref.Seq, Expired, why)
		}
	}
}

func (m *Machine) use(ref Ref) (View, error) {
	v, err := m.lookup(ref)
	if err != nil {
		return v, err
	}
	if v.State != Active {
		m.hear(ref)
		return v, ErrNotAdmitted
	}
	s := m.sessions[ref.Seq]
	s.seen = m.now
	if !s.claimed {
		m.emit(Event{Type: Claimed, Ref: ref, Pos: s.pos})
	}
	return m.view(ref, false), nil
}

func (m *Machine) leave(ref Ref) (View, error) {
	v, err := m.lookup(ref)
	switch {
	case err == ErrEnded:
		return v, nil
	case err != nil:
		return v, err
	case v.State == Active:
		m.end(ref.Seq, Left, ReasonLeft)
	default:
		m.emit(m.waiterEvent(Left, ref, ReasonLeft))
	}
	return m.view(ref, false), nil
}

// end ends a session.
func (m *Machine) end(seq uint64, t EventType, why Reason) {
	s := m.sessions[seq]
	e := Event{Type: t, Ref: Ref{Seq: seq, ID: s.id}, Pos: s.pos, WasActive: true, Reason: why}
	if m.config.Session.Hold {
		if until := max(m.tokenEnd(s), s.token) + Leeway; until > m.now {
			e.Hold = until
		}
	}
	m.emit(e)
}

// waiterEvent ends a waiter. One of a prequeue has an order key in place of a position.
func (m *Machine) waiterEvent(t EventType, ref Ref, why Reason) Event {
	e := Event{Type: t, Ref: ref, Reason: why, Pos: m.posOf(ref)}
	if e.Pos == 0 {
		e.Key = OrderKey(m.seed, ref.ID)
	}
	return e
}

// posOf is a waiter's position, or 0 before it is drawn.
func (m *Machine) posOf(ref Ref) uint64 {
	if m.line.pre != nil && ref.Seq >= m.line.pre.first {
		return 0
	}
	if d := m.line.drawOf(ref.Seq); d != nil {
		return d.pos(OrderKey(d.seed, ref.ID))
	}
	return ref.Seq
}

// tokenEnd is when the last admission token of a session ends, in room time.
func (m *Machine) tokenEnd(s *session) time.Duration {
	return min(s.seen+time.Duration(m.config.Session.Idle), s.start+time.Duration(m.config.Session.Max))
}

// deadline is when a session ends unless it is used, and why.
func (m *Machine) deadline(s *session) (time.Duration, Reason) {
	final := s.start + time.Duration(m.config.Session.Max)
	at, why := s.seen+time.Duration(m.config.Session.Idle), ReasonIdle
	if claim := time.Duration(m.config.Session.Claim); claim > 0 && !s.claimed {
		at, why = s.start+claim, ReasonClaim
		if f := m.floorTime() + claim; f > at { // nobody could claim while we were away
			at = f
		}
	}
	if final <= at {
		return final, ReasonMax
	}
	return at, why
}

func (m *Machine) floorTime() time.Duration { return time.Duration(m.floor) * seenTick }

func (m *Machine) view(ref Ref, created bool) View {
	c, i := m.tickets.find(ref)
	if c == nil {
		return View{Ref: ref, State: Ended, Reason: ReasonGone}
	}
	v := View{Ref: ref, State: c.state[i].state(), Created: created}
	switch v.State {
	case Waiting:
		v.Pos = m.posOf(ref)
		v.Random = v.Pos != 0 && m.orderAt(v.Pos) == Random
	case Active:
		s := m.sessions[ref.Seq]
		at, _ := m.deadline(s)
		v.Pos, v.Claimed = s.pos, s.claimed
		v.IdleEnd, v.FinalEnd = at-m.now, s.start+time.Duration(m.config.Session.Max)-m.now
		v.TokenEnd = m.tokenEnd(s) - m.now
	case Ended:
		v.Reason = Reason(c.state[i] - codeEnded)
	}
	return v
}

// orderAt is the order in force for a position.
func (m *Machine) orderAt(pos uint64) Order {
	for i := len(m.orders) - 1; i >= 0; i-- {
		if m.orders[i].pos <= pos {
			return m.orders[i].order
		}
	}
	return FIFO
}

// admitting says whether state and phase allow admissions.
func (m *Machine) admitting() bool {
	return m.state != StatePaused && m.phase != PhaseBefore && m.phase != PhasePrequeue
}

// canAdmit says whether state, limit and rate allow one more admission now.
func (m *Machine) canAdmit() bool {
	if !m.admitting() {
		return false
	}
	if m.config.Queue.Order == Passthrough {
		return true
	}
	return m.used() < m.limit && m.rate.wait(m.now) == 0
}

// used is the number of slots taken: sessions, and slots held for tokens of ended ones.
func (m *Machine) used() int64 {
	for len(m.held) > 0 && m.held[0].at <= m.now {
		m.held.pop()
	}
	return int64(len(m.sessions) + len(m.held))
}

// promote admits waiters while it may, and says whether it stopped only because of MaxMoves.
// A slot is not wasted on a waiter whose grace is over and whom no tick has abandoned yet.
func (m *Machine) promote(random uint64) (more bool) {
	silent := m.silent()
	for n := 0; m.line.Positioned() > 0 && m.canAdmit(); n++ {
		if n >= MaxMoves {
			return true
		}
		pos := m.next(random)
		seq := m.line.seqAt(pos)
		c, i := m.tickets.at(seq)
		ref := Ref{Seq: seq, ID: c.id[i]}
		if c.seen[i] < silent {
			m.emit(m.waiterEvent(Abandoned, ref, ReasonAbandoned))
			continue
		}
		m.emit(Event{Type: Admitted, Ref: ref, Pos: pos})
	}
	return false
}

// next is the position to admit: the head, or, where its order is random, one drawn among
// the living of that order.
func (m *Machine) next(random uint64) uint64 {
	head := m.line.At(0)
	if len(m.orders) == 0 || m.orderAt(head) != Random {
		return head
	}
	end := m.line.Positioned()
	for _, o := range m.orders {
		if o.pos > head && o.order != Random {
			end = m.line.Before(o.pos)
			break
		}
	}
	m.draws++
	return m.line.At(int(mix(random+m.draws) % uint64(end)))
}

// mix is the output function of SplitMix64 (Steele, Lea, Flood, 2014).
func mix(z uint64) uint64 {
	z *= 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// expire ends sessions whose time is up.
func (m *Machine) expire() {
	for looks := 0; len(m.expiry) > 0 && m.expiry[0].at <= m.now && m.moves < MaxMoves; looks++ {
		if looks == maxLooks {
			m.moves = MaxMoves // more to do
			return
		}
		d := m.expiry.pop()
		s := m.sessions[d.seq]
		if s == nil {
			continue
		}
		at, why := m.deadline(s)
		if at > m.now {
			m.expiry.push(due{at, d.seq})
			continue
		}
		m.moves++
		m.end(d.seq, Expired, why)
	}
}

// grace is the grace in ticks.
func (m *Machine) grace() uint64 {
	return uint64((time.Duration(m.config.Queue.Grace) + seenTick - 1) / seenTick)
}

// silent is the tick for which holds: a waiter who was last heard from before it is gone.
func (m *Machine) silent() uint32 {
	grace, now := m.grace(), uint64(m.tick())
	if uint64(m.floor)+grace >= now {
		return 0
	}
	return uint32(now - grace)
}

// abandon ends waiters who were not heard from for the grace.
func (m *Machine) abandon() {
	limit := m.silent()
	if m.oldest >= limit {
		return
	}
	first := m.tick()
	for k, c := range m.tickets.chunks {
		if c == nil || c.waiting == 0 {
			continue
		}
		if c.due >= limit {
			first = min(first, c.due)
			continue
		}
		oldest := m.tick()
		for i := range c.state {
			if c.state[i] != codeWaiting {
				continue
			}
			if c.seen[i] >= limit {
				oldest = min(oldest, c.seen[i])
				continue
			}
			if m.moves >= MaxMoves {
				return
			}
			m.moves++
			ref := Ref{Seq: m.tickets.base + uint64(k)*chunkLen + uint64(i) + 1, ID: c.id[i]}
			m.emit(m.waiterEvent(Abandoned, ref, ReasonAbandoned))
		}
		c.due = oldest
		first = min(first, oldest)
	}
	m.oldest = first
}

// Forget drops at once what ticks drop bit by bit: tickets that ended long ago. A machine that
// only replays a log never gets a tick, and would keep them for ever.
func (m *Machine) Forget() {
	for m.moves = MaxMoves; m.moves == MaxMoves; {
		m.moves = 0
		m.forget()
	}
}

// forget drops tickets that ended long ago, and their request ids.
func (m *Machine) forget() {
	n := 0
	for ; n < len(m.ended) && n < maxLooks && m.ended[n].at+requestMemory <= m.now; n++ {
		if r := m.tickets.forget(m.ended[n].seq); r != [16]byte{} && m.requests[r] == m.ended[n].seq {
			delete(m.requests, r)
		}
	}
	if n > 0 {
		m.ended = m.ended[n:]
		m.tickets.prune()
	}
	if n == maxLooks {
		m.moves = MaxMoves // more to do
	}
}

// emit names an event, applies it and keeps it for the result.
func (m *Machine) emit(e Event) {
	e.Epoch, e.N, e.At, e.Room = m.Epoch, m.N+1, m.at, m.now
	m.apply(&e)
	m.events = append(m.events, e)
}

// Wake is how long after the last command a tick has something to do: at most a second.
func (m *Machine) Wake() time.Duration {
	wake := time.Second
	if len(m.expiry) > 0 {
		wake = min(wake, m.expiry[0].at-m.now)
	}
	if m.line.Positioned() > 0 && m.admitting() {
		if m.used() < m.limit {
			wake = min(wake, m.rate.wait(m.now))
		} else if len(m.held) > 0 {
			wake = min(wake, m.held[0].at-m.now)
		}
	}
	if m.line.Len() > 0 {
		silent := uint64(max(m.oldest, m.floor)) + m.grace() + 1
		wake = min(wake, time.Duration(silent)*seenTick-m.now)
	}
	s := m.config.Schedule
	for _, t := range [...]int64{s.OpensAt.UnixMicro(), s.OpensAt.Add(-time.Duration(s.Prequeue)).UnixMicro(), s.ClosesAt.UnixMicro()} {
		if t > m.at {
			wake = min(wake, time.Duration(t-m.at)*time.Microsecond)
		}
	}
	return max(wake, time.Millisecond)
}

// Succeed makes the room the successor of a deleted one of its name, whose last epoch and seq
// are given: its events are of a later epoch, and no seq is given again. An engine calls it each
// time it has brought the room back.
func (m *Machine) Succeed(epoch, seq uint64) {
	if m.revision == 0 {
		m.Cursor = Cursor{Epoch: epoch + 1}
	}
	if m.Epoch > epoch {
		m.seq = max(m.seq, seq)
	}
}

// Recover is called after a restart, or another time in which nobody could reach the room:
// everybody has a full grace, claim and idle from here on.
func (m *Machine) Recover() {
	m.clock = 0 // the time since the last command does not count at all
	m.floor = uint32(min((m.now+seenTick-1)/seenTick, math.MaxUint32))
	for _, s := range m.sessions {
		s.seen = max(s.seen, m.now)
	}
}
