package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/room"
)

const (
	roomChunk     = 1024 // tickets of one column key; CHUNK of room_prelude.lua
	chunksAtOnce  = 32   // about half a MiB
	snapshotTries = 5
)

// readRoom reads head, texts and held slots, as of one moment.
func (s *Rooms) readRoom(ctx context.Context, id string) (*roomHead, map[uint64]time.Duration, error) {
	key := roomBase(id) + "h"
	msgs, err := roomReadScript.Exec(ctx, s.client, []string{key}, nil).ToArray()
	if err != nil {
		return nil, nil, roomError(id, err, true)
	}
	if len(msgs) < 3 || msgs[0].IsNil() {
		return nil, nil, fmt.Errorf("%w: %s", room.ErrNotFound, id)
	}
	raw, err := msgs[0].ToString()
	if err != nil {
		return nil, nil, roomError(id, err, true)
	}
	text, err := msgs[1].AsStrMap()
	if err != nil {
		return nil, nil, roomError(id, err, true)
	}
	pairs, err := msgs[2].AsStrSlice()
	if err != nil {
		return nil, nil, roomError(id, err, true)
	}
	held := map[uint64]time.Duration{}
	for i := 0; i+1 < len(pairs); i += 2 {
		seq, serr := strconv.ParseUint(pairs[i], 10, 64)
		until, uerr := strconv.ParseFloat(pairs[i+1], 64)
		if serr != nil || uerr != nil {
			return nil, nil, fmt.Errorf("%w: redis: key %sheld: slot %q", room.ErrLayout, roomBase(id), pairs[i])
		}
		held[seq] = time.Duration(until) * time.Microsecond
	}
	h, err := readRoomHead(key, raw, text)
	return h, held, err
}

// roomParts is what a snapshot collects while the room goes on.
type roomParts struct {
	ids, codes, keys map[uint64]string // columns by chunk
	sessions         map[uint64]room.SessionRecord
	cuts             map[uint64]float64           // how often idle or max had been cut when a session began
	late             map[uint64]room.TicketRecord // what became of tickets while the columns were read
	lateKeys         map[uint64][8]byte
}

// snapshot makes a machine of the room as it is. Its parts are read one after the other while the room goes on; what
// happened meanwhile is in the log, and is put over them.
func (s *Rooms) snapshot(ctx context.Context, id string) (*room.Machine, error) {
	var err error
	for range snapshotTries {
		var m *room.Machine
		if m, err = s.trySnapshot(ctx, id); err == nil {
			return m, nil
		}
		if !errors.Is(err, room.ErrTrimmed) && !errors.Is(err, room.ErrLayout) {
			return nil, err
		}
	}
	return nil, err
}

func (s *Rooms) trySnapshot(ctx context.Context, id string) (*room.Machine, error) {
	before, _, err := s.readRoom(ctx, id)
	if err != nil {
		return nil, err
	}
	if !before.exists() {
		return nil, fmt.Errorf("%w: %s", room.ErrNotFound, id)
	}
	p := &roomParts{
		ids: map[uint64]string{}, codes: map[uint64]string{}, keys: map[uint64]string{}, sessions: map[uint64]room.SessionRecord{}, cuts: map[uint64]float64{},
		late: map[uint64]room.TicketRecord{}, lateKeys: map[uint64][8]byte{},
	}
	if err := s.readColumns(ctx, id, p); err != nil {
		return nil, err
	}
	if err := s.readSessions(ctx, id, p); err != nil {
		return nil, err
	}
	after, held, err := s.readRoom(ctx, id)
	if err != nil {
		return nil, err
	}
	if !after.exists() {
		return nil, fmt.Errorf("%w: %s", room.ErrNotFound, id)
	}
	if after.int("epoch") != before.int("epoch") {
		return nil, fmt.Errorf("%w: %s: a failover", room.ErrTrimmed, id)
	}
	for at := before.cursor(); at.Before(after.cursor()); {
		events, next, err := s.Events(ctx, id, at, 10_000)
		if err != nil {
			return nil, err
		}
		if len(events) == 0 {
			return nil, fmt.Errorf("%w: %s: between %v and %v", room.ErrTrimmed, id, at, after.cursor())
		}
		at = next
		for i := range events {
			if c := (room.Cursor{Epoch: events[i].Epoch, N: events[i].N}); after.cursor().Before(c) {
				break
			}
			p.put(&events[i])
		}
	}
	return p.build(after, held)
}

func (s *Rooms) readColumns(ctx context.Context, id string, p *roomParts) error {
	base := roomBase(id)
	names, err := s.client.Do(ctx, s.client.B().Hkeys().Key(base+"kept").Build()).AsStrSlice()
	if err != nil {
		return roomError(id, err, true)
	}
	for list := range slices.Chunk(names, chunksAtOnce) {
		var cmds rueidis.Commands
		for _, k := range list {
			for _, column := range []string{"i:", "s:", "k:"} {
				cmds = append(cmds, s.client.B().Get().Key(base+column+k).Build())
			}
		}
		got := s.client.DoMulti(ctx, cmds...)
		for j, name := range list {
			k, err := strconv.ParseUint(name, 10, 64)
			if err != nil {
				return fmt.Errorf("%w: redis: key %skept: chunk %q", room.ErrLayout, base, name)
			}
			for i, into := range []map[uint64]string{p.ids, p.codes, p.keys} {
				v, err := got[3*j+i].ToString()
				switch {
				case rueidis.IsRedisNil(err):
				case err != nil:
					return roomError(id, err, true)
				default:
					into[k] = v
				}
			}
		}
	}
	return nil
}

func (s *Rooms) readSessions(ctx context.Context, id string, p *roomParts) error {
	key := roomBase(id) + "a"
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		got, err := s.client.Do(ctx, s.client.B().Hscan().Key(key).Cursor(cursor).Count(1000).Build()).AsScanEntry()
		if err != nil {
			return roomError(id, err, true)
		}
		cursor = got.Cursor
		for i := 0; i+1 < len(got.Elements); i += 2 {
			seq, err := strconv.ParseUint(got.Elements[i], 10, 64)
			v := got.Elements[i+1]
			if err != nil || len(v) != 33 {
				return fmt.Errorf("%w: redis: key %s: session %q", room.ErrLayout, key, got.Elements[i])
			}
			p.cuts[seq] = roomDouble(v[24:])
			p.sessions[seq] = room.SessionRecord{
				Seq: seq, Pos: uint64(roomDouble(v)), Start: time.Duration(roomDouble(v[8:])) * time.Microsecond,
				Seen: time.Duration(roomDouble(v[16:])) * time.Microsecond, Claimed: v[32] == 1,
			}
		}
	}
	return nil
}

// put lays an event over what was read.
func (p *roomParts) put(e *room.Event) {
	t := room.TicketRecord{Ref: e.Ref}
	switch e.Type {
	case room.Entered:
		t.State = room.Waiting
		if e.Prequeue {
			var key [8]byte
			for i := range key {
				key[i] = byte(e.Key >> (56 - 8*i))
			}
			p.lateKeys[e.Seq] = key
		}
	case room.Admitted:
		t.State = room.Active
		s := p.sessions[e.Seq]
		p.sessions[e.Seq] = room.SessionRecord{Seq: e.Seq, Pos: e.Pos, Start: e.Room, Seen: max(e.Room, s.Seen), Claimed: s.Claimed}
	case room.Claimed:
		t.State = room.Active
		s := p.sessions[e.Seq]
		s.Claimed, s.Seen = true, max(s.Seen, e.Room)
		p.sessions[e.Seq] = s
	case room.Left, room.Expired, room.Abandoned:
		t.State, t.Reason = room.Ended, e.Reason
		delete(p.sessions, e.Seq)
	default:
		return
	}
	p.late[e.Seq] = t
}

// ticket is what was read of a ticket, and what became of it since; State 0: nothing.
func (p *roomParts) ticket(seq uint64) (t room.TicketRecord) {
	if t, ok := p.late[seq]; ok {
		return t
	}
	k, i := (seq-1)/roomChunk, int((seq-1)%roomChunk)
	codes, ids := p.codes[k], p.ids[k]
	if i >= len(codes) || 16*i+16 > len(ids) {
		return t
	}
	t.Seq = seq
	copy(t.ID[:], ids[16*i:])
	switch c := codes[i]; {
	case c == 1:
		t.State = room.Waiting
	case c == 2:
		t.State = room.Active
	case c >= 3:
		t.State, t.Reason = room.Ended, room.Reason(c-3)
	}
	return t
}

// draw is what was read of a draw.
func (p *roomParts) draw(first, n uint64) (d room.DrawState) {
	d.First = first
	d.Keys = make([][8]byte, n)
	for j := range d.Keys {
		seq := first + uint64(j)
		k, i := (seq-1)/roomChunk, int((seq-1)%roomChunk)
		if key, ok := p.lateKeys[seq]; ok {
			d.Keys[j] = key
		} else if col := p.keys[k]; 8*i+8 <= len(col) {
			copy(d.Keys[j][:], col[8*i:])
		}
	}
	return d
}

func (p *roomParts) build(h *roomHead, held map[uint64]time.Duration) (*room.Machine, error) {
	limit, err := h.limit()
	if err != nil {
		return nil, err
	}
	st := &room.State{
		Cursor: h.cursor(), At: int64(h.num("at")), Now: h.micros("now"), Limit: limit, State: h.state(), Seq: uint64(h.num("seq")),
		Admitted: uint64(h.num("admitted")), RateNext: h.micros("next") + time.Duration(h.num("frac")), Orders: h.orders(), Held: held,
	}
	for _, d := range h.draws() {
		draw := p.draw(d[0], d[1])
		draw.Seed = []byte(h.text["seed:"+strconv.FormatUint(d[0], 10)])
		st.Draws = append(st.Draws, draw)
	}
	if first := uint64(h.num("pre")); first > 0 {
		n := uint64(h.num("pren"))
		draw := p.draw(first, n)
		for seq := first; seq < first+n; seq++ {
			if t := p.ticket(seq); t.State == 0 || t.State == room.Ended {
				draw.Dead = append(draw.Dead, seq)
			}
		}
		st.Coming = &draw
		st.IDs = func(yield func(room.ID) bool) {
			for seq := first; seq < first+n; seq++ {
				if !yield(p.ticket(seq).ID) {
					return
				}
			}
		}
	}
	chunks := map[uint64]struct{}{}
	for k := range p.codes {
		chunks[k] = struct{}{}
	}
	for seq := range p.late {
		chunks[(seq-1)/roomChunk] = struct{}{}
	}
	list := make([]uint64, 0, len(chunks))
	for k := range chunks {
		list = append(list, k)
	}
	slices.Sort(list)
	st.Tickets = func(yield func(room.TicketRecord) bool) {
		for _, k := range list {
			for seq := k*roomChunk + 1; seq <= (k+1)*roomChunk && seq <= st.Seq; seq++ {
				if t := p.ticket(seq); t.State != 0 && !yield(t) {
					return
				}
			}
		}
	}
	rec := h.micros("rec")
	for seq, s := range p.sessions {
		if p.ticket(seq).State != room.Active { // it ended before the columns were read, and the log has it
			continue
		}
		cut, ok := p.cuts[seq]
		if !ok { // it began while this was read, and after what cuts there were
			cut = h.num("cut")
		}
		s.Seen, s.Token = max(s.Seen, rec), h.tokenBefore(s.Start, cut)
		st.Sessions = append(st.Sessions, s)
	}
	active := 0
	for t := range st.Tickets {
		if t.State == room.Active {
			active++
		}
	}
	if active != len(st.Sessions) {
		return nil, fmt.Errorf("%w: %d admitted tickets, %d sessions", room.ErrLayout, active, len(st.Sessions))
	}
	return room.Rebuild(st)
}
