package push

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Peer is what a transport brings: a socket, or nothing, and then it pulls (see Conn.Pull).
type Peer struct {
	Conn  net.Conn // nil: the transport writes by itself what Pull gives it
	Codec Codec
	Addr  string  // as given to Accept
	After *Cursor // how far the client says it has come; nil: it knows nothing
	All   bool    // subscribed to every topic from the start
	// Hidden tabs are told seldom.
	Hidden bool
	// Pings says that the peer answers pings: it is dead when it is silent.
	Pings bool
	// Hold keeps places and stats back until they are due, as a poll wants that already knows the last ones.
	Hold  bool
	Hello []byte // written first
}

type flag uint16

const (
	busy    flag = 1 << iota // a slow write, or a pull, is under way
	dead                     // removed
	shut                     // its last words have been written
	dirty                    // something happened that the store has not been asked about
	looking                  // the store is being asked
	again                    // say the admission again
	hidden
	pings
	forced // tell the place even if it has not changed
	held   // poll: nothing new is no news
)

// Conn is one connection. Its methods may be called from any goroutine; what is below "shard" belongs to the shard.
type Conn struct {
	hub    *Hub
	shard  *shard
	room   *Room
	ticket Ticket
	addr   string
	codec  Codec
	nc     net.Conn
	raw    syscall.RawConn // nil: not a plain socket
	out    chan []byte     // for Pull

	heard  atomic.Int64 // hub time of the last byte
	ponged atomic.Int64 // hub time of the last ping answered

	// shard:
	next    *Conn // of the same ticket
	index   int32 // in the room's list
	flags   flag
	want    uint8 // topics
	reset   uint8 // topics whose next message says that all before it is void
	state   State
	closing Code
	gen     uint32
	spot    Spot
	place   int64
	waiting int64
	said    uint64
	stats   *Message
	sure    []*Message
	bytes   []byte // of the transport's own: greetings, receipts
	subs    [topics]string
	ranked  int64 // hub time of the last place
	statted int64
	wrote   int64
	noted   int64 // hub time of the last sign of life passed on
	last    []byte
	after   time.Duration // told with the last words
}

func (c *Conn) has(f flag) bool     { return c.flags&f != 0 }
func (c *Conn) set(f flag)          { c.flags |= f }
func (c *Conn) clear(f flag)        { c.flags &^= f }
func (c *Conn) wants(t Topic) bool  { return c.want&(1<<t) != 0 }
func (c *Conn) Ticket() Ticket      { return c.ticket }
func (c *Conn) Room() *Room         { return c.room }
func (c *Conn) Pull() <-chan []byte { return c.out } // one batch at a time, until Taken; closed with the connection
func (c *Conn) post(o op)           { c.shard.post(o) }
func (c *Conn) Gone()               { c.post(op{kind: opGone, c: c}) } // the reader has seen the end
func (c *Conn) Taken(err error)     { c.post(op{kind: opWritable, c: c, err: err}) }
func (c *Conn) Send(b []byte)       { c.post(op{kind: opSend, c: c, bytes: b}) } // the transport's own; copied by nobody

// Heard notes that the peer sent something.
func (c *Conn) Heard() { c.heard.Store(c.hub.now()) }

// Pong answers a ping, at most once a second: whoever floods pings gets one answer for many.
func (c *Conn) Pong(payload []byte) {
	now, last := c.hub.now(), c.ponged.Load()
	if now-last < int64(time.Second) || !c.ponged.CompareAndSwap(last, now) {
		return
	}
	c.Send(c.codec.AppendPong(nil, payload))
}

// Close says why, after whatever still waits to be written, and closes. last are words of the transport's own before
// the close itself.
func (c *Conn) Close(code Code, last []byte) {
	c.post(op{kind: opClose, c: c, code: code, bytes: last})
}

// Errors of Subscribe.
var (
	ErrSubscribed = errors.New("push: already subscribed")
	ErrUnknownSub = errors.New("push: no such subscription")
)

// Subscribe begins a topic under the client's own id. What is true now is told at once. receipt is written after it.
func (c *Conn) Subscribe(t Topic, id string, isHidden bool, receipt []byte) error {
	return c.ask(func(s *shard) error {
		for u := range topics {
			if c.wants(u) && (u == t || c.subs[u] == id) {
				return ErrSubscribed
			}
		}
		c.subs[t] = id
		c.want |= 1 << t
		switch t {
		case TopicRank:
			c.set(forced)
			c.ranked = 0
			c.clear(hidden)
			if isHidden {
				c.set(hidden)
			}
		case TopicStats:
			c.stats, c.statted = nil, 0
		case TopicAdmission:
			if c.state == Admitted && !c.owes(TopicAdmission) {
				c.set(again)
				s.look(c)
			}
		}
		c.bytes = append(c.bytes, receipt...)
		s.flush(c)
		return nil
	})
}

// Unsubscribe ends a topic.
func (c *Conn) Unsubscribe(id string, receipt []byte) error {
	return c.ask(func(s *shard) error {
		for t := range topics {
			if c.wants(t) && c.subs[t] == id {
				c.want &^= 1 << t
				c.subs[t] = ""
				c.bytes = append(c.bytes, receipt...)
				s.flush(c)
				return nil
			}
		}
		return ErrUnknownSub
	})
}

// owes says whether a message to a topic still waits.
func (c *Conn) owes(t Topic) bool {
	for _, m := range c.sure {
		if m.Topic == t {
			return true
		}
	}
	return false
}

// ask runs f in the shard and returns what it says.
func (c *Conn) ask(f func(*shard) error) error {
	reply := make(chan error, 1)
	c.post(op{kind: opCall, c: c, call: func(s *shard) {
		if c.has(dead) {
			reply <- ErrClosed
			return
		}
		reply <- f(s)
	}})
	select {
	case err := <-reply:
		return err
	case <-c.hub.done:
		return ErrClosed
	}
}

// Check says beforehand whether Attach would refuse a ticket, for transports that can still answer with a status.
func (h *Hub) Check(id ID) error {
	s := h.shardOf(id)
	c := &Conn{hub: h, shard: s}
	return c.ask(func(s *shard) error { return s.room(id) })
}

// Attach takes a connection on, after Accept. st is what the ticket's store said, and from the room's Head before it
// was asked: what happened in between is caught up with. On an error the connection is still the caller's, Accept too.
// Errors: ErrTicket, ErrDraining, ErrClosed.
func (h *Hub) Attach(r *Room, t Ticket, st Standing, from Cursor, p Peer) (*Conn, error) {
	c := &Conn{hub: h, shard: h.shardOf(t.ID), room: r, ticket: t, addr: p.Addr, codec: p.Codec, nc: p.Conn, state: st.State, spot: st.Spot, bytes: p.Hello}
	c.heard.Store(h.now())
	c.ponged.Store(-int64(time.Minute))
	if p.Conn == nil {
		c.out = make(chan []byte, 1)
	} else {
		c.raw = tune(p.Conn, &h.opts)
	}
	if p.All {
		c.want = 1<<topics - 1
	}
	if p.Hidden {
		c.set(hidden)
	}
	if p.Pings {
		c.set(pings)
	}
	if err := c.ask(func(s *shard) error { return s.attach(c, st, from, &p) }); err != nil {
		return nil, err
	}
	return c, nil
}
