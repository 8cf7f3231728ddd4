package flight

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// loadContext is the context of a load. It derives nothing until somebody calls Done, which many loads never do; only
// then a real cancellable context is made, so that contexts derived from it need no goroutine. It is apart from the
// flight because a load may keep its context for longer than its flight is kept.
type loadContext[K comparable, V any] struct {
	values context.Context // the leader's, without her cancellation
	real   atomic.Pointer[realContext]
	cause  atomic.Pointer[error] // why it ended; set once
	g      *Group[K, V]
	f      *flight[K, V] // only while f.ctx points back here, which is looked at under the group's lock
}

type realContext struct {
	context.Context
	cancel context.CancelCauseFunc
}

type contextKey struct{}

// carrier is what a load's context answers to contextKey: it leads to the loads above it, of whatever group.
type carrier interface{ above() carrier }

var errOver = errors.New("flight: the load has returned")

// Why a load's context ends. Never changed; end wants their addresses.
var causeAbandoned, causeTimeout, causeOver, causeClosed = ErrAbandoned, ErrTimeout, errOver, ErrClosed

// end cancels the context with a cause. Only the first cause counts.
func (c *loadContext[K, V]) end(cause *error) {
	if c.cause.Load() != nil || !c.cause.CompareAndSwap(nil, cause) {
		return
	}
	if r := c.real.Load(); r != nil {
		r.cancel(*cause)
	}
}

// above is the load in whose context this one was asked for.
func (c *loadContext[K, V]) above() carrier {
	up, _ := c.values.Value(contextKey{}).(carrier)
	return up
}

// flight is the flight that c still belongs to, or nil. Under the lock.
func (c *loadContext[K, V]) flight() *flight[K, V] {
	if c.f.ctx != c || c.f.state != running {
		return nil
	}
	return c.f
}

// Done makes the real context first: then either it sees the cause here, or end sees the context.
func (c *loadContext[K, V]) Done() <-chan struct{} {
	if r := c.real.Load(); r != nil {
		return r.Done()
	}
	ctx, cancel := context.WithCancelCause(c.values)
	r := &realContext{ctx, cancel}
	if !c.real.CompareAndSwap(nil, r) {
		cancel(nil)
		r = c.real.Load()
	}
	if cause := c.cause.Load(); cause != nil {
		r.cancel(*cause)
	}
	return r.Done()
}

func (c *loadContext[K, V]) Err() error {
	switch cause := c.cause.Load(); {
	case cause == nil:
		return nil
	case *cause == ErrTimeout:
		return context.DeadlineExceeded
	default:
		return context.Canceled
	}
}

func (c *loadContext[K, V]) Value(key any) any {
	if key == (contextKey{}) {
		return c
	}
	if c.cause.Load() != nil {
		c.Done() // context.Cause looks for it through Value
	}
	if r := c.real.Load(); r != nil {
		return r.Value(key)
	}
	return c.values.Value(key)
}

func (c *loadContext[K, V]) Deadline() (time.Time, bool) {
	g := c.g
	if g.opts.Timeout < 0 {
		return time.Time{}, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	f := c.flight()
	if f == nil || f.settled {
		return time.Time{}, false
	}
	if f.began == 0 { // led inline, where the clock is not read: soon after the start is near enough
		f.began = g.now()
	}
	return g.base.Add(time.Duration(f.began) + g.opts.Timeout), true
}

// String keeps fmt from walking through a group's innards when a context is printed.
func (c *loadContext[K, V]) String() string { return "flight.load" }
