package flight

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// A flight is the context of its own load: that saves the allocations of a derived one, which most loads never look
// at. The first call of Done makes a real cancellable context, so that contexts derived from it need no goroutine.
type life struct {
	values context.Context // the leader's, without her cancellation
	real   atomic.Pointer[realContext]
	cause  atomic.Pointer[error] // why it ended; set once
}

type realContext struct {
	context.Context
	cancel context.CancelCauseFunc
}

type contextKey struct{}

// carrier is what a load's context answers to contextKey: it leads to the loads above it, of whatever group.
type carrier interface {
	above() carrier
	over() bool
}

var errOver = errors.New("flight: the load has returned")

// end cancels the context with a cause. Only the first cause counts.
func (l *life) end(cause *error) {
	if !l.cause.CompareAndSwap(nil, cause) {
		return
	}
	if r := l.real.Load(); r != nil {
		r.cancel(*cause)
	}
}

func (l *life) over() bool {
	c := l.cause.Load()
	return c != nil && *c == errOver
}

// above is the load in whose context this one was asked for.
func (l *life) above() carrier {
	c, _ := l.values.Value(contextKey{}).(carrier)
	return c
}

// Done makes the real context first: then either it sees the cause here, or end sees the context.
func (l *life) Done() <-chan struct{} {
	if r := l.real.Load(); r != nil {
		return r.Done()
	}
	ctx, cancel := context.WithCancelCause(l.values)
	r := &realContext{ctx, cancel}
	if !l.real.CompareAndSwap(nil, r) {
		cancel(nil)
		r = l.real.Load()
	}
	if c := l.cause.Load(); c != nil {
		r.cancel(*c)
	}
	return r.Done()
}

func (l *life) Err() error {
	switch c := l.cause.Load(); {
	case c == nil:
		return nil
	case *c == ErrTimeout:
		return context.DeadlineExceeded
	default:
		return context.Canceled
	}
}

// Value and Deadline complete context.Context.
func (f *flight[K, V]) Value(key any) any {
	if key == (contextKey{}) {
		return f
	}
	if r := f.real.Load(); r != nil {
		return r.Value(key)
	}
	return f.values.Value(key)
}

func (f *flight[K, V]) Deadline() (time.Time, bool) {
	d := f.g.opts.Timeout
	if d < 0 {
		return time.Time{}, false
	}
	f.g.mu.Lock()
	defer f.g.mu.Unlock()
	if f.delivered || f.settled {
		return time.Time{}, false
	}
	if f.began == 0 { // led inline, where the clock is not read: soon after the start is near enough
		f.began = f.g.now()
	}
	return f.g.base.Add(time.Duration(f.began) + d), true
}

// String keeps fmt from walking through a flight's innards when a context is printed.
func (f *flight[K, V]) String() string { return "flight.load" }
