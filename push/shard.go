package push

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// shard owns its connections: only its goroutine touches them, and writes to them.
type shard struct {
	hub     *Hub
	inbox   chan op     // what readers and slow writers say; they wait when it is full, and their peers with them
	results chan result // what lookers found
	kick    chan struct{}

	// What the log brought. The list is bounded: past maxChanges everybody on the shard is looked at instead.
	flagged atomic.Bool
	mu      sync.Mutex
	changes []change
	news    []news
	flooded bool

	spent, frames atomic.Int64 // ns and writes, for the pace

	// The goroutine's own.
	tickets map[ID]*Conn
	rooms   map[*Room][]*Conn
	wheel   [slots][]*Conn
	hand    int   // next slot
	turned  int64 // hub time of it
	ready   []*Conn
	lookq   []*Conn
	retry   []*Conn // asked again in a second
	linger  []leaving
	buf     []byte
	body    []byte
	msg     Message
	w       rawWrite
}

const (
	slots      = 256
	slot       = 250 * time.Millisecond
	maxChanges = 100_000
	yieldEvery = 256
)

type change struct {
	room *Room
	Change
}

// news is for all of a room.
type news struct {
	room        *Room
	reset, gone bool
}

type leaving struct {
	c  *Conn
	at int64
}

type result struct {
	c    *Conn
	gen  uint32
	head Cursor
	st   Standing
	err  error
}

const (
	opGone = iota + 1
	opWritable
	opSend
	opClose
	opCall
)

type op struct {
	kind  int
	c     *Conn
	code  Code
	bytes []byte
	err   error
	call  func(*shard)
}

func newShard(h *Hub) *shard {
	s := &shard{
		hub: h, inbox: make(chan op, 1024), results: make(chan result, 256), kick: make(chan struct{}, 1),
		tickets: map[ID]*Conn{}, rooms: map[*Room][]*Conn{}, buf: make([]byte, 0, 16<<10),
	}
	s.w.bind()
	return s
}

func (s *shard) post(o op) {
	select {
	case s.inbox <- o:
	case <-s.hub.done:
	}
}

// change is called by the log's reader: it must not wait.
func (s *shard) change(r *Room, c *Change) {
	s.mu.Lock()
	if len(s.changes) < maxChanges {
		s.changes = append(s.changes, change{r, *c})
	} else {
		s.flooded = true
	}
	s.mu.Unlock()
	s.ring()
}

func (s *shard) announce(n news) {
	s.mu.Lock()
	for _, old := range s.news {
		if old == n {
			s.mu.Unlock()
			return
		}
	}
	s.news = append(s.news, n)
	s.mu.Unlock()
	s.ring()
}

func (s *shard) ring() {
	s.flagged.Store(true)
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *shard) run() {
	turn := time.NewTicker(s.step())
	defer turn.Stop()
	for {
		select { // what must not wait goes first
		case <-s.kick:
			s.urgent()
			continue
		case r := <-s.results:
			s.looked(r)
			continue
		default:
		}
		select {
		case <-s.hub.done:
			s.stop()
			return
		case <-s.kick:
			s.urgent()
		case r := <-s.results:
			s.looked(r)
		case o := <-s.inbox:
			s.do(o)
		case <-turn.C:
			s.turn()
		}
		s.settle()
	}
}

// step is how long one slot of the wheel lasts.
func (s *shard) step() time.Duration {
	return max(min(slot, s.hub.opts.StatsEvery/2), time.Millisecond)
}

// breathe lets others run in the midst of much work, and takes what must not wait in between.
func (s *shard) breathe(i int) {
	if i%yieldEvery != yieldEvery-1 {
		return
	}
	runtime.Gosched()
	for {
		select {
		case r := <-s.results:
			s.looked(r)
			continue
		default:
		}
		break
	}
	if s.flagged.Load() {
		s.take()
	}
	s.settle()
}

// settle writes to those about whom something sure was learnt, and hands on questions.
func (s *shard) settle() {
	for len(s.ready) > 0 {
		c := s.ready[len(s.ready)-1]
		s.ready = s.ready[:len(s.ready)-1]
		s.flush(c)
	}
	for len(s.lookq) > 0 {
		c := s.lookq[0]
		if !c.has(dead) {
			select {
			case s.hub.looks <- look{c, c.gen, c.room}:
			default:
				return // lookers are busy: each of their answers brings us back
			}
		}
		s.lookq = s.lookq[1:]
	}
}

func (s *shard) do(o op) {
	c := o.c
	if o.kind == opCall {
		o.call(s)
		return
	}
	if c.has(dead) {
		return
	}
	switch o.kind {
	case opGone:
		s.remove(c)
	case opWritable:
		c.clear(busy)
		if c.nc != nil {
			s.hub.slow.Add(-1)
		}
		switch {
		case o.err != nil:
			s.drop(c, CodeSlow)
		case c.has(shut):
			s.leave(c)
		default:
			s.flush(c)
		}
	case opSend:
		if len(c.bytes)+len(o.bytes) > maxOwn {
			s.drop(c, CodeBehind)
			return
		}
		c.bytes = append(c.bytes, o.bytes...)
		s.flush(c)
	case opClose:
		if c.closing == 0 {
			c.closing, c.last = o.code, o.bytes
		}
		s.flush(c)
	}
}

// maxOwn bounds what a transport has to say to a peer that does not read, in bytes.
const maxOwn = 8 << 10

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
	p := s.hub.pace.Load()
	every := p.statsEvery(c, &s.hub.opts)
	if c.state == Waiting && c.wants(TopicRank) {
		every = min(every, p.rankEvery(c, &s.hub.opts))
	}
	every = min(every, c.room.source.Beat(), longest)
	n := int(every / s.step())
	n = max(1, min(n, slots-1))
	i := (s.hand + n - 1) % slots
	s.wheel[i] = append(s.wheel[i], c)
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
	c.room.conns.Add(-1)
	s.hub.Forget(c.addr)
	code := c.closing
	if code == 0 {
		code = CodeNormal
	}
	s.hub.counts.close(code)
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
