package relay

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sink is where events go. All methods are safe for concurrent use; Send is called by up to Options.InFlight
// goroutines for each partition at once, never with an event whose key is in a call that has not returned.
type Sink interface {
	// Send delivers a batch and tells what became of each event: the i-th error is for the i-th event, nil if it is
	// taken, as durably as the sink promises. nil instead of a slice: all are taken. A slice of another length is taken
	// as if nothing were known of any.
	//
	// An error's Class (see ClassOf) says what happens next; one without a Class is Transient. What is not known to be
	// taken is an error, so that it is sent again. Send ends soon after ctx, which has a deadline of
	// Options.SendTimeout (30 s).
	Send(ctx context.Context, b Batch) []error

	// Limits are what the sink takes in one Send.
	Limits() Limits

	// Close frees what the sink holds, after the last Send.
	Close() error
}

// Batch is what a sink is given at once: no two events have one key.
type Batch struct {
	Relay     string // the relay's id
	Partition string // of the source; all events are of it
	// Fence grows whenever the partition gets another owner. A sink that can, refuses a batch with a smaller one than it
	// has seen for that relay and partition, with a Fenced error. 0 for what comes back from the dead letters.
	Fence  uint64
	Events []Event // in the order of the source; the sink may keep neither the slice nor the payloads
}

// Limits bound a batch. Zero: no bound of the sink's own.
type Limits struct {
	Events     int // in one batch
	Bytes      int // of payloads and keys in one batch
	EventBytes int // of one payload and its key; a longer event is Rejected unsent
}

// All is the answer of a Send in which the same happened to all events.
func All(n int, err error) []error {
	if err == nil {
		return nil
	}
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// Class says whose fault an error is, and by that what is done about it.
type Class uint8

const (
	// Transient: it may work the next time. Tried again with full jitter. It counts against the event only while the sink
	// takes others: so a sink that is down fills no dead letters, and an event that is poison ends there.
	Transient Class = iota
	// Throttled: the sink asks for less. The whole partition waits, as long as Error.After says if it says so, and then
	// tries with one batch at a time. It never counts against an event.
	Throttled
	// Denied: credentials, rights or address are wrong, which is nobody's event's fault. As Throttled, with an alarm.
	Denied
	// Rejected: the sink will never take this event. It goes to the dead letters at once.
	Rejected
	// Fenced: somebody else owns the partition by now. The relay gives it up and writes nothing more.
	Fenced
)

var classNames = [...]string{"transient", "throttled", "denied", "rejected", "fenced"}

func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// Error is an error with a Class. Its text goes into logs and dead letters: no secrets.
type Error struct {
	Class Class
	After time.Duration // Throttled: how long the sink asked to wait; 0: it did not say
	Err   error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Classed gives err a class. A nil err stays nil.
func Classed(c Class, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Class: c, Err: err}
}

// Errorf makes an error with a class.
func Errorf(c Class, format string, args ...any) error {
	return &Error{Class: c, Err: fmt.Errorf(format, args...)}
}

// ClassOf is the class of an error: Transient unless something in it says otherwise.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return Transient
}

// afterOf is how long the error asks to wait.
func afterOf(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.After
	}
	return 0
}

// Handler stands between source and sink: it may change Type and Payload of an event, or drop it by returning false,
// which counts as delivered. ID, Key and Position stay as they were. An error has the same meaning as one of the sink's.
// Handlers run once per attempt, on several goroutines, and must answer the same for the same event.
type Handler func(ctx context.Context, e *Event) (keep bool, err error)

// Handled puts handlers before a sink, the first one first.
func Handled(s Sink, handlers ...Handler) Sink {
	if len(handlers) == 0 {
		return s
	}
	return &handled{s, handlers}
}

type handled struct {
	Sink
	handlers []Handler
}

func (h *handled) Send(ctx context.Context, b Batch) []error {
	errs := make([]error, len(b.Events))
	kept, at := make([]Event, 0, len(b.Events)), make([]int, 0, len(b.Events))
	for i := range b.Events {
		e := b.Events[i]
		keep, err := h.handle(ctx, &e)
		if err != nil {
			errs[i] = err
		} else if keep {
			kept, at = append(kept, e), append(at, i)
		}
	}
	if len(kept) == 0 {
		return errs
	}
	b.Events = kept
	for k, err := range normal(h.Sink.Send(ctx, b), len(kept)) {
		errs[at[k]] = err
	}
	return errs
}

func (h *handled) handle(ctx context.Context, e *Event) (bool, error) {
	id, key, pos := e.ID, e.Key, e.Position
	for _, f := range h.handlers {
		keep, err := f(ctx, e)
		if err != nil || !keep {
			return false, err
		}
	}
	e.ID, e.Key, e.Position = id, key, pos
	return true, nil
}

// normal makes one error per event of what a sink returned.
func normal(errs []error, n int) []error {
	switch {
	case errs == nil:
		return make([]error, n)
	case len(errs) != n:
		return All(n, fmt.Errorf("relay: the sink answered for %d of %d events", len(errs), n))
	}
	return errs
}

// Only keeps events of the given types, and gaps.
func Only(types ...string) Handler {
	wanted := map[string]bool{TypeGap: true}
	for _, t := range types {
		wanted[t] = true
	}
	return func(_ context.Context, e *Event) (bool, error) { return wanted[e.Type], nil }
}

// TypeGap is the type of the event that says that others were lost.
const TypeGap = "gap"
