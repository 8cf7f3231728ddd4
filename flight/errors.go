package flight

import (
	"errors"
	"fmt"
	"time"
)

// ErrBusy is what every refusal for want of room answers to, by errors.Is. The error itself is a *BusyError,
// whose Reason says which bound was reached. Nothing was started and nothing was queued for this caller.
var ErrBusy = errors.New("flight: busy")

// ErrClosed is returned by calls made after Close, and to callers whose load had not begun when Close was called.
var ErrClosed = errors.New("flight: group is closed")

// ErrTimeout is the answer to everybody who still waits when a load outlives Options.Timeout. The load's context is
// cancelled; until the load really returns, its key and its share of the budget stay taken.
var ErrTimeout = errors.New("flight: the load took longer than its timeout")

// ErrAbandoned is the cause (context.Cause) with which a load's context ends when its last waiter has left.
var ErrAbandoned = errors.New("flight: every caller has left")

// ErrRecursive is returned to a load that asks, directly or through other loads of the group, for the key it is
// itself loading: waiting would never end. It is seen through the context, so pass the load's context on. Two loads
// that wait for each other are found too; the one that would close the ring gets the error.
var ErrRecursive = errors.New("flight: the load waits for its own key")

// ErrArgs is returned to a caller who asks for a key with other arguments than those of the load in flight: its
// answer would not be hers. Make the arguments part of the key, or ask again later.
var ErrArgs = errors.New("flight: the key is being loaded with other arguments (make them part of the key)")

// A Reason says which bound a refused call met.
type Reason uint8

const (
	ReasonWaiters    Reason = iota + 1 // Options.MaxWaiters: too many callers wait, over all keys
	ReasonKeyWaiters                   // Options.MaxWaitersPerKey: too many callers wait for this key
	ReasonFlights                      // Options.MaxFlights: too many loads are running or queued
	ReasonPending                      // Budget.MaxPending or Share.MaxPending: too many loads wait for the budget
	ReasonWait                         // the load waited longer than Options.Timeout for its turn
)

func (r Reason) String() string {
	switch r {
	case ReasonWaiters:
		return "too many callers wait (MaxWaiters)"
	case ReasonKeyWaiters:
		return "too many callers wait for this key (MaxWaitersPerKey)"
	case ReasonFlights:
		return "too many loads are in flight (MaxFlights)"
	case ReasonPending:
		return "too many loads wait for the origin's budget (MaxPending)"
	case ReasonWait:
		return "the load's turn did not come in time"
	}
	return "unknown"
}

// BusyError is a refusal for want of room; errors.Is(err, ErrBusy) holds.
type BusyError struct{ Reason Reason }

func (e *BusyError) Error() string        { return "flight: busy: " + e.Reason.String() }
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// Refusing must stay cheap when a crowd is refused, so these are made once. They are never changed.
var (
	busyWaiters    = &BusyError{ReasonWaiters}
	busyKeyWaiters = &BusyError{ReasonKeyWaiters}
	busyFlights    = &BusyError{ReasonFlights}
	busyPending    = &BusyError{ReasonPending}
	busyWait       = &BusyError{ReasonWait}
)

// BackoffError is returned, without a load, while a key that failed is left alone. It unwraps to the failure.
type BackoffError struct {
	Err      error         // what the last load returned
	Class    Class         // as classified
	Failures int           // loads that failed in a row
	Wait     time.Duration // until the next load may start, as of the call
}

func (e *BackoffError) Error() string {
	return fmt.Sprintf("flight: backing off for %v after %d failures (%v): %v", e.Wait, e.Failures, e.Class, e.Err)
}
func (e *BackoffError) Unwrap() error { return e.Err }

// PanicError is what every caller of a load that panicked gets. The process lives, the key is free again.
type PanicError struct {
	Value any    // what was given to panic
	Stack []byte // of the load, at the panic
}

func (e *PanicError) Error() string { return fmt.Sprintf("flight: the load panicked: %v", e.Value) }

// Unwrap gives the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// GoexitError is what every caller of a load gets that called runtime.Goexit (as testing's FailNow does).
type GoexitError struct{ Stack []byte }

func (e *GoexitError) Error() string { return "flight: the load called runtime.Goexit" }

// NotShareableError is a load's verdict that its value is for one caller alone; see NotShareable.
type NotShareableError struct{ For time.Duration }

func (e *NotShareableError) Error() string { return "flight: the value is for its caller alone" }

// NotShareable is returned by a load next to a good value: the value goes to the caller whose load it was (with a nil
// error), the others are let go and load for themselves within the budget, and for d (0: Options.NotShareableFor)
// callers of that key do not wait for each other.
//
//	return page, flight.NotShareable(0)
func NotShareable(d time.Duration) error { return &NotShareableError{For: d} }

// CloseError is returned by Close when its context ended while loads were still running. They have been cancelled.
type CloseError struct {
	Running int   // loads that had not returned
	Err     error // the context's error
}

func (e *CloseError) Error() string {
	return fmt.Sprintf("flight: closed with %d loads still running: %v", e.Running, e.Err)
}
func (e *CloseError) Unwrap() error { return e.Err }
