package keylock

import (
	"context"
	"errors"
	"time"
)

// Hold is one grant of a key. The zero value is none. Copies are the same hold.
type Hold struct {
	l   *Locks
	e   *entry
	gen uint64
}

// Generation numbers the grants of one Locks: later ones of a key have greater numbers.
func (h Hold) Generation() uint64 { return h.gen }

// Release ends the hold; whoever waits longest is next. ErrReleased and ErrForced say that it had ended before, and
// nothing was changed: ErrForced once, to the late holder.
func (h Hold) Release() error {
	if h.e == nil {
		return ErrReleased
	}
	s := h.e.s
	s.mu.Lock()
	if h.e.gen == h.gen {
		cancel, since := h.e.own.cancel, h.e.own.since
		if cancel != nil {
			h.e.own.cancel = nil
		}
		key := h.e.key
		if next, _ := s.t.release(h.e, h.gen); next != nil {
			h.l.wake(next)
		}
		s.mu.Unlock()
		if cancel != nil {
			cancel(ErrReleased)
		}
		if h.l.opts.Observer != nil {
			h.l.opts.Observer.Released(key, time.Since(since))
		}
		return nil
	}
	_, v := s.t.release(h.e, h.gen)
	s.mu.Unlock()
	if v == late {
		return ErrForced
	}
	return ErrReleased
}

// Context is what to work under: it ends with the hold, with ErrForced as its cause after a forced release, and it is how
// a caller is recognised that asks for the same key again. parent must be the context that Lock was given, or one made
// from it.
func (h Hold) Context(parent context.Context) context.Context {
	if h.e == nil {
		return parent
	}
	c := &heldContext{l: h.l, gen: h.gen}
	c.Context, c.cancel = context.WithCancelCause(parent)
	c.outer, _ = parent.Value(lookup{h.l}).(*heldContext)
	s := h.e.s
	s.mu.Lock()
	cause := ErrReleased
	if h.e.gen == h.gen {
		if before := h.e.own.cancel; before != nil {
			h.e.own.cancel = func(err error) { before(err); c.cancel(err) }
		} else {
			h.e.own.cancel = c.cancel
		}
		cause = nil
	} else if _, ok := s.t.late[h.gen]; ok {
		cause = ErrForced
	}
	c.key = h.e.key
	s.mu.Unlock()
	if cause != nil {
		c.cancel(cause)
	}
	return c
}

// heldContext carries a hold, and those around it.
type heldContext struct {
	context.Context
	cancel context.CancelCauseFunc
	l      *Locks
	key    string
	gen    uint64
	outer  *heldContext // of the same locks
}

// lookup asks a context for the innermost hold of some locks.
type lookup struct{ l *Locks }

func (c *heldContext) Value(k any) any {
	if k, ok := k.(lookup); ok && k.l == c.l {
		return c
	}
	return c.Context.Value(k)
}

// reenters says whether ctx is that of a hold of key that still stands.
func (l *Locks) reenters(ctx context.Context, key string) bool {
	if ctx == context.Background() {
		return false
	}
	c, _ := ctx.Value(lookup{l}).(*heldContext)
	for ; c != nil; c = c.outer {
		if c.key == key && l.holds(key, c.gen) {
			return true
		}
	}
	return false
}

func (l *Locks) holds(key string, gen uint64) bool {
	s := l.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.t.holds(key, gen)
}

func joined(first, second error) error {
	if second == nil {
		return first
	}
	return errors.Join(first, second)
}
