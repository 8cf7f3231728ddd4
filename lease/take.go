package lease

import (
	"context"
	"sync"
	"time"
)

// maxOrphans bounds one look.
const maxOrphans = 1 << 15

// observing reads the others' rows, marks those that stood still, and has what they leave gathered.
func (w *Worker) observing() {
	again := make(chan struct{}, 1)
	kick(again)
	w.every(w.opts.Observe, again, func(ctx context.Context) {
		p, ok := w.observe(ctx)
		if !ok {
			return
		}
		for _, m := range p.mark {
			if w.kill(ctx, m) {
				kick(again) // see it dead, and take over
			}
		}
		for _, o := range p.forget {
			w.remove(ctx, o)
		}
		now := w.opts.elapsed()
		w.mu.Lock()
		w.view.count(len(w.holds), w.orphans, now)
		if p.changed {
			w.steady = now
		}
		hungry := len(w.holds) < min(w.view.share(), w.opts.Cap) && (w.view.crowded() || w.orphans > 0)
		w.mu.Unlock()
		if p.changed || hungry {
			kick(w.collect)
		}
	})
}

// observe is one read of the workers' rows.
func (w *Worker) observe(ctx context.Context) (plan, bool) {
	ctx, cancel := context.WithTimeout(ctx, w.opts.Lease/2)
	defer cancel()
	started := w.opts.elapsed()
	rows, err := w.store.Workers(ctx)
	ended := w.opts.elapsed()
	if err != nil {
		if w.ctx.Err() == nil {
			w.opts.Logger.Warn("the workers cannot be read; trying again", "err", err)
		}
		return plan{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.view.step(rows, started, ended), true
}

func (w *Worker) kill(ctx context.Context, m Mark) bool {
	ctx, cancel := context.WithTimeout(ctx, w.opts.Lease/2)
	defer cancel()
	ok, err := w.store.Mark(ctx, m)
	if err != nil {
		w.opts.Logger.Warn("a worker without beats was not marked dead; trying again", "worker", m.Owner, "err", err)
	}
	if ok {
		w.opts.Logger.Warn("a worker is dead: its beat stood still for a lease", "worker", m.Owner, "beat", m.Beat)
		w.opts.Observer.Died(m.Owner)
	}
	return ok
}

func (w *Worker) remove(ctx context.Context, o Owner) {
	ctx, cancel := context.WithTimeout(ctx, w.opts.Lease/2)
	defer cancel()
	if err := w.store.Forget(ctx, o); err != nil {
		w.opts.Logger.Warn("a dead worker's row was not removed; trying again", "worker", o, "err", err)
	}
}

// gather takes orphans up to this worker's share: its own part of them at once, the others' if they are still orphans the
// next time.
func (w *Worker) gather(ctx context.Context) {
	if w.opts.Serve == nil {
		return
	}
	w.mu.Lock()
	living, may := w.view.owners(), !w.closing && w.trust.holds(w.opts.elapsed()) && w.view.lives(w.owner)
	w.mu.Unlock()
	if !may {
		return
	}
	one, cancel := context.WithTimeout(ctx, w.opts.Lease/2)
	list, err := w.store.Orphans(one, living, maxOrphans)
	if err == nil {
		list, err = w.unowned(one, list)
	}
	cancel()
	if err != nil {
		if w.ctx.Err() == nil {
			w.opts.Logger.Warn("orphans cannot be read; trying again", "err", err)
		}
		return
	}
	hs, of := w.choose(list)
	w.takeAll(ctx, hs, of)
}

// choose says which orphans to take now.
func (w *Worker) choose(list []Brief) (chosen []*hold, of []Brief) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.opts.elapsed()
	w.view.count(len(w.holds), len(list), now)
	room := min(w.view.share(), w.opts.Cap) - len(w.holds)
	before := w.before
	w.before, w.orphans = map[string]uint64{}, 0
	for _, b := range list {
		if w.holds[b.ID] != nil { // its function has not returned yet
			continue
		}
		fence, seen := before[b.ID]
		if len(chosen) < room && (w.view.mine(b.ID) || seen && fence == b.Fence) {
			h := w.newHold(b.ID)
			w.holds[b.ID] = h
			chosen, of = append(chosen, h), append(of, b)
			continue
		}
		w.before[b.ID] = b.Fence
		w.orphans++
	}
	if len(chosen) > 0 {
		w.steady = now
	}
	return chosen, of
}

// takeAll takes rows side by side.
func (w *Worker) takeAll(ctx context.Context, hs []*hold, of []Brief) {
	w.mu.Lock()
	owner := w.owner
	w.mu.Unlock()
	w.side(len(hs), func(i int) {
		taken := w.take(ctx, hs[i], Take{ID: of[i].ID, From: of[i].Owner, Fence: of[i].Fence, To: owner})
		if !taken {
			w.drop(hs[i])
		}
	})
	if len(hs) > 0 {
		kick(w.hurry) // the others see how many there are now
	}
}

// side runs f for 0 to n-1, Options.Parallel at once.
func (w *Worker) side(n int, f func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(n, w.opts.Parallel) {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// take asks for one row, and runs the function, or makes it a lock's, where it was given.
func (w *Worker) take(ctx context.Context, h *hold, t Take) bool {
	if t.To == (Owner{}) {
		return false
	}
	var got Taken
	var err error
	for try := range 3 { // an answer that was lost is settled by asking again
		one, cancel := context.WithTimeout(ctx, w.opts.Lease/4)
		got, err = w.store.Take(one, t)
		cancel()
		if err == nil || ctx.Err() != nil {
			break
		}
		time.Sleep(jitter(w.opts.Observe << try / 4))
	}
	if err != nil || !got.OK {
		return false // should it be ours all the same, reconcile finds it
	}
	w.mu.Lock()
	ok := w.begin(h, got.Row)
	if ok && !h.lock {
		w.wg.Go(func() { w.serve(h) })
	}
	w.mu.Unlock()
	if ok {
		w.opts.Observer.Taken(t.ID, t.From)
	}
	return ok
}

// unowned keeps those of list that are nobody's or a dead generation's. A generation is dead when a read of the workers that
// began after list was read does not show it living: so one that has just joined is not taken for dead.
func (w *Worker) unowned(ctx context.Context, list []Brief) ([]Brief, error) {
	w.mu.Lock()
	unknown := false
	for _, b := range list {
		s, ok := w.view.seen[b.Owner.Worker]
		unknown = unknown || b.Owner != (Owner{}) && !(ok && s.row.Owner == b.Owner && s.row.Dead)
	}
	w.mu.Unlock()
	if unknown {
		if _, ok := w.observe(ctx); !ok {
			return nil, ErrUnavailable
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var free []Brief
	for _, b := range list {
		if b.Owner == (Owner{}) || !w.view.lives(b.Owner) {
			free = append(free, b)
		}
	}
	return free, nil
}

// reconciling follows desired state, and finds what this worker owns without knowing.
func (w *Worker) reconciling() {
	w.every(w.opts.Desired, w.wake, func(ctx context.Context) {
		one, cancel := context.WithTimeout(ctx, w.opts.Lease)
		defer cancel()
		if err := w.reconcile(one); err != nil && ctx.Err() == nil {
			w.opts.Logger.Warn("desired states cannot be read; trying again", "err", err)
		}
		kick(w.collect)
		select { // however often it is woken
		case <-ctx.Done():
		case <-time.After(w.opts.Observe / 5):
		}
	})
}

func (w *Worker) reconcile(ctx context.Context) error {
	w.mu.Lock()
	owner, ok := w.owner, w.owner != (Owner{}) && w.trust.holds(w.opts.elapsed())
	var held []*hold
	for _, h := range w.holds {
		if h.running && h.row.Owner == owner && h.ctx.Err() == nil {
			held = append(held, h)
		}
	}
	w.mu.Unlock()
	if !ok {
		return nil
	}
	list, err := w.store.Owned(ctx, owner)
	if err != nil {
		return err
	}
	said := make(map[string]Brief, len(list))
	for _, b := range list {
		said[b.ID] = b
	}
	var doubt []string // ask again, for the list may be old
	asked := map[string]*hold{}
	w.mu.Lock()
	for _, h := range held {
		if b, ok := said[h.row.ID]; !ok || b.Fence != h.row.Fence || b.Rev != h.row.Rev {
			doubt, asked[h.row.ID] = append(doubt, h.row.ID), h
		}
	}
	for id := range said {
		if w.holds[id] == nil {
			doubt = append(doubt, id)
		}
	}
	w.mu.Unlock()
	for len(doubt) > 0 {
		n := min(MaxBatch, len(doubt))
		rows, err := w.store.Get(ctx, doubt[:n])
		if err != nil {
			return err
		}
		w.settle(doubt[:n], rows, asked, owner)
		doubt = doubt[n:]
	}
	return nil
}

// settle compares what is held with what is in the store.
func (w *Worker) settle(ids []string, rows []Row, asked map[string]*hold, owner Owner) {
	found := make(map[string]Row, len(rows))
	for _, r := range rows {
		found[r.ID] = r
	}
	for _, id := range ids {
		row, exists := found[id]
		mine := exists && row.Owner == owner
		if h := asked[id]; h != nil {
			switch {
			case !exists:
				h.cancel(ErrDeleted)
			case !mine || row.Fence != h.row.Fence:
				h.cancel(ErrLost)
			case row.Desired != Started:
				h.cancel(ErrStopped)
			case row.Rev != h.row.Rev:
				h.cancel(ErrChanged)
			}
			continue
		}
		if mine {
			w.adopt(row)
		}
	}
}

// adopt goes on with a row that is this worker's though it does not hold it: the answer to its take was lost, or its trust
// was for a while, or the row changed. What it does not run, it gives back.
func (w *Worker) adopt(row Row) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holds[row.ID] != nil || w.closing {
		return
	}
	h := w.newHold(row.ID)
	switch {
	case w.opts.Serve == nil || row.Desired != Started:
		h.row = row
		w.holds[row.ID] = h
		w.wg.Go(func() { w.free(h) })
	case w.begin(h, row):
		w.holds[row.ID] = h
		w.wg.Go(func() { w.serve(h) })
		w.opts.Observer.Taken(row.ID, Owner{})
	}
}
