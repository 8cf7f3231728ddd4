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
