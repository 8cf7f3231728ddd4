package room

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// snapshotLayout is the first byte of a snapshot; a foreign one is refused.
const snapshotLayout = 1

// snapshotHead is all of a machine but its tickets. Presence is not in it: after a restart
// everybody has a full grace.
type snapshotHead struct {
	Epoch, N  uint64
	At        int64
	Now       time.Duration
	Config    Config
	Revision  uint64
	Digest    string
	Instances int64
	Limit     int64
	State     StateData
	Seq       uint64
	Admitted  uint64
	RateNext  time.Duration
	Orders    []snapshotOrder
	TreeN     uint64
	TreePeaks [][32]byte
	Held      []snapshotDue
	Draws     int // sealed draws; then perhaps one that is coming
	Coming    bool
	Tickets   uint64
	Sessions  int
	Ended     int
}

const (
	sessionClaimed = 1 << iota
	sessionToken
)

type snapshotOrder struct {
	Pos   uint64
	Order Order
}

type snapshotDue struct {
	At  time.Duration
	Seq uint64
}

// Save writes the machine's state to w.
func (m *Machine) Save(w io.Writer) error {
	b := bufio.NewWriterSize(w, 1<<16)
	h := snapshotHead{
		Epoch: m.Epoch, N: m.N, At: m.at, Now: m.now, Config: m.config, Revision: m.revision, Digest: m.digest,
		Instances: m.instances, Limit: m.limit, State: m.stateData(), Seq: m.seq, Admitted: m.admitted,
		RateNext: m.rate.next, TreeN: m.tree.n, TreePeaks: m.tree.peaks,
		Draws: len(m.line.draws), Coming: m.line.pre != nil, Sessions: len(m.sessions), Ended: len(m.ended),
	}
	for _, o := range m.orders {
		h.Orders = append(h.Orders, snapshotOrder{o.pos, o.order})
	}
	for _, d := range m.held {
		h.Held = append(h.Held, snapshotDue{d.at, d.seq})
	}
	for _, c := range m.tickets.chunks {
		if c != nil {
			for i := range c.state {
				if c.state[i] != codeNone {
					h.Tickets++
				}
			}
		}
	}
	head, err := json.Marshal(h)
	if err != nil {
		return err
	}
	b.WriteByte(snapshotLayout)
	var buf []byte
	put := func(vs ...uint64) {
		buf = buf[:0]
		for _, v := range vs {
			buf = binary.AppendUvarint(buf, v)
		}
		b.Write(buf)
	}
	put(uint64(len(head)))
	b.Write(head)
	for _, d := range m.line.draws {
		saveDraw(put, b, d)
	}
	if m.line.pre != nil {
		saveDraw(put, b, m.line.pre)
	}
	prev := uint64(0)
	for k, c := range m.tickets.chunks {
		if c == nil {
			continue
		}
		for i := range c.state {
			if c.state[i] == codeNone {
				continue
			}
			seq := m.tickets.base + uint64(k)*chunkLen + uint64(i) + 1
			var request [16]byte
			if c.request != nil {
				request = c.request[i]
			}
			code := uint64(c.state[i]) << 1
			if request != [16]byte{} {
				code |= 1
			}
			put(seq-prev, code)
			prev = seq
			b.Write(c.id[i][:])
			if code&1 != 0 {
				b.Write(request[:])
			}
		}
	}
	for _, seq := range slices.Sorted(maps.Keys(m.sessions)) { // one state has one snapshot
		s, flags := m.sessions[seq], uint64(0)
		if s.claimed {
			flags |= sessionClaimed
		}
		if s.token != 0 {
			flags |= sessionToken
		}
		put(seq, s.pos, uint64(s.start), uint64(s.seen), flags)
		if s.token != 0 {
			put(uint64(s.token))
		}
	}
	for _, d := range m.ended {
		put(uint64(d.at), d.seq)
	}
	return b.Flush()
}

func saveDraw(put func(...uint64), b *bufio.Writer, d *draw) {
	put(d.first, d.n, uint64(len(d.seed)), uint64(d.gone))
	b.Write(d.seed)
	for _, bucket := range d.buckets {
		for _, e := range bucket {
			put(e.key, e.seq-d.first)
		}
	}
	for _, keys := range d.dead {
		keys = slices.Clone(keys)
		slices.Sort(keys) // one state has one snapshot
		put(keys...)
	}
}

// Load reads what Save wrote into a new machine. It notices a snapshot that is cut short or of
// another layout; that its bytes are the ones written is for the engine's checksum to say.
func Load(r io.Reader) (*Machine, error) {
	b := bufio.NewReaderSize(r, 1<<16)
	var bad error
	fail := func(err error) {
		if bad == nil && err != nil {
			bad = fmt.Errorf("%w: snapshot: %w", ErrLayout, err)
		}
	}
	get := func() uint64 {
		v, err := binary.ReadUvarint(b)
		fail(err)
		return v
	}
	read := func(p []byte) {
		_, err := io.ReadFull(b, p)
		fail(err)
	}
	if layout, err := b.ReadByte(); err != nil || layout != snapshotLayout {
		return nil, fmt.Errorf("%w: snapshot layout %d, this build reads %d; run the version of usher that wrote it", ErrLayout, layout, snapshotLayout)
	}
	n := get()
	if bad != nil || n > 64<<20 {
		return nil, fmt.Errorf("%w: snapshot head of %d bytes", ErrLayout, n)
	}
	head := make([]byte, n)
	read(head)
	var h snapshotHead
	if bad == nil {
		fail(json.Unmarshal(head, &h))
	}
	if bad != nil {
		return nil, bad
	}
	m := NewMachine()
	m.Epoch, m.N, m.at, m.now = h.Epoch, h.N, h.At, h.Now
	m.config, m.revision, m.digest, m.instances, m.limit = h.Config, h.Revision, h.Digest, h.Instances, h.Limit
	m.state, m.phase, m.message, m.closed, m.opening, m.seed = h.State.State, h.State.Phase, h.State.Message, h.State.Closed, h.State.Opening, h.State.Seed
	m.seq, m.admitted = h.Seq, h.Admitted
	m.rate.set(h.Config.Capacity.RatePerMinute, m.now, true)
	m.rate.next = h.RateNext
	m.tree = merkle{n: h.TreeN, peaks: h.TreePeaks}
	for _, o := range h.Orders {
		m.orders = append(m.orders, orderFrom{o.Pos, o.Order})
	}
	for _, d := range h.Held {
		m.held.push(due{d.At, d.Seq})
	}
	for range h.Draws {
		d := loadDraw(get, read, &bad)
		if bad != nil {
			return nil, bad
		}
		d.seal()
		d.dead, d.gone = nil, 0
		m.line.draws = append(m.line.draws, d)
	}
	if h.Coming {
		m.line.pre = loadDraw(get, read, &bad)
	}
	seq := uint64(0)
	m.requests = make(map[[16]byte]uint64, min(h.Tickets, 1<<22))
	for i := uint64(0); i < h.Tickets && bad == nil; i++ {
		var id ID
		var request [16]byte
		seq += get()
		code := get()
		read(id[:])
		if code&1 != 0 {
			read(request[:])
		}
		if bad != nil || seq == 0 || seq > m.seq || ticketCode(code>>1) == codeNone {
			fail(fmt.Errorf("ticket %d of %d", i, h.Tickets))
			break
		}
		ref := Ref{Seq: seq, ID: id}
		m.tickets.put(ref, request, m.tick())
		if request != [16]byte{} {
			m.requests[request] = seq
		}
		switch c := ticketCode(code >> 1); c {
		case codeWaiting:
			if pos := m.posOf(ref); pos != 0 {
				if len(m.line.words) == 0 { // seqs rise, and a draw's positions are those of its seqs
					m.line.base = (m.lowest(seq) - 1) / blockBits * blockBits
				}
				m.line.add(pos)
			}
		default:
			m.tickets.set(seq, c)
		}
	}
	for i := 0; i < h.Sessions && bad == nil; i++ {
		seq, s := get(), &session{pos: get(), start: time.Duration(get()), seen: time.Duration(get())}
		flags := get()
		s.claimed = flags&sessionClaimed != 0
		if flags&sessionToken != 0 {
			s.token = time.Duration(get())
		}
		c, k := m.tickets.at(seq)
		if bad != nil || c == nil || c.state[k] != codeActive {
			fail(fmt.Errorf("session %d of %d", i, h.Sessions))
			break
		}
		s.id = c.id[k]
		m.sessions[seq] = s
		at, _ := m.deadline(s)
		m.expiry.push(due{at, seq})
	}
	for i := 0; i < h.Ended && bad == nil; i++ {
		m.ended = append(m.ended, due{time.Duration(get()), get()})
	}
	if bad != nil {
		return nil, bad
	}
	return m, nil
}

// lowest is the lowest position that a ticket of seq or later can have.
func (m *Machine) lowest(seq uint64) uint64 {
	if d := m.line.drawOf(seq); d != nil {
		return d.first
	}
	return seq
}

func loadDraw(get func() uint64, read func([]byte), bad *error) *draw {
	d := newDraw(get())
	n, seedLen, dead := get(), get(), get()
	if *bad != nil || seedLen > 64 {
		return d
	}
	if seedLen > 0 {
		d.seed = make([]byte, seedLen)
		read(d.seed)
	}
	for i := uint64(0); i < n && *bad == nil; i++ {
		key, seq := get(), get()+d.first
		b := &d.buckets[key>>52] // saved in order
		*b = append(*b, drawEntry{key, seq})
		d.n++
	}
	for i := uint64(0); i < dead && *bad == nil; i++ {
		d.kill(get())
	}
	return d
}
