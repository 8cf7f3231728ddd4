package flight

import "time"

// Observer is told what happens, outside the group's lock, by the goroutine to which it happens: it must be quick, must
// not panic and may be called side by side. Keys are not told: they are too many for labels.
type Observer interface {
	LoadStarted(class string) // an origin call
	LoadEnded(LoadEnd)
	// Refused tells of a call that got *BusyError, *BackoffError, ErrArgs or ErrClosed at once, and of a load that was
	// refused with all who waited for it because its turn did not come.
	Refused(class string, err error)
}

// LoadEnd is the real end of a load.
type LoadEnd struct {
	Share      string        // the budget's class (With.Class); empty without a budget
	Took       time.Duration // from its start
	Callers    int           // who waited at the end
	Orphan     bool          // it ran on after its last waiter had left or its time was over
	Superseded bool
	Err        error
	Class      Class // of Err
	Failures   int   // failures in a row before this one, if it failed too
}

// Stats is a snapshot. Counters only grow.
type Stats struct {
	// Gauges.
	Waiters   int           // callers waiting, leaders included
	Running   int           // loads that have not returned
	Queued    int           // loads behind the real end of an earlier one of their key
	Pending   int           // loads waiting for the budget
	Orphans   int           // running loads that nobody waits for any more
	Oldest    time.Duration // age of the oldest running load; without an Observer to a sixteenth of Options.Timeout
	Remembers int           // keys whose failure or unshareability is remembered
	Budget    int           // share of Budget.Concurrency in use
	Classes   []ClassStats  // classes that are named or busy

	// Counters.
	Calls            uint64 // of Do and DoWith; one that had to start over counts again
	Shared           uint64 // calls that joined another's load: the shared ratio is Shared / Calls
	Loads            uint64 // origin calls
	Left             uint64 // callers who left before the result
	BackedOff        uint64 // calls answered with a remembered failure
	RepeatedFailures uint64 // loads that failed after a failure
	Refused          map[Reason]uint64
}

// ClassStats is one class's use of the budget.
type ClassStats struct {
	Class            string
	Running, Pending int
}

type counts struct {
	calls, shared, loads, left, backedOff, repeated uint64
	refused                                         [ReasonWait + 1]uint64
}

// Stats takes a snapshot.
func (g *Group[K, V]) Stats() Stats {
	g.lock()
	defer g.mu.Unlock()
	m, c := g.m, &g.counts
	s := Stats{
		Waiters: m.waiters, Running: m.running.n + m.late.n, Queued: m.queued.n, Pending: m.budget.pending,
		Orphans: m.orphans, Remembers: len(m.memos.of), Budget: m.budget.running,
		Calls: c.calls, Shared: c.shared, Loads: c.loads, Left: c.left, BackedOff: c.backedOff,
		RepeatedFailures: c.repeated, Refused: map[Reason]uint64{},
	}
	for r, n := range c.refused {
		if n > 0 {
			s.Refused[Reason(r)] = n
		}
	}
	now := g.now()
	for _, l := range []*list[K, V]{&m.late, &m.running} {
		for f := l.head; f != nil; f = f.next {
			age := time.Duration(m.tick-f.stamp) * m.beat() // where no clock was read
			if f.began != 0 {
				age = time.Duration(now - f.began)
			}
			s.Oldest = max(s.Oldest, age)
			if l == &m.running && f.began != 0 {
				break // the rest began later
			}
		}
	}
	for _, c := range m.budget.classes {
		s.Classes = append(s.Classes, ClassStats{Class: c.name, Running: c.running, Pending: c.queue.n})
	}
	return s
}

func shareOf[K comparable, V any](f *flight[K, V]) string {
	if f.class == nil {
		return ""
	}
	return f.class.name
}

func (g *Group[K, V]) observeStart(f *flight[K, V]) {
	if g.opts.Observer != nil {
		g.opts.Observer.LoadStarted(shareOf(f))
	}
}
