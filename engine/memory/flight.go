package memory

import (
	"context"
	"sync"
	"time"

	"github.com/ushergo/usher/flight/shared"
)

// Flights is a store for package flight/shared in the memory of one process: for tests, and for several groups of one
// process that share their loads. Nothing of it is kept on disk: a lead does not outlive its process anyway.
type Flights struct {
	now func() time.Time

	mu     sync.Mutex
	spaces map[string]*flightSpace
}

type flightSpace struct {
	machine  shared.Space
	ops      int
	watchers map[*flightWatcher]struct{}
}

type flightWatcher struct{ told func(shared.Event) }

// NewFlights makes an empty store. now is its clock; nil: the machine's.
func NewFlights(now func() time.Time) *Flights {
	if now == nil {
		now = time.Now
	}
	return &Flights{now: now, spaces: make(map[string]*flightSpace)}
}

// in runs f on a space under the lock, at the store's time, and then tells those who watch.
func (s *Flights) in(ctx context.Context, space string, f func(m *shared.Space, now int64) []shared.Event) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	sp := s.space(space)
	now := s.now().UnixMicro()
	events := f(&sp.machine, now)
	if sp.ops++; sp.ops%64 == 0 {
		sp.machine.Sweep(now, 256)
	}
	var ws []*flightWatcher
	if len(events) > 0 {
		for w := range sp.watchers {
			ws = append(ws, w)
		}
	}
	s.mu.Unlock()
	for _, w := range ws {
		for _, e := range events {
			w.told(e)
		}
	}
	return nil
}

func (s *Flights) space(name string) *flightSpace {
	sp := s.spaces[name]
	if sp == nil {
		sp = &flightSpace{watchers: make(map[*flightWatcher]struct{})}
		s.spaces[name] = sp
	}
	return sp
}

// Begin implements shared.Store.
func (s *Flights) Begin(ctx context.Context, b shared.Begin) (st shared.State, err error) {
	err = s.in(ctx, b.Space, func(m *shared.Space, now int64) []shared.Event {
		st = m.Begin(b, now)
		return nil
	})
	return st, err
}

// Renew implements shared.Store.
func (s *Flights) Renew(ctx context.Context, x shared.Renew) (r shared.Renewed, err error) {
	err = s.in(ctx, x.Space, func(m *shared.Space, now int64) []shared.Event {
		r = m.Renew(x, now)
		return nil
	})
	return r, err
}

// Finish implements shared.Store.
func (s *Flights) Finish(ctx context.Context, f shared.Finish) (done shared.Finished, err error) {
	err = s.in(ctx, f.Space, func(m *shared.Space, now int64) []shared.Event {
		var wake bool
		if done, wake = m.Finish(f, now); wake {
			return []shared.Event{{What: shared.Ended, Key: f.Key}}
		}
		return nil
	})
	return done, err
}

// Forget implements shared.Store.
func (s *Flights) Forget(ctx context.Context, space, key string) error {
	return s.in(ctx, space, func(m *shared.Space, now int64) []shared.Event {
		m.Forget(key, now)
		return []shared.Event{{What: shared.Forgotten, Key: key}}
	})
}

// ForgetAll implements shared.Store.
func (s *Flights) ForgetAll(ctx context.Context, space string) error {
	return s.in(ctx, space, func(m *shared.Space, now int64) []shared.Event {
		m.ForgetAll(now)
		return []shared.Event{{What: shared.AllGone}}
	})
}

// Watch implements shared.Store.
func (s *Flights) Watch(ctx context.Context, space string, told func(shared.Event)) error {
	w := &flightWatcher{told}
	s.mu.Lock()
	s.space(space).watchers[w] = struct{}{}
	s.mu.Unlock()
	told(shared.Event{What: shared.Missed})
	<-ctx.Done()
	s.mu.Lock()
	delete(s.space(space).watchers, w)
	s.mu.Unlock()
	return nil
}
