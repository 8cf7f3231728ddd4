package loadtest

import (
	"sync"
	"time"
)

// tally gathers what a step measures, in memory that does not grow with the number of exchanges. Safe for concurrent use.
type tally struct {
	start  time.Time
	faults faults

	mu       sync.Mutex
	response [opCount]histogram // from the moment an act was due
	service  [opCount]histogram // from the moment it was sent
	line     [opCount]timeline  // of response
	updates  histogram          // from one place told to a waiter to the next
	wait     histogram          // from enter to knowing of the admission
	errors   map[string]int64   // "enter: timeout"
	samples  map[int32][]point
	counts   counts
	closed   map[ending]int64
	doubts   []doubt
	owners   map[string]int32 // ticket id → visitor
	rtt      time.Duration    // smallest round trip, and the clocks' difference it showed
	skew     time.Duration
	crowd    []crowdPoint
}

type counts struct {
	arrived  int64 // sent their first enter
	answered int64 // were given a ticket, or a clear no
	tickets  int64
	waiting  int64
	inside   int64
	admitted int64 // told so
	claimed  int64
	done     int64
}

// point is a place at a time since the step's start.
type point struct {
	t     time.Duration
	place int64
}

// crowdPoint is how many of ours waited and were inside.
type crowdPoint struct {
	t               time.Duration
	waiting, inside int64
}

// doubt is a visitor whose ticket ended without a cause that she knows of.
type doubt struct {
	v      *visitor
	reason string // the server's
	detail string
}

const (
	maxErrorKinds = 200
	maxPoints     = 2000 // of one sampled visitor
)

func newTally() *tally {
	return &tally{start: time.Now(), errors: map[string]int64{}, samples: map[int32][]point{}, closed: map[ending]int64{}, owners: map[string]int32{}}
}

// exchange counts one exchange and what it taught. sent and now are our clock's.
func (t *tally) exchange(v *visitor, o op, intended, sent, now time.Time, ok bool, n *news, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ok {
		t.response[o].add(now.Sub(intended))
		t.service[o].add(now.Sub(sent))
		if o == opEnter || o == opStatus {
			t.line[o].add(intended.Sub(t.start), now.Sub(intended))
		}
		if rtt := now.Sub(sent); (o == opEnter || o == opStatus) && !v.at.IsZero() && (t.rtt == 0 || rtt < t.rtt) {
			t.rtt, t.skew = rtt, v.at.Sub(sent.Add(rtt/2))
		}
	}
	if n.ticket {
		v.enteredAt = intended
	}
	t.learn(v, o, now, n, reason)
}

// heard counts what came by a stream.
func (t *tally) heard(v *visitor, now time.Time, n *news, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.learn(v, opStatus, now, n, reason)
}

func (t *tally) learn(v *visitor, o op, now time.Time, n *news, reason string) {
	if n.errorKind != "" {
		t.fail(o.String() + ": " + n.errorKind)
	}
	if n.ticket {
		t.counts.answered++
		t.counts.tickets++
		t.counts.waiting++
		if other, taken := t.owners[v.ticketID]; taken && other != v.index {
			t.faults.add(doubleAdmission, "visitors %d and %d hold one ticket, %s", other, v.index, v.ticketID)
		}
		t.owners[v.ticketID] = v.index
	}
	if n.placed && !n.admitted {
		if !v.placedAt.IsZero() {
			t.updates.add(now.Sub(v.placedAt))
		}
		v.placedAt = now
	}
	if n.admitted {
		t.wait.add(now.Sub(v.enteredAt))
		t.counts.admitted++
		t.counts.inside++
		t.counts.waiting--
	}
	if n.claimed {
		t.counts.claimed++
	}
	if n.placed && v.sample {
		t.place(v, now)
	}
	if n.ended != stillThere {
		t.end(v, n.ended)
	}
	switch n.fault {
	case noFault:
	case perhapsLost:
		t.doubts = append(t.doubts, doubt{v, reason, n.detail})
	default:
		t.faults.add(n.fault, "%s", n.detail)
	}
}

func (t *tally) place(v *visitor, now time.Time) {
	p := t.samples[v.index]
	at := now.Sub(t.start)
	if len(p) > 0 && p[len(p)-1].place == v.place && at-p[len(p)-1].t < time.Second {
		return
	}
	if len(p) >= maxPoints { // keep every other one
		half := p[:0]
		for i := 0; i < len(p); i += 2 {
			half = append(half, p[i])
		}
		p = half
	}
	t.samples[v.index] = append(p, point{at, v.place})
}

func (t *tally) end(v *visitor, e ending) {
	t.closed[e]++
	t.counts.done++
	switch {
	case v.ticketID == "":
		if e == refused {
			t.counts.answered++
		}
	case v.seenAt.IsZero():
		t.counts.waiting--
	default:
		t.counts.inside--
	}
}

func (t *tally) fail(kind string) {
	if _, known := t.errors[kind]; !known && len(t.errors) >= maxErrorKinds {
		kind = "other"
	}
	t.errors[kind]++
}

func (t *tally) arrived() {
	t.mu.Lock()
	t.counts.arrived++
	t.mu.Unlock()
}

// watch keeps the crowd's size over time.
func (t *tally) watch() counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.crowd = append(t.crowd, crowdPoint{time.Since(t.start), t.counts.waiting, t.counts.inside})
	if len(t.crowd) > 2*maxPoints {
		half := t.crowd[:0]
		for i := 0; i < len(t.crowd); i += 2 {
			half = append(half, t.crowd[i])
		}
		t.crowd = half
	}
	return t.counts
}
