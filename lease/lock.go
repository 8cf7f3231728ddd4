package lease

import (
	"context"
	"fmt"
	"slices"
)

// Lock is one resource that Acquire got.
type Lock struct{ h *hold }

type waiter struct{ got chan *hold }

// Acquire waits until the resource is this worker's, and makes it if it does not exist. On one worker who came first is
// first; a resource that another worker gives back is had within Options.Observe, or at once where the store tells
// (Watcher), that of a dead one after its lease. It returns when ctx ends, with its cause, or when the worker is closed, with
// ErrLeaving. A space is either for Acquire or for Serve.
func (w *Worker) Acquire(ctx context.Context, id string) (*Lock, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	me := &waiter{got: make(chan *hold, 1)}
	w.mu.Lock()
	if w.closing {
		w.mu.Unlock()
		return nil, ErrLeaving
	}
	w.waits[id] = append(w.waits[id], me)
	w.mu.Unlock()
	kick(w.ask)
	select {
	case h := <-me.got:
		return &Lock{h}, nil
	case <-ctx.Done():
		w.giveUp(id, me)
		return nil, context.Cause(ctx)
	case <-w.leaving: // not later: it may hold another lock, which Close waits for
		w.giveUp(id, me)
		return nil, ErrLeaving
	}
}

// giveUp passes on what was granted at that moment.
func (w *Worker) giveUp(id string, me *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits[id] = slices.DeleteFunc(w.waits[id], func(o *waiter) bool { return o == me })
	if len(w.waits[id]) == 0 {
		delete(w.waits, id)
	}
	select {
	case h := <-me.got:
		w.wg.Go(func() { w.free(h) })
	default:
	}
}

func (w *Worker) free(h *hold) {
	w.giveBack(h, false)
	w.drop(h)
	kick(w.ask)
}

// Context ends when the lock is lost, with ErrLost or another cause, or when it was released.
func (l *Lock) Context() context.Context { return l.h.ctx }

// Resource is what was acquired.
func (l *Lock) Resource() Resource {
	l.h.w.mu.Lock()
	defer l.h.w.mu.Unlock()
	return l.h.resource()
}

// Fence is greater than every one of this resource before.
func (l *Lock) Fence() uint64 { return l.Resource().Fence }

// Release writes the cursor and gives the resource back. ErrLost: it was not this worker's any more. After another error it
// is given back in the background. Only the first call does something.
func (l *Lock) Release(ctx context.Context) error {
	w, h := l.h.w, l.h
	w.mu.Lock()
	first := w.holds[h.row.ID] == h && h.running
	w.mu.Unlock()
	if !first {
		return nil
	}
	ferr := w.flush(ctx, []*hold{h})
	ok, err := w.store.Release(ctx, Release{ID: h.row.ID, Owner: h.row.Owner, Fence: h.row.Fence})
	w.drop(h)
	w.opts.Observer.Ended(h.row.ID, nil)
	kick(w.ask)
	w.Wake()
	switch {
	case err != nil:
		return fmt.Errorf("lease: %s is released later: %w", h.row.ID, err)
	case !ok:
		return fmt.Errorf("%w: %s was not this worker's any more when it was released", ErrLost, h.row.ID)
	}
	return ferr
}

// locking asks for what is waited for: once for all who wait.
func (w *Worker) locking() {
	w.every(w.opts.Observe, w.ask, func(ctx context.Context) {
		w.mu.Lock()
		var ids []string
		for id := range w.waits {
			if w.holds[id] == nil {
				ids = append(ids, id)
			}
		}
		owner, ok := w.owner, w.owner != (Owner{}) && w.trust.holds(w.opts.elapsed())
		w.mu.Unlock()
		for ok && len(ids) > 0 {
			n := min(MaxBatch, len(ids))
			if err := w.acquire(ctx, owner, ids[:n]); err != nil && ctx.Err() == nil {
				w.opts.Logger.Warn("locks cannot be read; trying again", "err", err)
			}
			ids = ids[n:]
		}
	})
}

func (w *Worker) acquire(ctx context.Context, owner Owner, ids []string) error {
	list, err := w.unlocked(ctx, owner, ids)
	if err != nil {
		return err
	}
	w.side(len(list), func(i int) {
		b := list[i]
		h := w.newHold(b.ID)
		h.lock = true
		w.mu.Lock()
		w.holds[b.ID] = h
		w.mu.Unlock()
		if !w.take(ctx, h, Take{ID: b.ID, From: b.Owner, Fence: b.Fence, To: owner}) {
			w.drop(h)
			return
		}
		w.grant(h)
	})
	return nil
}

// unlocked says which of them are nobody's, and makes those that do not exist.
func (w *Worker) unlocked(ctx context.Context, owner Owner, ids []string) ([]Brief, error) {
	ctx, cancel := context.WithTimeout(ctx, w.opts.Lease/4)
	defer cancel()
	rows, err := w.store.Get(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if !slices.ContainsFunc(rows, func(r Row) bool { return r.ID == id }) {
			row, err := w.store.Put(ctx, Put{ID: id, Desired: Started, IfAbsent: true})
			if err != nil {
				return nil, err
			}
			rows = append(rows, row)
		}
	}
	var list []Brief
	for _, r := range rows {
		switch {
		case r.Owner == owner: // the answer to a take was lost: it is given back there
			w.Wake()
		case r.Desired == Started:
			list = append(list, r.Brief())
		}
	}
	return w.unowned(ctx, list)
}

// grant gives a lock to whoever waited longest, or back.
func (w *Worker) grant(h *hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.waits[h.row.ID]
	if len(q) == 0 {
		w.wg.Go(func() { w.free(h) })
		return
	}
	q[0].got <- h
	if len(q) == 1 {
		delete(w.waits, h.row.ID)
	} else {
		w.waits[h.row.ID] = q[1:]
	}
}
