package room

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Watcher is told that something about a ticket, or about the room's state, has changed; what
// it is, is then read with Status. Notices that were not taken yet are one.
type Watcher struct {
	C    <-chan struct{} // closed when the room is deleted
	c    chan struct{}
	room *Room
	id   ID
}

// Watch watches a ticket and the room's state. Stop it when done.
func (r *Room) Watch(id ID) *Watcher {
	w := &Watcher{c: make(chan struct{}, 1), room: r, id: id}
	w.C = w.c
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.gone:
		close(w.c)
		return w
	default:
	}
	if r.watchers[id] == nil {
		r.watchers[id] = map[*Watcher]struct{}{}
	}
	r.watchers[id][w] = struct{}{}
	r.everyone[w] = struct{}{}
	return w
}

// Stop ends a watch.
func (w *Watcher) Stop() {
	w.room.mu.Lock()
	defer w.room.mu.Unlock()
	delete(w.room.everyone, w)
	if ws := w.room.watchers[w.id]; ws != nil {
		if delete(ws, w); len(ws) == 0 {
			delete(w.room.watchers, w.id)
		}
	}
}

// Listen has f called with what the log brought, in order, once the room's answers show it; with nil when the room was
// read anew and events may have been missed. f must be quick, must not keep the slice, and must not call Listen or stop.
func (r *Room) Listen(f func([]Event)) (stop func()) {
	r.listenMu.Lock()
	defer r.listenMu.Unlock()
	n := r.listened
	r.listened++
	if r.listeners == nil {
		r.listeners = map[int]func([]Event){}
	}
	r.listeners[n] = f
	return func() {
		r.listenMu.Lock()
		defer r.listenMu.Unlock()
		delete(r.listeners, n)
	}
}

func (r *Room) tell(events []Event) {
	r.listenMu.Lock()
	defer r.listenMu.Unlock()
	for _, f := range r.listeners {
		f(events)
	}
}

func (w *Watcher) notify() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// notifyAll is called with mu held.
func (r *Room) notifyAll() {
	for w := range r.everyone {
		w.notify()
	}
}

func (r *Room) closeWatchers() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.everyone {
		close(w.c)
	}
	clear(r.everyone)
	clear(r.watchers)
	for id, u := range r.uses {
		u.end()
		delete(r.uses, id)
	}
}

// Rank is a waiter's place by the room's log, without asking the store, and the decision time (µs) as of which it is: another
// node's may be older or newer. ok is false where there is none to tell.
func (r *Room) Rank(v View) (place, waiting, at int64, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	place, ok = r.mirror.Place(v)
	return place, r.mirror.Summary.Waiting, r.mirror.At, ok
}

// use is what this node knows of a session that requests go through.
type use struct {
	ref     Ref
	renewed time.Time
	token   time.Time     // when an admission token signed at the renewal ends
	busy    bool          // a renewal is under way
	open    int           // requests and sockets under way
	done    chan struct{} // closed when the session ends
}

func (u *use) end() { close(u.done) }

// note takes over what a renewal said.
func (u *use) note(res Result) {
	u.renewed = time.Now()
	u.token = time.UnixMicro(res.At).Add(res.View.TokenEnd)
}

// Pass is one request or socket of an admitted ticket.
type Pass struct {
	room *Room
	use  *use
	// TokenEnd is when an admission token ends that is signed for the last renewal; it stays
	// the same for a quarter of the idle time, so one signature serves many requests.
	TokenEnd time.Time
}

// Done is closed when the session ends: by its limits, by leaving, or with the room.
func (s *Pass) Done() <-chan struct{} { return s.use.done }

// Close says that the request or socket is over. Call it once.
func (s *Pass) Close() {
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	s.use.open--
}

// Use lets a request of an admitted ticket in: the first one claims the admission, later ones
// renew it, with one write to the store in a quarter of the idle time; as long as the Pass
// is not closed, the session is kept from ending by idle. Errors: ErrNotAdmitted, ErrEnded, ErrNoTicket.
func (r *Room) Use(ctx context.Context, ref Ref) (*Pass, error) {
	r.mu.Lock()
	in, ok := r.mirror.Inside[ref.ID]
	u := r.uses[ref.ID]
	quarter := time.Duration(r.mirror.Summary.Config.Session.Idle) / 4
	if ok && in.Seq == ref.Seq && in.Claimed && u != nil && (u.busy || time.Since(u.renewed) < quarter) {
		u.open++
		p := &Pass{r, u, u.token}
		r.mu.Unlock()
		return p, nil
	}
	if u != nil {
		u.busy = true // others go by what is known meanwhile
	}
	r.mu.Unlock()

	res, err := r.change(ctx, &Command{Op: OpClaim, Ref: ref})

	r.mu.Lock()
	defer r.mu.Unlock()
	if u = r.uses[ref.ID]; u != nil {
		u.busy = false
	}
	if err != nil {
		return nil, err
	}
	if u == nil {
		if _, ok := r.mirror.Inside[ref.ID]; !ok && !r.mirror.Cursor.Before(res.Cursor) {
			return nil, ErrEnded // between the answer and now
		}
		u = &use{ref: ref, done: make(chan struct{})}
		r.uses[ref.ID] = u
	}
	u.note(res)
	u.open++
	return &Pass{r, u, u.token}, nil
}

// renewOpen renews the sessions with requests under way.
func (r *Room) renewOpen(ctx context.Context) {
	r.mu.RLock()
	quarter := time.Duration(r.mirror.Summary.Config.Session.Idle) / 4
	var stale []Ref
	for _, u := range r.uses {
		if u.open > 0 && !u.busy && time.Since(u.renewed) >= quarter {
			stale = append(stale, u.ref)
		}
	}
	r.mu.RUnlock()
	// Side by side: each waits for the disk or the network, and they share that wait.
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(len(stale), 64) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(stale)); i = next.Add(1) - 1 {
				res, err := r.change(ctx, &Command{Op: OpRenew, Ref: stale[i]})
				r.mu.Lock()
				if u := r.uses[stale[i].ID]; u != nil && err == nil {
					u.note(res)
				}
				r.mu.Unlock()
				if errors.Is(err, ErrUnavailable) {
					return // the next second tries again
				}
			}
		})
	}
	wg.Wait()
}
