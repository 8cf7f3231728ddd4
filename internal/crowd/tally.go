package crowd

import (
	"sync"
	"sync/atomic"
	"time"
)

// Kind is what happened to a visitor.
type Kind string

// The kinds of event.
const (
	Arrived   Kind = "arrived"   // has a ticket
	Admitted  Kind = "admitted"  // was told so
	Bought    Kind = "bought"    // Text is the seat
	LookedOn  Kind = "looked"    // was inside, bought nothing, left in order
	SoldOut   Kind = "sold out"  // found no free seat
	Left      Kind = "left"      // gave up waiting and said so
	Vanished  Kind = "vanished"  // gave up waiting without a word
	Missed    Kind = "no-show"   // admitted and never came
	Overslept Kind = "overslept" // was silent too long and lost its place, as it should
	Failed    Kind = "failed"    // Text says why
	Violated  Kind = "violation" // Text says what
)

// Event is one thing that happened.
type Event struct {
	At       time.Time
	Temper   Temper
	Kind     Kind
	Seq      int64  // 0 before there is a ticket
	TicketID string // public; empty before there is a ticket
	Text     string // for people; never a secret
}

// Violations counts what a room must never do. Every one must be 0.
type Violations struct {
	SeqChanged  int64 // a living ticket had another seq or id than before
	PlaceRose   int64 // a client saw its place rise
	WentBack    int64 // an admitted ticket was waiting again
	LostPlace   int64 // a ticket heard from within its grace was gone
	ServedEarly int64 // the site was served to a ticket that was still waiting
}

// Sum is all of them together.
func (v Violations) Sum() int64 {
	return v.SeqChanged + v.PlaceRose + v.WentBack + v.LostPlace + v.ServedEarly
}

// Count is how visitors fared; the first three are now, the others since the start.
type Count struct {
	Here, Waiting, Inside               int64
	Arrived, Admitted, Bought, LookedOn int64
	SoldOut, Left, Vanished, Missed     int64
	Overslept, Failed                   int64
}

func (c *Count) add(k Kind) {
	switch k {
	case Arrived:
		c.Arrived++
	case Admitted:
		c.Admitted++
	case Bought:
		c.Bought++
	case LookedOn:
		c.LookedOn++
	case SoldOut:
		c.SoldOut++
	case Left:
		c.Left++
	case Vanished:
		c.Vanished++
	case Missed:
		c.Missed++
	case Overslept:
		c.Overslept++
	case Failed:
		c.Failed++
	}
}

// Stats is the state of a crowd.
type Stats struct {
	Count                    // everybody
	ByTemper  [tempers]Count // the same by temper; index with the Temper
	Requests  int64          // HTTP requests made
	Errors    int64          // of these, failed or answered 5xx
	Reloads   int64          // pages reloaded while waiting
	Violation Violations
}

// Temper gives one temper's counts.
func (s Stats) Temper(t Temper) Count { return s.ByTemper[t] }

type tally struct {
	began                     atomic.Bool
	requests, errors, reloads atomic.Int64
	mu                        sync.Mutex
	s                         Stats
}

func (t *tally) begin() bool { return t.began.CompareAndSwap(false, true) }

func (t *tally) stats() Stats {
	t.mu.Lock()
	s := t.s
	t.mu.Unlock()
	s.Requests, s.Errors, s.Reloads = t.requests.Load(), t.errors.Load(), t.reloads.Load()
	return s
}

// change applies f to the counts of all and of the temper alike.
func (t *tally) change(temper Temper, f func(*Count)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.s.Count)
	f(&t.s.ByTemper[temper])
}

func (t *tally) violate(f func(*Violations)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.s.Violation)
}
