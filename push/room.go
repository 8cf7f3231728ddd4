package push

import (
	"sync"
	"sync/atomic"
)

// Room is one room's side of the hub: its source, what its log brought lately, and its stats.
type Room struct {
	hub    *Hub
	id     string
	source Source
	conns  atomic.Int64

	mu     sync.Mutex
	head   Cursor // guarded by mu; everything up to it has been given to the shards
	recent map[ID]uint64
	ring   []recalled // oldest first from at
	at     int
	since  Cursor // what happened after it is in recent

	stats atomic.Pointer[Message]
	says  atomic.Pointer[[]say]
	last  Stats // as told last; guarded by mu
}

type recalled struct {
	id ID
	n  uint64
}

// say is a stats message with news of the operator's: each of them is delivered.
type say struct {
	n      uint64
	seenBy Cursor // a reader that has come this far has been told
	m      *Message
}

// keptSays bounds the operator's messages that wait for slow readers.
const keptSays = 64

// ChangeType is what happened to a ticket.
type ChangeType uint8

const (
	ChangeAdmitted ChangeType = iota + 1
	ChangeEnded
)

// Change is an event of the room's log that concerns one ticket.
type Change struct {
	ID     ID
	N      uint64 // its position
	Type   ChangeType
	Reason string // ended
	At     int64  // µs since 1970
}

// Room returns a room's side of the hub, and makes it if it is new; head is how far its log has been read, and made by
// source only then.
func (h *Hub) Room(id string, open func(*Room) (Source, Cursor)) *Room {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.rooms[id]; r != nil {
		return r
	}
	r := &Room{hub: h, id: id, recent: map[ID]uint64{}}
	r.says.Store(&[]say{})
	// Held while it opens, so that events which arrive meanwhile wait for the head they follow.
	r.mu.Lock()
	r.source, r.head = open(r)
	r.since = r.head
	r.mu.Unlock()
	h.rooms[id] = r
	r.refresh()
	return r
}

// Drop closes a room's connections: the room has been deleted.
func (h *Hub) Drop(r *Room) {
	h.mu.Lock()
	if h.rooms[r.id] == r {
		delete(h.rooms, r.id)
	}
	h.mu.Unlock()
	for _, s := range h.shards {
		s.announce(news{room: r, gone: true})
	}
}

// ID is the room's id.
func (r *Room) ID() string { return r.id }

// Source is what the room was opened with.
func (r *Room) Source() Source { return r.source }

// Head is how far the log has been given to the connections.
func (r *Room) Head() Cursor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.head
}

// Events takes what the log brought, in order, up to and including head; stated says that the room's state or message
// is among it. It never waits for a connection.
func (r *Room) Events(changes []Change, head Cursor, stated bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if head.Epoch != r.head.Epoch {
		r.forget(Cursor{head.Epoch, 0})
	}
	for i := range changes {
		c := &changes[i]
		r.remember(c.ID, c.N)
		if r.conns.Load() > 0 { // whoever attaches later looks at recent
			r.hub.shardOf(c.ID).change(r, c)
		}
	}
	if stated {
		r.tell(r.source.Stats(), head, head)
	}
	r.head = head // last: a frame that names it comes after what it names
}

// Reset says that events may have been missed up to head: everybody is looked at anew.
func (r *Room) Reset(head Cursor) {
	r.mu.Lock()
	r.forget(head)
	for _, s := range r.hub.shards {
		s.announce(news{room: r, reset: true})
	}
	r.head = head
	r.mu.Unlock()
	r.Stated()
}

// Recheck has everybody's ticket looked at: something has changed for all of them, as when the room opens.
func (r *Room) Recheck() {
	for _, s := range r.hub.shards {
		s.announce(news{room: r, reset: true})
	}
}

// Stated says that the room's state or message has changed.
func (r *Room) Stated() {
	select {
	case r.hub.wake <- struct{}{}:
	default:
	}
}

// forget is called with mu held.
func (r *Room) forget(since Cursor) {
	clear(r.recent)
	r.ring, r.at, r.since = r.ring[:0], 0, since
}

func (r *Room) remember(id ID, n uint64) {
	if len(r.ring) < r.hub.opts.Recall {
		r.ring = append(r.ring, recalled{id, n})
	} else {
		old := &r.ring[r.at]
		if r.recent[old.id] == old.n {
			delete(r.recent, old.id)
		}
		r.since.N = old.n
		*old = recalled{id, n}
		r.at = (r.at + 1) % len(r.ring)
	}
	r.recent[id] = n
}

// recall says whether something happened to a ticket after a cursor; exact is false where nobody remembers.
func (r *Room) recall(id ID, after Cursor) (changed, exact bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if after.Epoch != r.since.Epoch || after.N < r.since.N || r.head.Before(after) {
		return true, false
	}
	return r.recent[id] > after.N, true
}

// refresh makes the room's stats message if they have changed.
func (r *Room) refresh() {
	head := r.Head() // before the stats: they are at least as new
	now := r.source.Stats()
	r.mu.Lock()
	defer r.mu.Unlock()
	// Should the source be ahead of the log's events, whoever has come no further than they has not seen this.
	r.tell(now, head, Cursor{r.head.Epoch, r.head.N + 1})
}

// tell is called with mu held. Whoever has come as far as seenBy has been told what the operator says.
func (r *Room) tell(now Stats, head, seenBy Cursor) {
	old, told := &r.last, r.stats.Load()
	if told != nil && (now.At < old.At || now.Waiting == old.Waiting && now.Active == old.Active && now.State == old.State && now.Message == old.Message) {
		return
	}
	m := &Message{Topic: TopicStats, Of: r.id, Cursor: head, Body: appendStats(nil, &now)}
	if told == nil || now.State == old.State && now.Message == old.Message {
		r.last = now
		r.stats.Store(m)
		return
	}
	r.last = now
	says := *r.says.Load()
	n := uint64(1)
	if len(says) > 0 {
		n = says[len(says)-1].n + 1
	}
	kept := append(append(make([]say, 0, len(says)+1), says[max(0, len(says)+1-keptSays):]...), say{n, seenBy, m})
	r.says.Store(&kept)
	r.stats.Store(m)
	for _, s := range r.hub.shards {
		s.announce(news{room: r})
	}
}

// saysAfter returns the operator's messages after number n; lost is true when some are no longer kept.
func (r *Room) saysAfter(n uint64) (list []say, lost bool) {
	says := *r.says.Load()
	if len(says) == 0 || says[len(says)-1].n <= n {
		return nil, false
	}
	if first := says[0].n; n+1 < first {
		return nil, true
	}
	return says[n+1-says[0].n:], false
}

// saidBy is the number of the newest of the operator's messages that a reader at a cursor has seen.
func (r *Room) saidBy(after Cursor) uint64 {
	says := *r.says.Load()
	if len(says) == 0 {
		return 0
	}
	n := says[0].n - 1
	for _, s := range says {
		if after.Before(s.seenBy) {
			break
		}
		n = s.n
	}
	return n
}
