package redis

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/room"
)

// roomEntry is one entry of a room's log: what one call of the script changed.
type roomEntry struct {
	id     string // epoch-n of its last event
	last   room.Cursor
	first  uint64
	at     int64
	bytes  float64 // of the log up to and with it, since the room was made
	events string
	now    time.Duration
	ends   bool // the room was deleted
}

const roomEntryHead = 1 + 5*8

func readRoomEntry(e rueidis.XRangeEntry) (r roomEntry, err error) {
	r.id = e.ID
	if r.last, err = room.ParseCursor(strings.Replace(e.ID, "-", ".", 1)); err != nil {
		return r, fmt.Errorf("%w: entry %s", room.ErrLayout, e.ID)
	}
	if _, ok := e.FieldValues["x"]; ok {
		r.ends = true
		return r, nil
	}
	b, ok := e.FieldValues["e"]
	if !ok || len(b) < roomEntryHead || b[0] != roomLayout {
		return r, fmt.Errorf("%w: entry %s of the log has another layout, this version reads %d; use one version of usher", room.ErrLayout, e.ID, roomLayout)
	}
	r.first, r.at, r.now = uint64(roomDouble(b[9:])), int64(roomDouble(b[17:])), time.Duration(roomDouble(b[25:]))*time.Microsecond
	r.bytes, r.events = roomDouble(b[33:]), b[roomEntryHead:]
	return r, nil
}

// decode appends the entry's events to list.
func (r *roomEntry) decode(list []room.Event) ([]room.Event, error) {
	b := roomBytes{s: r.events}
	for n := r.first; len(b.s) > 0; {
		e := room.Event{Epoch: r.last.Epoch, N: n, At: r.at, Room: r.now}
		before := len(list)
		switch kind := b.byte(); {
		case kind == 128+byte(room.Entered):
			flags, run, first := b.byte(), int(b.double()), uint64(b.double())
			ids, reqs, keys := b.take(16*run), "", ""
			if flags&2 != 0 {
				reqs = b.take(16 * run)
			}
			if flags&4 != 0 {
				keys = b.take(8 * run)
			}
			for i := 0; i < run && !b.bad; i++ {
				e := e
				e.N += uint64(i)
				e.Type, e.Seq = room.Entered, first+uint64(i)
				copy(e.ID[:], ids[16*i:])
				if reqs != "" {
					copy(e.Request[:], reqs[16*i:])
				}
				if keys != "" {
					e.Prequeue, e.Key = true, binary.BigEndian.Uint64([]byte(keys[8*i:8*i+8]))
				} else {
					e.Pos = e.Seq
				}
				list = append(list, e)
			}
		case kind >= byte(room.Admitted) && kind <= byte(room.Abandoned):
			e.Type = room.EventType(kind)
			flags := b.byte()
			e.Reason, e.Seq, e.Pos = room.Reason(b.byte()), uint64(b.double()), uint64(b.double())
			copy(e.ID[:], b.take(16))
			e.WasActive = flags&1 != 0
			if flags&8 != 0 {
				e.Hold = time.Duration(b.double()) * time.Microsecond
			}
			if flags&16 != 0 {
				e.Key = binary.BigEndian.Uint64([]byte(b.take(8)))
			}
			list = append(list, e)
		case kind == byte(room.LimitChanged):
			e.Type = room.LimitChanged
			l := &room.LimitData{Revision: uint64(b.double()), Instances: int64(b.double()), Limit: limitNumber(b.double()), Digest: b.text()}
			if err := json.Unmarshal([]byte(b.text()), &l.Config); err != nil && !b.bad {
				return nil, fmt.Errorf("%w: entry %s: %w", room.ErrLayout, r.id, err)
			}
			e.Limit = l
			list = append(list, e)
		case kind == byte(room.StateChanged):
			e.Type = room.StateChanged
			d := &room.StateData{State: stateName(b.byte())}
			if phase := int(b.byte()); phase < len(roomPhases) {
				d.Phase = roomPhases[phase]
			}
			d.Closed, d.Message = b.byte() == 1, b.text()
			if s := b.text(); s != "" {
				d.Seed = []byte(s)
			}
			d.Opening.SeedHash = b.text()
			d.Opening.FirstPos, d.Opening.Count = uint64(b.double()), uint64(b.double())
			d.Opening.Seed, d.Opening.Root = b.text(), b.text()
			e.State = d
			list = append(list, e)
		default:
			b.bad = true
		}
		if b.bad {
			return nil, fmt.Errorf("%w: entry %s of the log is damaged", room.ErrLayout, r.id)
		}
		n += uint64(len(list) - before)
	}
	return list, nil
}

// roomBytes takes values off a string; after a failure it only yields zeros.
type roomBytes struct {
	s   string
	bad bool
}

func (b *roomBytes) take(n int) string {
	if n < 0 || n > len(b.s) {
		b.s, b.bad = "", true
		return strings.Repeat("\x00", max(0, min(n, 16)))
	}
	t := b.s[:n]
	b.s = b.s[n:]
	return t
}
func (b *roomBytes) byte() byte      { return b.take(1)[0] }
func (b *roomBytes) double() float64 { return roomDouble(b.take(8)) }
func (b *roomBytes) text() string    { return b.take(int(binary.BigEndian.Uint32([]byte(b.take(4))))) }

// Events implements room.Store.
func (s *Rooms) Events(ctx context.Context, id string, after room.Cursor, limit int) ([]room.Event, room.Cursor, error) {
	var events []room.Event
	next := after
	for len(events) < limit {
		entries, floor, err := s.entries(ctx, id, next, min(limit-len(events), 64))
		if err != nil {
			return nil, after, err
		}
		if next != (room.Cursor{}) && next.Before(floor) {
			if len(events) > 0 { // the gap is the next call's to tell
				break
			}
			return nil, floor, fmt.Errorf("%w: %s begins after %v", room.ErrTrimmed, id, floor)
		}
		if len(entries) == 0 {
			break
		}
		for i := range entries {
			e := &entries[i]
			if e.ends {
				continue
			}
			if next != (room.Cursor{}) && e.last.Epoch == next.Epoch && e.first > next.N+1 { // cut by somebody else
				if len(events) > 0 {
					break
				}
				floor := room.Cursor{Epoch: e.last.Epoch, N: e.first - 1}
				return nil, floor, fmt.Errorf("%w: %s goes on after %v", room.ErrTrimmed, id, floor)
			}
			list, err := e.decode(nil)
			if err != nil {
				return nil, after, err
			}
			for _, ev := range list {
				c := room.Cursor{Epoch: ev.Epoch, N: ev.N}
				if next.Before(c) && len(events) < limit {
					events, next = append(events, ev), c
				}
			}
			if len(events) >= limit {
				break
			}
		}
		if entries[len(entries)-1].ends {
			break
		}
	}
	return events, next, nil
}

// entries reads the log after a cursor, with its floor: the last event that is no longer in it.
func (s *Rooms) entries(ctx context.Context, id string, after room.Cursor, limit int) ([]roomEntry, room.Cursor, error) {
	base := roomBase(id)
	b := s.client.B()
	got := s.client.DoMulti(ctx,
		b.Get().Key(base+"h").Build(),
		b.Hmget().Key(base+"text").Field("floor").Build(),
		s.client.B().Xrange().Key(base+"log").Start("("+fmt.Sprintf("%d-%d", after.Epoch, after.N)).End("+").Count(int64(limit)).Build(),
	)
	raw, err := got[0].ToString()
	if rueidis.IsRedisNil(err) {
		return nil, room.Cursor{}, fmt.Errorf("%w: %s", room.ErrNotFound, id)
	}
	if err != nil {
		return nil, room.Cursor{}, s.failed(id, err, true)
	}
	texts, err := got[1].ToArray()
	if err != nil {
		return nil, room.Cursor{}, s.failed(id, err, true)
	}
	floor := ""
	if len(texts) == 1 {
		floor, _ = texts[0].ToString()
	}
	h, err := readRoomHead(base+"h", raw, map[string]string{"floor": floor})
	if err != nil {
		return nil, room.Cursor{}, err
	}
	if !h.exists() {
		return nil, room.Cursor{}, fmt.Errorf("%w: %s", room.ErrNotFound, id)
	}
	list, err := readRoomEntries(got[2].AsXRange())
	if err != nil {
		return nil, room.Cursor{}, s.failed(id, err, true)
	}
	return list, h.floor(), nil
}

func readRoomEntries(raw []rueidis.XRangeEntry, err error) ([]roomEntry, error) {
	if err != nil {
		if rueidis.IsRedisNil(err) {
			return nil, nil
		}
		return nil, err
	}
	list := make([]roomEntry, 0, len(raw))
	for _, x := range raw {
		e, err := readRoomEntry(x)
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

// failed tells what was certainly not done from what may have been, and names key and mend. read: nothing was to be done.
func (s *Rooms) failed(id string, err error, read bool) error {
	if errors.Is(err, room.ErrLayout) || errors.Is(err, room.ErrUnavailable) || errors.Is(err, room.ErrUnknown) {
		return err
	}
	return roomError(id, err, read)
}
