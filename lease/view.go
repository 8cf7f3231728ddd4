package lease

import (
	"hash/fnv"
	"slices"
	"time"
)

// view is what one worker makes of the others' rows. It is pure: times are its worker's own monotonic clock, and no two
// workers' times are ever compared.
//
// A generation has died when its beat stood still for a whole lease, from the end of the read that first showed it to the
// start of a read that still does. Its owner counts from the start of the write of that beat, which was before, and stops
// a margin earlier.
type view struct {
	self   string
	me     Owner // zero: not joined; one of its own name may be a predecessor that crashed
	lease  time.Duration
	gap    time.Duration // between two reads, what is more than this counts against nobody
	forget time.Duration // how long dead rows are kept
	window time.Duration // over which the greatest total counts

	read   bool
	began  time.Duration // start of the last read
	last   time.Duration // end of the last read
	seen   map[string]sighting
	living []WorkerRow
	totals []total
}

type sighting struct {
	row   WorkerRow
	since time.Duration
}

type total struct {
	at time.Duration
	n  int
}

// plan is what to do after a read.
type plan struct {
	mark    []Mark  // stood still: they are to be marked dead
	forget  []Owner // long dead
	changed bool    // others died, left, are leaving or have begun: orphans may be found, shares have changed
}

func newView(self string, o Options) *view {
	return &view{
		self: self, lease: o.Lease, gap: 2 * o.Observe, forget: 30 * o.Lease, window: 3 * o.Beat,
		seen: map[string]sighting{},
	}
}

// step takes in one read of all worker rows, from its start to its end. One that was overtaken by a later one says nothing
// more: those who joined in between would not be among the living.
func (v *view) step(rows []WorkerRow, started, ended time.Duration) (p plan) {
	if v.read && started < v.began {
		return plan{}
	}
	if v.read {
		if lost := started - v.last - v.gap; lost > 0 { // this worker was stopped, or the store was away
			for name, s := range v.seen {
				s.since += lost
				v.seen[name] = s
			}
		}
	}
	v.read, v.began, v.last = true, started, ended
	before := v.living
	v.living = nil
	seen := make(map[string]sighting, len(rows))
	for _, row := range rows {
		s, ok := v.seen[row.Worker]
		if !ok || s.row.Owner != row.Owner || s.row.Beat != row.Beat || s.row.Dead != row.Dead {
			s = sighting{row, ended}
		}
		s.row = row
		seen[row.Worker] = s
		switch stood := started - s.since; {
		case row.Dead:
			if stood >= v.forget {
				p.forget = append(p.forget, row.Owner)
			}
			continue
		case stood >= v.lease && row.Owner != v.me:
			p.mark = append(p.mark, Mark{row.Owner, row.Beat})
		}
		v.living = append(v.living, row)
		p.changed = p.changed || row.Leaving
	}
	v.seen = seen
	same := func(a, b WorkerRow) bool { return a.Owner == b.Owner }
	p.changed = p.changed || !slices.EqualFunc(before, v.living, same)
	return p
}

// owners are the living generations of the last read.
func (v *view) owners() []Owner {
	os := make([]Owner, len(v.living))
	for i, w := range v.living {
		os[i] = w.Owner
	}
	return os
}

// lives reports whether o is one of them.
func (v *view) lives(o Owner) bool {
	return slices.ContainsFunc(v.living, func(w WorkerRow) bool { return w.Owner == o })
}

// count notes how many started resources there are, as far as known: those the living hold, and orphans. What moves is for a
// moment in nobody's number, so the greatest count of the last three beats is believed.
func (v *view) count(self, orphans int, now time.Duration) {
	n := self + orphans
	for _, w := range v.living {
		if w.Worker != v.self {
			n += w.Held
		}
	}
	v.totals = slices.DeleteFunc(v.totals, func(t total) bool { return t.at < now-v.window || t.n <= n })
	v.totals = append(v.totals, total{now, n})
}

// share is how many resources each should hold.
func (v *view) share() int {
	most, takers := 0, 0
	for _, t := range v.totals {
		most = max(most, t.n)
	}
	for _, w := range v.living {
		if !w.Leaving {
			takers++
		}
	}
	return (most + max(takers, 1) - 1) / max(takers, 1)
}

// crowded reports whether somebody else holds more than a share, and so is giving away.
func (v *view) crowded() bool {
	share := v.share()
	return slices.ContainsFunc(v.living, func(w WorkerRow) bool { return w.Worker != v.self && (w.Held > share || w.Leaving) })
}

// mine reports whether an orphan is for this worker to take first: each of the living has its own part, so that they seldom
// ask for the same row. It is the highest of their hashes with the id (rendezvous).
func (v *view) mine(id string) bool {
	var best uint64
	var who string
	for _, w := range v.living {
		if w.Leaving {
			continue
		}
		h := fnv.New64a()
		h.Write([]byte(id))
		h.Write([]byte{0})
		h.Write([]byte(w.Worker))
		if s := mix(h.Sum64()); who == "" || s > best {
			best, who = s, w.Worker
		}
	}
	return who == v.self
}

// mix spreads FNV's last bytes over all bits.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}

// trust is until when a worker believes its lease: start of its last good beat + lease − margin.
type trust struct {
	length time.Duration
	until  time.Duration
}

// beaten is called with the start of a beat that was answered yes.
func (t *trust) beaten(started time.Duration) { t.until = max(t.until, started+t.length) }

// holds at a time of the same clock.
func (t *trust) holds(now time.Duration) bool { return now < t.until }
