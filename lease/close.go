package lease

import (
	"context"
	"fmt"
	"time"
)

// together is how long Close waits for everything to return, so that one write can release it all.
const together = 250 * time.Millisecond

// Close ends all contexts with ErrLeaving, waits until functions have returned and locks were released, gives everything
// back, and leaves: others take over at once. When ctx ends before, what has returned is given back all the same, and the
// rest goes with the lease; the error says how many. A second call waits for the first, or for its own ctx.
func (w *Worker) Close(ctx context.Context) error {
	w.mu.Lock()
	first := !w.closing
	if first {
		w.closing = true
		close(w.leaving)
		w.cancelAll(ErrLeaving)
		w.returned()
	}
	w.mu.Unlock()
	if !first {
		select {
		case <-w.closed:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("lease: the worker is still being closed: %w", ctx.Err())
		}
	}
	defer close(w.closed)
	defer w.end()
	defer context.AfterFunc(ctx, w.end)() // a store that does not answer keeps nobody longer
	kick(w.hurry)                         // the others look for what is released
	late := time.AfterFunc(together, func() { close(w.linger) })
	defer late.Stop()
	select {
	case <-w.idle:
		w.flushOf(ctx, w.all()...)
	case <-ctx.Done():
	}
	close(w.written)
	w.stop() // no beat any more
	w.lapse.Stop()
	if n := w.staying(); n > 0 {
		return fmt.Errorf("lease: %d resources were not let go of in time: %w; others take them when the lease is over", n, ctx.Err())
	}
	w.wg.Wait()
	w.mu.Lock()
	owner := w.owner
	w.mu.Unlock()
	if owner == (Owner{}) {
		return nil
	}
	if err := w.store.Leave(ctx, owner); err != nil {
		return fmt.Errorf("lease: the departure was not written, others take over when the lease is over: %w", err)
	}
	return nil
}

// staying is how many have not returned.
func (w *Worker) staying() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.holds {
		if !h.left {
			n++
		}
	}
	return n
}

// returned runs when a hold has returned or was dropped. Under mu.
func (w *Worker) returned() {
	if !w.closing {
		return
	}
	for _, h := range w.holds {
		if !h.left {
			return
		}
	}
	select {
	case <-w.idle:
	default:
		close(w.idle)
	}
}

// leaves waits a moment for all the others to return too: then one write releases everything. Else the row is released by
// itself.
func (w *Worker) leaves(h *hold) {
	w.mu.Lock()
	h.left = true
	w.returned()
	w.mu.Unlock()
	select {
	case <-w.written:
	case <-w.linger:
		w.giveBack(h, false)
	}
}
