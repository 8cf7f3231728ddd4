package relay

import (
	"slices"
	"time"
)

// twin says what the machine should do, by looking at everything each time.
type twin struct {
	t      Tuning
	events []*twinEvent
	now    time.Time
	flight map[*job][]*twinEvent
	digs   int
	taken  int

	failures int
	until    time.Time
	digFails int
	digAt    time.Time
	full     bool
	fenced   bool
	order    int // in which events began to die
}

type twinEvent struct {
	Event
	state    itemState
	at       time.Time
	tries    int
	strikes  int
	first    time.Time
	takenAt  int // at its last failure
	suspect  bool
	dies     int // its place among the dying; 0: it is not
	stop     bool
	delivery string // taken, buried
}

func (w *twin) window() (n, bytes int) {
	for i, e := range w.events {
		if e.state != done || e.stop {
			for _, e := range w.events[i:] {
				n++
				if e.state != done {
					bytes += e.size()
				}
			}
			return n, bytes
		}
	}
	return 0, 0
}

func (w *twin) held() bool {
	return slices.ContainsFunc(w.events, func(e *twinEvent) bool { return e.stop })
}

// free are the events that may be sent, in order: the first of their keys that are not done.
func (w *twin) free() (list []*twinEvent) {
	seen := map[string]bool{}
	for _, e := range w.events {
		if e.state == done || seen[e.Key] {
			continue
		}
		seen[e.Key] = true
		if e.state == queued || e.state == sleeping && !w.now.Before(e.at) {
			list = append(list, e)
		}
	}
	return list
}

func (w *twin) dying() *twinEvent {
	var first *twinEvent
	for _, e := range w.events {
		if e.state == burying && e.dies != 0 && (first == nil || e.dies < first.dies) {
			first = e
		}
	}
	return first
}

func (w *twin) die(e *twinEvent) {
	e.state = burying
	w.order++
	e.dies = w.order
}

// next is what the machine should do now.
func (w *twin) next(l Limits) (events []*twinEvent, bury bool) {
	for {
		if w.fenced || len(w.flight) >= w.t.InFlight {
			return nil, false
		}
		if e := w.dying(); e != nil && !w.now.Before(w.digAt) {
			e.dies = 0
			return []*twinEvent{e}, true
		}
		if w.full || w.now.Before(w.until) || w.failures > 0 && len(w.flight) > w.digs {
			return nil, false
		}
		free := w.free()
		if len(free) == 0 {
			return nil, false
		}
		most := w.t.Batch
		if l.Events > 0 {
			most = min(most, l.Events)
		}
		most = max(most>>min(w.failures, 30), 1)
		size := 0
		for _, e := range free {
			n := len(e.Payload) + len(e.Key)
			if l.EventBytes > 0 && n > l.EventBytes || l.Bytes > 0 && n > l.Bytes {
				w.failed(e)
				w.die(e)
				continue
			}
			if e.suspect {
				if len(events) == 0 {
					events = []*twinEvent{e}
					break
				}
				continue
			}
			if size += n; l.Bytes > 0 && size > l.Bytes {
				break
			}
			if events = append(events, e); len(events) == most {
				break
			}
		}
		if len(events) > 0 {
			for _, e := range events {
				e.state = sending
			}
			return events, false
		}
	}
}

func (w *twin) failed(e *twinEvent) {
	if e.tries == 0 {
		e.first = w.now
	}
	e.tries++
	e.takenAt = w.taken
}

// finish takes in outcomes, with a roll of a half.
func (w *twin) finish(j *job, outcomes []outcome) {
	events := w.flight[j]
	delete(w.flight, j)
	half := func(n int) time.Duration { return w.t.backoff(n, 0.5) }
	if j.bury {
		w.digs--
		if outcomes[0].ok {
			w.full, w.digFails = false, 0
			events[0].state, events[0].delivery = done, "buried"
		} else {
			w.full = w.full || outcomes[0].full
			w.digFails++
			w.digAt = w.now.Add(half(w.digFails))
			events[0].dies = -w.order - 1 // before all others
			w.order++
		}
		return
	}
	crowded := w.room() == 0
	alive := slices.ContainsFunc(outcomes, func(o outcome) bool { return o.ok || o.class == Rejected })
	for _, o := range outcomes {
		if o.ok {
			w.taken++
		}
	}
	healthy := w.failures == 0
	if alive {
		w.failures = 0
	} else if !(len(events) == 1 && events[0].suspect && healthy) {
		w.failures++
		w.until = w.now.Add(half(w.failures))
	}
	own := alive || len(events) == 1
	for i, o := range outcomes {
		e := events[i]
		if o.ok {
			e.state, e.delivery = done, "taken"
			continue
		}
		since := w.taken > e.takenAt
		w.failed(e)
		switch {
		case o.class == Fenced:
			w.fenced = true
			continue
		case o.class == Rejected:
			w.die(e)
			continue
		case o.class == Transient || o.class == Denied && alive:
			if e.tries > 1 && since {
				e.strikes++
			}
			if e.strikes >= w.t.Attempts && (w.now.Sub(e.first) >= w.t.GiveUp || crowded) {
				w.die(e)
				continue
			}
			e.suspect = e.suspect || own && !alive
		}
		if o.after > 0 && w.now.Add(o.after).After(w.until) {
			w.until = w.now.Add(o.after)
		}
		if e.state = queued; own {
			e.state, e.at = sleeping, w.now.Add(max(o.after, half(e.tries)))
		}
	}
}

// settled is the cursor: the position before the first event that is not done.
func (w *twin) settled() Position {
	at := Position("")
	for _, e := range w.events {
		if e.state != done || e.stop {
			break
		}
		at = e.Position
	}
	return at
}
