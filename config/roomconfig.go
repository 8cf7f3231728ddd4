package config

import (
	"time"

	"github.com/ushergo/usher/room"
)

// RoomConfig gives r as the room package takes it.
func (r *Room) RoomConfig() room.Config {
	out := room.Config{
		ID:              r.ID,
		Origin:          r.Origin,
		SharedCache:     r.SharedCache,
		CaseSensitive:   r.CaseSensitive,
		OnEngineFailure: r.OnEngineFailure,
		CORS:            append([]string{}, r.CORS...),
		Page:            room.Page{Dir: r.Page.Dir},
		TargetWait:      room.Duration(r.TargetWait),
		Match:           []room.Match{},
		Capacity: room.Capacity{
			Active:        int64(r.Capacity.Active),
			PerInstance:   int64(r.Capacity.PerInstance),
			RatePerMinute: int64(r.Capacity.RatePerMinute),
		},
		Instances: room.Instances{Source: r.Instances.Source, Selector: r.Instances.Selector, Namespace: r.Instances.Namespace, Fallback: int64(r.Instances.Fallback)},
		Session: room.Session{
			Idle:  room.Duration(r.Session.Idle),
			Max:   room.Duration(r.Session.Max),
			Claim: room.Duration(r.Session.Claim),
			Hold:  r.Session.Hold,
		},
		Queue: room.Queue{Order: room.Order(r.Queue.Order), Grace: room.Duration(r.Queue.Grace), MaxWaiting: int64(r.Queue.MaxWaiting)},
		Schedule: room.Schedule{
			OpensAt:  room.Time{Time: utc(r.Schedule.OpensAt)},
			Prequeue: room.Duration(r.Schedule.Prequeue),
			ClosesAt: room.Time{Time: utc(r.Schedule.ClosesAt)},
		},
		Log: room.Log{Retain: room.Duration(r.Log.Retain), MaxBytes: room.Size(r.Log.MaxBytes)},
	}
	for _, m := range r.Match {
		out.Match = append(out.Match, room.Match{Host: m.Host, Path: m.Path})
	}
	return out
}

// utc makes two spellings of one moment equal.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}
