package lease

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Causes of the end of a function's or a lock's context (context.Cause).
var (
	// ErrLost: this worker could not say for so long that it lives that others may own the resource by now, or they do, or a
	// flush found the row gone.
	ErrLost = errors.New("lease: lost")
	// ErrStopped: the resource's desired state is not started any more.
	ErrStopped = errors.New("lease: the resource is to be stopped")
	// ErrDeleted: the resource was deleted.
	ErrDeleted = errors.New("lease: the resource was deleted")
	// ErrMoved: another worker has more room.
	ErrMoved = errors.New("lease: the resource moves to another worker")
	// ErrChanged: the resource's URL or spec changed; the function is run again with the new one.
	ErrChanged = errors.New("lease: the resource was changed")
	// ErrLeaving: this worker ends.
	ErrLeaving = errors.New("lease: the worker leaves")
)

// Resource is what a function is run for, as it was when it began. Copies are of one resource.
type Resource struct {
	ID     string
	URL    string
	Spec   []byte
	Cursor string // where to go on
	Rev    uint64
	Owner  Owner  // this worker
	Fence  uint64 // present it to everything that is written to: greater than that of every owner before

	hold *hold
}

// SetCursor notes how far the work has come, when that is durable elsewhere. It is written within Options.Flush, together
// with others', under the fence. It never blocks. A cursor longer than MaxCursor or not UTF-8 ends the function with that
// error as the cause.
func (r Resource) SetCursor(cursor string) {
	if err := checkCursor(cursor); err != nil {
		r.hold.cancel(err)
		return
	}
	r.hold.w.mu.Lock()
	defer r.hold.w.mu.Unlock()
	r.hold.cursor = cursor
}

// Flush writes the cursor now. ErrLost: the row is not this owner's any more.
func (r Resource) Flush(ctx context.Context) error { return r.hold.w.flush(ctx, []*hold{r.hold}) }

// Held reports whether the resource is this worker's at this moment, by its own clock. A process that was stopped after it
// asked does not know; the fence does.
func (r Resource) Held() bool {
	w := r.hold.w
	w.mu.Lock()
	defer w.mu.Unlock()
	return r.hold.ctx.Err() == nil && w.trust.holds(w.opts.elapsed()) && w.owner == r.Owner
}

// hold is one resource that this worker owns, or is about to. Fields are under Worker.mu.
type hold struct {
	w      *Worker
	row    Row
	ctx    context.Context
	cancel context.CancelCauseFunc
	lock   bool // somebody's Lock, not a function

	running bool
	left    bool          // returned, and waits to be given back with the others
	cursor  string        // set; row.Cursor is what the store has
	writing chan struct{} // closed when the cursor that is being written is; nil: none is
}

func (w *Worker) newHold(id string) *hold {
	h := &hold{w: w, row: Row{ID: id}}
	h.ctx, h.cancel = context.WithCancelCause(context.WithoutCancel(w.ctx))
	return h
}

func (h *hold) resource() Resource {
	r := h.row
	return Resource{ID: r.ID, URL: r.URL, Spec: r.Spec, Cursor: r.Cursor, Rev: r.Rev, Owner: r.Owner, Fence: r.Fence, hold: h}
}

// begin makes a taken row this hold's, if the worker may still act for that owner. Under mu.
func (w *Worker) begin(h *hold, row Row) bool {
	if row.Owner != w.owner || !w.trust.holds(w.opts.elapsed()) || w.closing || h.ctx.Err() != nil {
		return false
	}
	h.row, h.cursor, h.running = row, row.Cursor, true
	return true
}

// serve runs the function until the resource is not this worker's any more, and gives it back.
func (w *Worker) serve(h *hold) {
	cause := w.attempts(h)
	w.opts.Observer.Ended(h.row.ID, cause)
	switch {
	case errors.Is(cause, ErrLost), errors.Is(cause, ErrDeleted):
	case errors.Is(cause, ErrChanged): // it stays this worker's, and goes on from here
		ctx, cancel := context.WithTimeout(w.last, w.opts.Lease)
		w.flushOf(ctx, h)
		cancel()
	case errors.Is(cause, ErrLeaving):
		w.leaves(h)
	default:
		w.giveBack(h, errors.Is(cause, errFinished))
	}
	w.drop(h)
	if !errors.Is(cause, ErrLeaving) {
		w.Wake()
	}
}

// errFinished is the cause when a function returned nil.
var errFinished = errors.New("lease: finished")

// attempts runs the function as often as it fails, and returns why no more.
func (w *Worker) attempts(h *hold) error {
	pause := w.opts.Retry
	for {
		began := w.opts.elapsed()
		err := w.call(h)
		if h.ctx.Err() != nil {
			return context.Cause(h.ctx)
		}
		if err == nil {
			return errFinished
		}
		if w.opts.elapsed()-began > w.opts.MaxRetry {
			pause = w.opts.Retry
		}
		wait := jitter(pause)
		pause = min(2*pause, w.opts.MaxRetry)
		w.opts.Logger.Warn("a resource's function failed; it is run again", "resource", h.row.ID, "fence", h.row.Fence, "after", wait, "err", err)
		t := time.NewTimer(wait)
		select {
		case <-h.ctx.Done():
			t.Stop()
			return context.Cause(h.ctx)
		case <-t.C:
		}
		w.mu.Lock()
		h.row.Cursor = h.cursor // where it goes on
		w.mu.Unlock()
	}
}

// call turns a panic into an error: one resource's fault is not the others'.
func (w *Worker) call(h *hold) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("lease: resource %s: panic: %v", h.row.ID, p)
		}
	}()
	w.mu.Lock()
	r := h.resource()
	w.mu.Unlock()
	return w.opts.Serve(h.ctx, r)
}

// giveBack flushes, and releases until the store has answered: before that a request may still be under way, and would hit
// whoever goes on with the row under the same fence. It ends without an answer when the owner is dead, or leaves.
func (w *Worker) giveBack(h *hold, stop bool) {
	ctx, cancel := context.WithTimeout(w.last, w.opts.Lease)
	w.flushOf(ctx, h)
	cancel()
	for pause := w.opts.Observe; ; pause = min(2*pause, w.opts.Lease) {
		err := w.release(h, stop)
		w.mu.Lock()
		alive := w.owner == h.row.Owner
		w.mu.Unlock()
		if err == nil || !alive {
			return
		}
		w.opts.Logger.Warn("a resource was not released; it will be, or goes with the lease", "resource", h.row.ID, "err", err)
		t := time.NewTimer(jitter(pause))
		select {
		case <-t.C:
		case <-w.linger:
			t.Stop()
			return
		case <-w.last.Done():
			t.Stop()
			return
		}
	}
}

// release is one attempt, Options.Parallel of them side by side.
func (w *Worker) release(h *hold, stop bool) error {
	ctx, cancel := context.WithTimeout(w.last, w.opts.Lease)
	defer cancel()
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	_, err := w.store.Release(ctx, Release{ID: h.row.ID, Owner: h.row.Owner, Fence: h.row.Fence, Stop: stop})
	return err
}

func (w *Worker) flushOf(ctx context.Context, hs ...*hold) {
	if err := w.flush(ctx, hs); err != nil && !errors.Is(err, ErrLost) {
		w.opts.Logger.Warn("a cursor was not written at the end; what came after the last one is done again", "err", err)
	}
}

// drop forgets a hold.
func (w *Worker) drop(h *hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.cancel(ErrLost)
	if w.holds[h.row.ID] == h {
		delete(w.holds, h.row.ID)
	}
	w.returned()
}

// flush writes the cursors that changed, in batches.
func (w *Worker) flush(ctx context.Context, hs []*hold) error {
	var cs []Cursor
	var of []*hold
	w.mu.Lock()
	for busy := anyWriting(hs); busy != nil; busy = anyWriting(hs) {
		w.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		w.mu.Lock()
	}
	written := make(chan struct{})
	for _, h := range hs {
		if h.running && h.cursor != h.row.Cursor {
			cs = append(cs, Cursor{h.row.ID, h.row.Owner, h.row.Fence, h.cursor})
			of, h.writing = append(of, h), written
		}
	}
	w.mu.Unlock()
	defer func(of []*hold) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, h := range of {
			h.writing = nil
		}
		close(written)
	}(of)
	var lost error
	for len(cs) > 0 {
		n := min(MaxBatch, len(cs))
		ok, err := w.store.Flush(ctx, cs[:n])
		if err != nil {
			return err
		}
		w.mu.Lock()
		for i, h := range of[:n] {
			if ok[i] {
				h.row.Cursor = cs[i].Cursor
				continue
			}
			lost = fmt.Errorf("%w: %s is not this worker's any more", ErrLost, h.row.ID)
			h.cancel(lost)
		}
		w.mu.Unlock()
		cs, of = cs[n:], of[n:]
	}
	return lost
}

// anyWriting finds one whose cursor is being written: two writes of one row may overtake each other, and the older cursor
// would stay.
func anyWriting(hs []*hold) chan struct{} {
	for _, h := range hs {
		if h.writing != nil {
			return h.writing
		}
	}
	return nil
}
