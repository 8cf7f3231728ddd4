package flight

import (
	"context"
	"errors"
	"time"
)

// A Class is a kind of failure: it decides how long a key is left alone.
type Class uint8

const (
	// Unclassed failures are not remembered: the next call loads. Context errors, panics and Goexit are of this class
	// whatever a classifier says.
	Unclassed Class = iota
	Transient       // a fault that may be gone on the next try
	Throttled       // the origin asked for less
	Denied          // the origin knows and refuses
	NotFound        // there is no such thing, now
	Permanent       // asking again cannot help
)

func (c Class) String() string {
	return [...]string{"unclassed", "transient", "throttled", "denied", "not found", "permanent"}[min(c, Permanent)]
}

// Error is a failure that carries its class, and optionally how long the origin asked to be left alone. Load functions
// return it (or wrap it) when the default classifier should know.
type Error struct {
	Class Class
	After time.Duration // 0: by the schedule of the class
	Err   error
}

func (e *Error) Error() string { return e.Class.String() + ": " + e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Classify is the default classifier: the class of an *Error in the chain, else Transient.
func Classify(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return Transient
}

// Steps is a schedule that doubles: First after one failure, twice that after two, never more than Max.
type Steps struct{ First, Max time.Duration }

// Backoff says for how long a key is left alone after failures in a row. Zero Steps mean the default of the class.
// The schedule has no jitter: within a process one load a key runs anyway, and the budget spreads many keys.
type Backoff struct {
	Off       bool  // remember no failure; every call after a failure loads. Danger: a failing origin is asked without pause
	Transient Steps // default 100 ms to 10 s
	Throttled Steps // default 1 s to 60 s; an Error.After that is longer counts, up to 5 min
	Denied    Steps // default 1 s to 30 s
	NotFound  Steps // default 250 ms to 5 s. Danger: a thing that is created meanwhile stays unseen, unless Forget is called
	Permanent Steps // default 10 s to 5 min
}

const longestHint = 5 * time.Minute

func (b Backoff) withDefaults() Backoff {
	set := func(s *Steps, first, most time.Duration) {
		if s.First <= 0 {
			s.First = first
		}
		if s.Max <= 0 {
			s.Max = most
		}
		s.Max = max(s.Max, s.First)
	}
	set(&b.Transient, 100*time.Millisecond, 10*time.Second)
	set(&b.Throttled, time.Second, time.Minute)
	set(&b.Denied, time.Second, 30*time.Second)
	set(&b.NotFound, 250*time.Millisecond, 5*time.Second)
	set(&b.Permanent, 10*time.Second, 5*time.Minute)
	return b
}

// Delay is how long a key is left alone after that many failures in a row, the last of class c with the error err
// (which may be nil). It is 0 for Unclassed and when Off.
func (b Backoff) Delay(c Class, failures int, err error) time.Duration {
	if b.Off || failures < 1 {
		return 0
	}
	b = b.withDefaults()
	var s Steps
	switch c {
	case Transient:
		s = b.Transient
	case Throttled:
		s = b.Throttled
	case Denied:
		s = b.Denied
	case NotFound:
		s = b.NotFound
	case Permanent:
		s = b.Permanent
	default:
		return 0
	}
	d := s.Max
	if n := failures - 1; n < 32 && s.First<<n>>n == s.First && s.First<<n < s.Max {
		d = s.First << n
	}
	var e *Error
	if errors.As(err, &e) && e.After > d {
		d = min(e.After, longestHint)
	}
	return d
}

// ClassOf is the class that counts: the classifier's, unless the error may never be remembered.
func classOf(classify func(error) Class, err error) Class {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, ErrBusy) || errors.Is(err, ErrClosed) || errors.Is(err, ErrRecursive) ||
		errors.Is(err, ErrTimeout) || errors.Is(err, ErrAbandoned) {
		return Unclassed
	}
	var p *PanicError
	var x *GoexitError
	if errors.As(err, &p) || errors.As(err, &x) {
		return Unclassed
	}
	return classify(err)
}
