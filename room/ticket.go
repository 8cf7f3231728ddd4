package room

import "time"

// tickets keeps what the machine knows of each ticket, by seq: 21 bytes a ticket, and 16 more
// where request ids are used. Chunks whose tickets are all forgotten are dropped.
type tickets struct {
	base   uint64   // seqs 1..base are forgotten
	chunks []*chunk // nil where all are forgotten
}

const chunkLen = 1024

type chunk struct {
	id      [chunkLen]ID
	seen    [chunkLen]uint32 // last sign of life, in ticks of room time
	state   [chunkLen]ticketCode
	request *[chunkLen][16]byte // nil while no ticket of the chunk has one
	kept    int                 // tickets not forgotten
	waiting int
	due     uint32 // no waiter of the chunk was heard from before this
}

// ticketCode is none, waiting, active, or ended for a reason.
type ticketCode uint8

const (
	codeNone ticketCode = iota
	codeWaiting
	codeActive
	codeEnded // + Reason
)

func (c ticketCode) state() TicketState {
	switch c {
	case codeNone:
		return 0
	case codeWaiting:
		return Waiting
	case codeActive:
		return Active
	}
	return Ended
}

// seenTick is the unit of presence: room time in tenths of a second lasts 13 years in 32 bits.
const seenTick = 100 * time.Millisecond

func (t *tickets) at(seq uint64) (*chunk, int) {
	if seq <= t.base {
		return nil, 0
	}
	i := seq - t.base - 1
	if i/chunkLen >= uint64(len(t.chunks)) {
		return nil, 0
	}
	return t.chunks[i/chunkLen], int(i % chunkLen)
}

// find returns where ref stands, or nil if it is unknown or forgotten.
func (t *tickets) find(ref Ref) (*chunk, int) {
	c, i := t.at(ref.Seq)
	if c == nil || c.state[i] == codeNone || c.id[i] != ref.ID {
		return nil, 0
	}
	return c, i
}

// put adds a ticket as waiting. Seqs rise, but for tickets that a failover lost.
func (t *tickets) put(ref Ref, request [16]byte, seen uint32) {
	if len(t.chunks) == 0 { // skip what was never here
		t.base = (ref.Seq - 1) / chunkLen * chunkLen
	}
	if ref.Seq <= t.base { // lost in a failover, and taken up again
		base := (ref.Seq - 1) / chunkLen * chunkLen
		t.chunks = append(make([]*chunk, (t.base-base)/chunkLen), t.chunks...)
		t.base = base
	}
	i := ref.Seq - t.base - 1
	for i/chunkLen >= uint64(len(t.chunks)) {
		t.chunks = append(t.chunks, nil)
	}
	c := t.chunks[i/chunkLen]
	if c == nil {
		c = &chunk{due: seen}
		t.chunks[i/chunkLen] = c
	}
	k := i % chunkLen
	c.id[k], c.seen[k], c.state[k] = ref.ID, seen, codeWaiting
	if request != [16]byte{} {
		if c.request == nil {
			c.request = new([chunkLen][16]byte)
		}
		c.request[k] = request
	}
	c.kept++
	c.waiting++
	c.due = min(c.due, seen)
}

func (t *tickets) set(seq uint64, code ticketCode) {
	c, i := t.at(seq)
	if c.state[i] == codeWaiting {
		c.waiting--
	}
	c.state[i] = code
}

// forget drops a ticket and returns the request id that led to it.
func (t *tickets) forget(seq uint64) (request [16]byte) {
	c, i := t.at(seq)
	if c == nil {
		return request
	}
	if c.request != nil {
		request = c.request[i]
	}
	c.state[i] = codeNone
	if i := (seq - t.base - 1) / chunkLen; c.kept == 1 && i < uint64(len(t.chunks))-1 {
		t.chunks[i] = nil // not the last one: tickets still arrive there
	} else {
		c.kept--
	}
	return request
}

// prune forgets the range below the first chunk that is left.
func (t *tickets) prune() {
	for len(t.chunks) > 1 && (t.chunks[0] == nil || t.chunks[0].kept == 0) {
		t.chunks = t.chunks[1:]
		t.base += chunkLen
	}
}

// session is what an admitted ticket holds.
type session struct {
	id      ID
	pos     uint64
	start   time.Duration // room time of the admission
	seen    time.Duration // room time of the last renewal
	claimed bool
	token   time.Duration // room time up to which tokens signed under a longer idle or max may last
}

// due is a moment of room time at which something may have to be done about a seq.
type due struct {
	at  time.Duration
	seq uint64
}

// dues is a binary heap of moments, soonest first. Entries may be out of date: who pops one
// looks again, and pushes the true moment if it has moved.
type dues []due

func (h *dues) push(d due) {
	*h = append(*h, d)
	q := *h
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if q[up].at <= q[i].at {
			return
		}
		q[up], q[i] = q[i], q[up]
		i = up
	}
}

func (h *dues) pop() due {
	q := *h
	top, n := q[0], len(q)-1
	q[0] = q[n]
	*h = q[:n]
	q = q[:n]
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			return top
		}
		if down+1 < n && q[down+1].at < q[down].at {
			down++
		}
		if q[i].at <= q[down].at {
			return top
		}
		q[i], q[down] = q[down], q[i]
		i = down
	}
}
