package web

import (
	"context"
	"errors"
	"time"

	"github.com/ushergo/usher/push"
	"github.com/ushergo/usher/room"
)

// source is one room as the hub asks it.
type source struct {
	s    *Server
	room *room.Room
	id   string
}

// pushRoom is a room's side of the hub; the first one who asks joins it to the room's log.
func (s *Server) pushRoom(e *entry) *push.Room {
	for {
		r := s.streams.hub.Room(e.room.ID(), func(r *push.Room) (push.Source, push.Cursor) { return s.join(r, e.room) })
		if src, ok := r.Source().(*source); ok && src.room != e.room {
			s.streams.hub.Drop(r) // a room of that name was deleted and made again
			continue
		}
		return r
	}
}

func (s *Server) join(r *push.Room, rm *room.Room) (push.Source, push.Cursor) {
	phase := rm.Summary().Phase
	stop := rm.Listen(func(events []room.Event) {
		if events == nil {
			r.Reset(push.Cursor(rm.Head()))
			return
		}
		changes := make([]push.Change, 0, len(events))
		stated, opened := false, false
		for i := range events {
			e := &events[i]
			c := push.Change{ID: push.ID(e.ID), N: e.N, Type: push.ChangeAdmitted, At: e.At}
			switch e.Type {
			case room.Admitted:
			case room.Left, room.Expired, room.Abandoned:
				c.Type, c.Reason = push.ChangeEnded, e.Reason.String()
			case room.StateChanged:
				stated = true
				opened = opened || e.State.Phase != phase
				phase = e.State.Phase
				continue
			default:
				continue
			}
			changes = append(changes, c)
		}
		last := &events[len(events)-1]
		r.Events(changes, push.Cursor{Epoch: last.Epoch, N: last.N}, stated)
		if opened {
			r.Recheck() // now everybody has a place
		}
	})
	s.wg.Go(func() {
		defer stop()
		select {
		case <-rm.Gone():
			s.streams.hub.Drop(r)
		case <-s.stop:
		}
	})
	return &source{s, rm, rm.ID()}, push.Cursor(rm.Head())
}

// entry is the room as it is configured now.
func (src *source) entry() *entry { return src.s.table().rooms[src.id] }

var errNoEntry = errors.New("web: the room's configuration has not been read yet")

// Look implements push.Source.
func (src *source) Look(ctx context.Context, t push.Ticket) (push.Standing, error) {
	e := src.entry()
	if e == nil {
		return push.Standing{}, errNoEntry
	}
	v, err := src.room.Status(ctx, room.Ref{Seq: t.Seq, ID: room.ID(t.ID)})
	switch {
	case err == nil:
		return src.s.standing(e, &v)
	case errors.Is(err, room.ErrEnded):
		return push.Standing{State: push.Ended, Reason: v.Reason.String(), At: v.At}, nil
	case isAny(err, room.ErrNoTicket, room.ErrNotFound):
		return push.Standing{State: push.Ended, Reason: room.ReasonLeft.String()}, nil
	}
	return push.Standing{}, err
}

// standing is a visit as the hub knows it.
func (s *Server) standing(e *entry, v *room.Visit) (push.Standing, error) {
	st := push.Standing{State: push.Waiting, Spot: push.Spot{Pos: v.Pos, Random: v.Random}, At: v.At}
	if v.State == room.Waiting {
		return st, nil
	}
	adm, err := s.admissions.of(e, v, false)
	if err != nil {
		s.log.Error("an admission could not be signed", "room", e.room.ID(), "err", err)
		return st, err
	}
	st.State, st.Admission = push.Admitted, appendAdmission(nil, adm)
	return st, nil
}

// Rank implements push.Source.
func (src *source) Rank(spot push.Spot) push.Rank {
	var r push.Rank
	place, waiting, at, ok := src.room.Rank(room.View{State: room.Waiting, Pos: spot.Pos, Random: spot.Random})
	r.Waiting, r.At = waiting, at
	if !ok {
		return r
	}
	r.Place = place
	if e := src.entry(); e != nil {
		doc, _, _ := e.doc.get(src.room)
		if eta := etaAt(doc, place); eta != nil {
			r.ETA = &push.ETA{LowS: eta.LowS, HighS: eta.HighS, Basis: eta.Basis}
		}
	}
	return r
}

// Stats implements push.Source.
func (src *source) Stats() push.Stats {
	s := src.room.Summary()
	return push.Stats{
		Waiting: s.Waiting, Active: s.Active, State: room.EffectiveState(s.State, s.Phase), Message: s.Message, At: time.Now().UnixMicro(),
	}
}

// Heard implements push.Source.
func (src *source) Heard(t push.Ticket) { src.room.Heard(room.Ref{Seq: t.Seq, ID: room.ID(t.ID)}) }

// beatEvery is how long a connection may be quiet: less than any proxy's patience.
const beatEvery = 15 * time.Second

// Beat implements push.Source.
func (src *source) Beat() time.Duration {
	if e := src.entry(); e != nil {
		return min(beatEvery, max(time.Duration(e.cfg.Queue.Grace)/4, time.Second))
	}
	return beatEvery
}
