package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/room"
)

const (
	roomReadBlock = 500 * time.Millisecond // how long a read waits for news; a deleted room is noticed after it
	roomReadCount = 256                    // entries of one read
)

// roomReader follows one room's log for a node: it keeps a machine up with it, and shows followers what comes.
type roomReader struct {
	host *roomHost

	mu        sync.Mutex
	machine   *room.Machine // nil until the first snapshot
	followers map[*roomFollow]struct{}
	moved     chan struct{} // closed and replaced whenever the machine has moved, or the room is gone
	gone      bool
	failure   error // why there is no machine yet
}

// roomFollow is one follower. ready: it has been Reset.
type roomFollow struct {
	f     room.Follower
	ready bool
}

// read returns the room's reader, and starts it if nobody has.
func (h *roomHost) read() (*roomReader, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return nil, fmt.Errorf("%w: usher is stopping, or the room is deleted", room.ErrUnavailable)
	}
	if h.reader == nil {
		r := &roomReader{host: h, followers: map[*roomFollow]struct{}{}, moved: make(chan struct{})}
		h.store.mu.Lock()
		closed := h.store.closed
		if !closed {
			h.store.wg.Go(r.run)
		}
		h.store.mu.Unlock()
		if closed {
			return nil, fmt.Errorf("%w: usher is stopping", room.ErrUnavailable)
		}
		h.reader = r
	}
	return h.reader, nil
}

// Follow implements room.Store.
func (s *Rooms) Follow(ctx context.Context, id string, to room.Follower) error {
	h, err := s.host(id)
	if err != nil {
		return err
	}
	r, err := h.read()
	if err != nil {
		return err
	}
	f := &roomFollow{f: to}
	r.mu.Lock()
	r.followers[f] = struct{}{}
	if r.machine != nil {
		to.Reset(r.machine.Mirror())
		f.ready = true
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.followers, f)
		r.mu.Unlock()
	}()
	for {
		r.mu.Lock()
		moved, gone, failure := r.moved, r.gone, r.failure
		r.mu.Unlock()
		if gone {
			return fmt.Errorf("%w: %s", room.ErrNotFound, id)
		}
		if failure != nil && !f.ready {
			return failure
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return fmt.Errorf("%w: usher is stopping", room.ErrUnavailable)
		case <-moved:
		}
	}
}

// tell wakes those who wait for the machine to move. It is called with mu held.
func (r *roomReader) tell() {
	close(r.moved)
	r.moved = make(chan struct{})
}

// ended tells followers that the room is no more.
func (h *roomHost) ended() {
	h.mu.Lock()
	r := h.reader
	h.mu.Unlock()
	if r != nil {
		r.mu.Lock()
		r.gone = true
		r.tell()
		r.mu.Unlock()
	}
}

// run reads until the room is deleted or the store closed.
func (r *roomReader) run() {
	h := r.host
	log := h.store.opts.Logger.With("room", h.id)
	cleaned := time.Now()
	for pause := 20 * time.Millisecond; h.ctx.Err() == nil; {
		var err error
		if r.cursor() == (room.Cursor{}) {
			err = r.reset(h.ctx)
		} else {
			err = r.next(h.ctx)
		}
		if time.Since(cleaned) > time.Minute {
			cleaned = time.Now()
			r.mu.Lock()
			if r.machine != nil {
				r.machine.Forget()
			}
			r.mu.Unlock()
		}
		var cut *roomGap
		switch {
		case err == nil:
			pause = 20 * time.Millisecond
			continue
		case h.ctx.Err() != nil:
			return
		case errors.Is(err, room.ErrNotFound):
			h.store.forget(h)
			return
		case errors.As(err, &cut):
			log.Warn("the room's log was cut where it was being read; the room is read anew", "at", cut.at, "goes on at", cut.next)
			r.drop(nil)
			continue
		}
		log.Warn("the room's log cannot be read now; it is tried again", "err", err, "in", pause)
		if r.cursor() == (room.Cursor{}) {
			r.drop(err)
		}
		select {
		case <-h.ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}

func (r *roomReader) cursor() room.Cursor {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.machine == nil {
		return room.Cursor{}
	}
	return r.machine.Cursor
}

// drop forgets the machine; followers keep what they have until the next one.
func (r *roomReader) drop(why error) {
	r.mu.Lock()
	r.machine, r.failure = nil, why
	r.tell()
	r.mu.Unlock()
}

// reset reads the room as it is.
func (r *roomReader) reset(ctx context.Context) error {
	m, err := r.host.store.snapshot(ctx, r.host.id)
	if err != nil {
		return err
	}
	if err := r.host.store.settled(ctx, r.host.id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.machine, r.failure = m, nil
	for f := range r.followers {
		f.f.Reset(m.Mirror())
		f.ready = true
	}
	r.tell()
	return nil
}

// roomGap says that the log no longer holds what comes after at. at.Epoch < next.Epoch is also what a failover looks like:
// events that were read here may be lost there.
type roomGap struct{ at, next room.Cursor }

func (g *roomGap) Error() string { return fmt.Sprintf("log cut from %v to %v", g.at, g.next) }

// next waits for news and shows them.
func (r *roomReader) next(ctx context.Context) error {
	h := r.host
	at := r.cursor()
	b := h.store.client.B()
	read := b.Xread().Count(roomReadCount).Block(roomReadBlock.Milliseconds()).Streams().Key(h.base + "log").Id(fmt.Sprintf("%d-%d", at.Epoch, at.N)).Build()
	ctx, cancel := context.WithTimeout(ctx, roomReadBlock+5*time.Second)
	defer cancel()
	got, err := h.store.client.Do(ctx, read).AsXRead()
	if rueidis.IsRedisNil(err) {
		return r.alive(ctx)
	}
	entries, err := readRoomEntries(got[h.base+"log"], err)
	if err != nil {
		return h.store.failed(h.id, err, true)
	}
	var events []room.Event
	for i := range entries {
		e := &entries[i]
		if e.ends {
			return fmt.Errorf("%w: %s", room.ErrNotFound, h.id)
		}
		if e.last.Epoch != at.Epoch || e.first > at.N+1 {
			if len(events) > 0 {
				break // show what comes before it
			}
			return &roomGap{at, room.Cursor{Epoch: e.last.Epoch, N: e.first}}
		}
		from := len(events)
		if events, err = e.decode(events); err != nil {
			return err
		}
		if skip := int(at.N + 1 - e.first); skip > 0 && at.N+1 >= e.first { // a cursor inside an entry
			events = append(events[:from], events[min(len(events), from+skip):]...)
		}
		at = e.last
	}
	if err := h.store.settled(ctx, h.id); err != nil {
		return err
	}
	return r.show(events)
}

func (r *roomReader) show(events []room.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(events) == 0 || r.machine == nil {
		return nil
	}
	for i := range events {
		e := events[i]
		e.Request = [16]byte{} // nobody asks a node's copy for them
		if err := r.machine.Apply(&e); err != nil {
			r.machine = nil // read anew
			return fmt.Errorf("%w: redis: room %s", err, r.host.id)
		}
	}
	for f := range r.followers {
		if f.ready {
			f.f.Apply(events)
		}
	}
	r.tell()
	return nil
}

// alive asks whether the room is still there, after a read that brought nothing.
func (r *roomReader) alive(ctx context.Context) error {
	h, err := r.host.store.readHead(ctx, r.host.id)
	if err != nil {
		return err
	}
	if !h.exists() {
		return fmt.Errorf("%w: %s", room.ErrNotFound, r.host.id)
	}
	if at := r.cursor(); h.cursor().Before(at) { // its log is shorter than what was read, or that was another server's
		return &roomGap{at, h.cursor()}
	}
	return nil
}

// readHead reads a room's head and texts, as of one moment. ErrNotFound: there is none; one that was deleted is found.
func (s *Rooms) readHead(ctx context.Context, id string) (*roomHead, error) {
	h, _, err := s.readRoom(ctx, id)
	return h, err
}

// bringRoot waits until this node has read the log up to a position, and takes the root of the draw from there.
func (h *roomHost) bringRoot(ctx context.Context, at room.Cursor) error {
	r, err := h.read()
	if err != nil {
		return err
	}
	for {
		r.mu.Lock()
		moved := r.moved
		if r.gone {
			r.mu.Unlock()
			return fmt.Errorf("%w: %s", room.ErrNotFound, h.id)
		}
		if r.machine != nil && !r.machine.Cursor.Before(at) {
			var root roomRoot
			root.n, root.root = r.machine.Entered()
			root.seedHash = r.machine.Summary().Opening.SeedHash
			r.mu.Unlock()
			h.mu.Lock()
			h.root = root
			h.mu.Unlock()
			return nil
		}
		r.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("%w: redis: room %s: its log could not be read up to the opening: %w", room.ErrUnavailable, h.id, ctx.Err())
		}
	}
}
