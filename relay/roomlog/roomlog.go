// Package roomlog reads the logs of rooms for a relay, from any engine. A room is a partition, a ticket's id the key; a
// room's own events (limit, state) have the room's id for key.
//
// What happens is taken from memory while it is fresh, if Options.Listen is given, and read from the engine's log else.
package roomlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/room"
)

// Log is what is needed of a room.Store.
type Log interface {
	Events(ctx context.Context, room string, after room.Cursor, limit int) ([]room.Event, room.Cursor, error)
	Rooms(ctx context.Context) ([]string, error)
}

// Options of New. The zero value reads every room, once a second when nothing happens.
type Options struct {
	// Rooms are those to read; default: all that there are.
	Rooms []string
	// Listen has f called with every new event of a room, as room.Room.Listen does; ok is false while the room is not
	// known. Default: the log is read every Poll.
	Listen func(room string, f func([]room.Event)) (stop func(), ok bool)
	// Poll is how often the log is read while nothing is heard; default 1 s, or 100 ms without Listen.
	Poll time.Duration
}

// Source reads rooms' logs. It implements relay.Source, and relay.Retainer and relay.Measurer as far as the engine lets it.
type Source struct {
	log  Log
	opts Options
}

var (
	_ relay.Source   = (*Source)(nil)
	_ relay.Retainer = (*Source)(nil)
)

// New makes a source of an engine's rooms.
func New(log Log, opts Options) *Source {
	if opts.Poll <= 0 {
		opts.Poll = time.Second
		if opts.Listen == nil {
			opts.Poll = 100 * time.Millisecond
		}
	}
	return &Source{log: log, opts: opts}
}

// Partitions implements relay.Source.
func (s *Source) Partitions(ctx context.Context) ([]relay.Partition, error) {
	have, err := s.log.Rooms(ctx)
	if err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	for _, id := range s.opts.Rooms {
		wanted[id] = true
	}
	var list []relay.Partition
	for _, id := range have {
		if len(wanted) == 0 || wanted[id] {
			list = append(list, relay.Partition{Name: id})
		}
	}
	return list, nil
}

// Close implements relay.Source. The engine stays its owner's.
func (s *Source) Close() error { return nil }

// Open implements relay.Source.
func (s *Source) Open(ctx context.Context, partition string, from relay.Start) (relay.Reader, error) {
	r := &reader{source: s, room: partition, tail: newTail()}
	var err error
	switch {
	case from.After != "":
		r.at, err = room.ParseCursor(string(from.After))
		if err != nil {
			return nil, fmt.Errorf("relay: position in room %s: %w", partition, err)
		}
	case !from.At.IsZero():
		err = r.skip(ctx, func(e *room.Event) bool { return e.At >= from.At.UnixMicro() })
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Retain implements relay.Retainer for engines that are a room.Keeper.
func (s *Source) Retain(ctx context.Context, partition, reader string, after relay.Position) error {
	k, ok := s.log.(room.Keeper)
	if !ok {
		return nil
	}
	var at room.Cursor
	if after != "" {
		var err error
		if at, err = room.ParseCursor(string(after)); err != nil {
			return err
		}
	}
	if err := k.KeepFor(ctx, partition, reader, at); !errors.Is(err, room.ErrNotFound) { // a deleted room has no log to keep
		return err
	}
	return nil
}

// Release implements relay.Retainer.
func (s *Source) Release(ctx context.Context, partition, reader string) error {
	if k, ok := s.log.(room.Keeper); ok {
		if err := k.LetGo(ctx, partition, reader); !errors.Is(err, room.ErrNotFound) {
			return err
		}
	}
	return nil
}

// reader reads one room's log.
type reader struct {
	source *Source
	room   string
	at     room.Cursor
	tail   *tail
	stop   func() // ends listening; nil: not listening
}

// page is how many events are asked of the engine at once.
const page = 1000

// skip goes forward to the event before the first that stop says true of, or to the end.
func (r *reader) skip(ctx context.Context, stop func(*room.Event) bool) error {
	for {
		events, next, err := r.source.log.Events(ctx, r.room, r.at, 10*page)
		if errors.Is(err, room.ErrTrimmed) { // while we read: begin at what is left
			r.at = next
			continue
		}
		if err != nil && !errors.Is(err, room.ErrNotFound) {
			return err
		}
		for i := range events {
			if stop(&events[i]) {
				return nil
			}
			r.at = room.Cursor{Epoch: events[i].Epoch, N: events[i].N}
		}
		if len(events) == 0 {
			return nil
		}
	}
}

// Read implements relay.Reader.
func (r *reader) Read(ctx context.Context, max int) ([]relay.Event, error) {
	if r.stop == nil && r.source.opts.Listen != nil {
		if stop, ok := r.source.opts.Listen(r.room, r.tail.put); ok {
			r.stop = stop
		}
	}
	events := r.tail.after(r.at, max)
	if len(events) == 0 {
		var err error
		if events, err = r.read(ctx, max); errors.Is(err, room.ErrNotFound) { // deleted; it may be made again, and is heard anew then
			_ = r.Close()
			r.stop = nil
		} else if err != nil {
			return nil, err
		}
	}
	if len(events) == 0 {
		wait := time.NewTimer(r.source.opts.Poll)
		defer wait.Stop()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-wait.C:
			return nil, nil
		case <-r.tail.news:
		}
		if events = r.tail.after(r.at, max); len(events) == 0 {
			return nil, nil // something was missed: the next Read asks the engine
		}
	}
	out := make([]relay.Event, len(events))
	for i := range events {
		if err := convert(&out[i], r.room, &events[i]); err != nil {
			return nil, err
		}
	}
	last := events[len(events)-1]
	r.at = room.Cursor{Epoch: last.Epoch, N: last.N}
	return out, nil
}

func (r *reader) read(ctx context.Context, max int) ([]room.Event, error) {
	events, next, err := r.source.log.Events(ctx, r.room, r.at, min(max, page))
	if errors.Is(err, room.ErrTrimmed) {
		gap := &relay.GapError{
			Partition: r.room, From: position(r.at), To: position(next),
			Cause: "the room's log is longer than log.max_bytes and no longer has what the relay had not read",
		}
		if next.Epoch == r.at.Epoch && next.N > r.at.N {
			gap.Lost = int64(next.N - r.at.N)
		}
		r.at = next
		return nil, gap
	}
	return events, err
}

// Position implements relay.Placed.
func (r *reader) Position() relay.Position { return position(r.at) }

// Close implements relay.Reader.
func (r *reader) Close() error {
	if r.stop != nil {
		r.stop()
	}
	return nil
}

func position(c room.Cursor) relay.Position {
	if c == (room.Cursor{}) {
		return ""
	}
	return relay.Position(c.String())
}

func convert(to *relay.Event, id string, e *room.Event) error {
	payload, err := json.Marshal(e.Public(id))
	if err != nil {
		return fmt.Errorf("relay: event %d.%d of room %s: %w", e.Epoch, e.N, id, err)
	}
	*to = relay.Event{
		ID: relay.RoomID(id, e.Epoch, e.N), Key: id, Type: e.Type.String(), At: time.UnixMicro(e.At), Payload: payload,
		Position: position(room.Cursor{Epoch: e.Epoch, N: e.N}),
	}
	if e.Seq != 0 {
		to.Key = e.Ref.ID.String()
	}
	return nil
}
