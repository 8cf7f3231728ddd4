package flight

import (
	"errors"
	"fmt"
	"time"
)

// Options of a Group. The zero value is sound; every field says its default.
type Options[K comparable, V any] struct {
	// Timeout is how long a load may take, counted from its start, and how long it may wait for its turn before that.
	// Then all who wait get ErrTimeout (or ErrBusy) and the load's context is cancelled. It is kept to within a
	// sixteenth, or 2 ms, and never early. Default 30 s; negative: none. Danger of none: a stuck load holds its
	// key for ever.
	Timeout time.Duration

	MaxWaiters       int // callers waiting, over all keys; default 100,000
	MaxWaitersPerKey int // callers waiting for one key; default 20,000
	MaxFlights       int // loads running or queued, those that everybody left included; default 65,536

	Budget Budget // what the origin can bear; default: no limit beyond MaxFlights

	OnLastLeave LeavePolicy // what becomes of a load that nobody waits for; default CancelLoad

	Backoff  Backoff           // how long a failing key is left alone; on by default
	Classify func(error) Class // the class of a failure; default Classify. It must not panic nor call the group

	// NotShareableFor is how long a key is remembered as not shareable. Default 10 s.
	NotShareableFor time.Duration

	// Remember bounds the keys whose failure or unshareability is remembered; the oldest is dropped. Default 10,000.
	Remember int

	// Copy is called once for every caller of a value that more than one may hold, so that none sees what another does
	// to it. Default: all share one value. It runs in the callers' goroutines, side by side, and must only read.
	Copy func(V) V

	// Fill is called with each good shareable value before its waiters wake, for instance to put it into a cache, and
	// only if no Forget came since its load began: when Forget returns, no older load will be filled. So to change a
	// thing: write it, Forget its key, then remove it from the cache. Fill must be quick and must not call the group.
	Fill func(K, V)

	Observer Observer // told of starts, ends and refusals; default none
}

// LeavePolicy says what becomes of a running load when its last waiter leaves. A load that has not begun is dropped.
type LeavePolicy uint8

const (
	// CancelLoad cancels the load's context. Who comes before the load has really ended waits for it to end and then
	// gets a load of the next generation: a load that ignores its context never runs beside another of its key.
	CancelLoad LeavePolicy = iota
	// FinishLoad lets the load run to its end; who comes meanwhile joins it. For loads whose Fill is worth having. A load
	// that runs for one caller alone (not shareable, With.Alone) is cancelled all the same.
	FinishLoad
)

// Budget is what all loads together may ask of the origin. It is taken before a load starts, one share a load however
// many callers wait, and given back when the load has really returned, even if everybody left long ago. Loads that do
// not fit wait, first come first served within a class, classes in turn; they hold no goroutine of their own. A load that
// asks for another key of its group keeps its own share meanwhile: with loads that all do so, a small budget ends in
// ErrBusy after Options.Timeout.
type Budget struct {
	Concurrency int     // loads at once; 0: no limit
	PerSecond   float64 // starts per second; 0: no limit. No second holds more than PerSecond + Burst starts
	Burst       int     // starts at once after a pause; default a tenth of PerSecond, at least 1
	MaxPending  int     // loads waiting for their turn; beyond it ErrBusy at once. Default 1,024

	// Classes names those who are sure of a share, for instance tenants. What is reserved and not used lies idle.
	Classes map[string]Share
	// Other bounds each class that Classes does not name; its reservations are ignored.
	Other Share
}

// Share is one class's part of a Budget.
type Share struct {
	Reserve          int     // of Budget.Concurrency, for this class alone
	ReservePerSecond float64 // of Budget.PerSecond, for this class alone
	ReservePending   int     // of Budget.MaxPending, for this class alone
	Max              int     // loads at once; 0: Budget.Concurrency
	MaxPending       int     // loads waiting; 0: Budget.MaxPending
}

// With is what a call may say besides its key.
type With struct {
	Class string // of the Budget; the class of the caller who starts the load counts
	// Args is compared with that of the load in flight: a caller with others gets ErrArgs, not an answer to another
	// question.
	Args string
	// Fresh asks for a value that no Forget has overtaken: a superseded one is loaded again, once; if that is
	// superseded too, it is given, marked.
	Fresh bool
	// Alone asks for a load of the caller's own, within the budget, that neither joins nor is joined.
	Alone bool
}

// Result is a value and how it came about.
type Result[V any] struct {
	Value      V
	Shared     bool   // more than one caller waited for this load
	Led        bool   // this caller's load function ran
	Superseded bool   // Forget was called while it was being loaded: good for this caller, not to be kept
	Generation uint64 // of the load: grows with every load of the group
}

func (o Options[K, V]) withDefaults() Options[K, V] {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.NotShareableFor <= 0 {
		o.NotShareableFor = 10 * time.Second
	}
	def(&o.MaxWaiters, 100_000)
	def(&o.MaxWaitersPerKey, 20_000)
	def(&o.MaxFlights, 65_536)
	def(&o.Remember, 10_000)
	def(&o.Budget.MaxPending, 1_024)
	if o.Classify == nil {
		o.Classify = Classify
	}
	o.Backoff = o.Backoff.withDefaults()
	return o
}

// Validate reports reservations that do not fit, naming the field. New panics on what it reports.
func (o Options[K, V]) Validate() error {
	b, conc, pending := o.withDefaults().Budget, 0, 0
	rate := 0.0
	for name, s := range b.Classes {
		if s.Reserve < 0 || s.ReservePerSecond < 0 || s.ReservePending < 0 {
			return fmt.Errorf("flight: Budget.Classes[%q]: a reservation is negative", name)
		}
		conc, rate, pending = conc+s.Reserve, rate+s.ReservePerSecond, pending+s.ReservePending
	}
	switch {
	case b.Concurrency < 0 || b.PerSecond < 0:
		return errors.New("flight: Budget.Concurrency and Budget.PerSecond must not be negative (0 is no limit)")
	case b.Concurrency > 0 && conc > b.Concurrency:
		return fmt.Errorf("flight: Budget.Classes reserve %d of Budget.Concurrency %d; raise it or reserve less", conc, b.Concurrency)
	case b.PerSecond > 0 && rate > b.PerSecond:
		return fmt.Errorf("flight: Budget.Classes reserve %g of Budget.PerSecond %g; raise it or reserve less", rate, b.PerSecond)
	case pending > b.MaxPending:
		return fmt.Errorf("flight: Budget.Classes reserve %d of Budget.MaxPending %d; raise it or reserve less", pending, b.MaxPending)
	}
	return nil
}
