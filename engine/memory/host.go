package memory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/room"
)

// host runs one room: its machine, its journal, and those who follow it.
type host struct {
	engine  *Engine
	id      string
	journal *journal.Journal
	ctx     context.Context // ends when the room is closed or deleted
	stop    context.CancelFunc
	wg      sync.WaitGroup
	again   chan struct{} // wakes the ticker before its time

	mu      sync.Mutex // held to step the machine and to append what it did
	machine *room.Machine
	buf     []byte
	deleted bool
	next    time.Time // when the ticker means to wake
	index   logIndex

	outMu     sync.Mutex // held to show events; taken after mu
	pending   []batch    // made, not yet durable
	followers map[*follow]struct{}

	snapshot journal.Pos // of the last snapshot; the keeper's own
}

// batch is what one record of the journal holds.
type batch struct {
	pos    journal.Pos
	events []room.Event
}

func (e *Engine) openHost(id string) (*host, error) {
	h := &host{engine: e, id: id, again: make(chan struct{}, 1), followers: map[*follow]struct{}{}}
	h.ctx, h.stop = context.WithCancel(e.ctx)
	j, err := journal.Open(filepath.Join(e.dir, "rooms", id), journal.Options{
		FS: e.opts.FS, Logger: e.log.With("room", id), SegmentBytes: e.opts.SegmentBytes, NoSync: e.opts.NoSync, OnDurable: h.durable,
	})
	if err != nil {
		h.stop()
		return nil, err
	}
	h.journal = j
	if h.machine, h.snapshot, _, err = restore(j); err != nil {
		h.stop()
		j.Close()
		return nil, err
	}
	h.machine.Recover()
	h.wg.Go(h.tick)
	h.wg.Go(h.keepLog)
	return h, nil
}

// restore makes a machine from the latest snapshot and the log after it. It returns the
// snapshot's position and the position reached.
func restore(j *journal.Journal) (m *room.Machine, snapshot, end journal.Pos, err error) {
	m = room.NewMachine()
	pos, r, ok, err := j.LatestSnapshot()
	if err != nil {
		return nil, 0, 0, err
	}
	if ok {
		m, err = room.Load(r)
		if cerr := r.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return nil, 0, 0, err
		}
		snapshot = pos
	} else if f := j.Floor(); f != 0 {
		return nil, 0, 0, fmt.Errorf("the log begins at %d and there is no snapshot of what was before: restore the folder from a copy, or move it away to begin anew", f)
	}
	end, err = j.Replay(snapshot, func(_ journal.Pos, rec []byte) error {
		return decode(rec, func(e *room.Event) error { return m.Apply(e) })
	})
	return m, snapshot, end, err
}

// decode calls fn with each event of a record.
func decode(rec []byte, fn func(*room.Event) error) error {
	for len(rec) > 0 {
		e, rest, err := room.DecodeEvent(rec)
		if err != nil {
			return err
		}
		if err := fn(&e); err != nil {
			return err
		}
		rec = rest
	}
	return nil
}

// do steps the machine and answers when everything the answer rests on is durable.
func (h *host) do(ctx context.Context, cmd *room.Command) (room.Result, error) {
	if err := ctx.Err(); err != nil {
		return room.Result{}, fmt.Errorf("%w: %w", room.ErrUnavailable, err)
	}
	res, end, err := h.step(cmd)
	if err != nil {
		return room.Result{}, err
	}
	if err := h.sync(ctx, end); err != nil {
		return room.Result{}, fmt.Errorf("%w: %w", room.ErrUnknown, err)
	}
	return res, nil
}

func (h *host) sync(ctx context.Context, end journal.Pos) error {
	if h.engine.opts.OnSync == nil {
		return h.journal.Sync(ctx, end)
	}
	done := h.engine.opts.OnSync(ctx, h.id)
	err := h.journal.Sync(ctx, end)
	done(err)
	return err
}

// step returns the answer, and the position of the log that must be durable before it is given.
func (h *host) step(cmd *room.Command) (room.Result, journal.Pos, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.deleted {
		return room.Result{}, 0, fmt.Errorf("%w: %s", room.ErrNotFound, h.id)
	}
	// The machine cannot take a step back, so whether the journal takes it is asked first.
	if err := h.journal.Err(); err != nil {
		return room.Result{}, 0, fmt.Errorf("%w: %w", room.ErrUnavailable, err)
	}
	if err := h.journal.Ready(); err != nil {
		return room.Result{}, 0, fmt.Errorf("%w: %w", room.ErrUnavailable, err)
	}
	res := h.machine.Step(cmd, h.engine.now())
	end, err := h.record(res.Events)
	res.Events = nil
	if err != nil {
		return room.Result{}, 0, err
	}
	if next := time.Now().Add(h.machine.Wake()); next.Before(h.next.Add(-time.Millisecond)) {
		h.next = next
		select {
		case h.again <- struct{}{}:
		default:
		}
	}
	return res, end, nil
}

// record appends events to the log, as one record: all of a step or nothing.
func (h *host) record(events []room.Event) (journal.Pos, error) {
	if len(events) == 0 {
		return h.journal.End(), nil
	}
	h.buf = h.buf[:0]
	for i := range events {
		h.buf = events[i].Append(h.buf)
	}
	events = slices.Clone(events) // the machine uses its own again
	h.outMu.Lock()
	defer h.outMu.Unlock()
	pos, err := h.journal.Append(h.buf)
	if err != nil { // closed between Ready and now: the machine goes with it
		return 0, fmt.Errorf("%w: %w", room.ErrUnknown, err)
	}
	h.index.note(events[len(events)-1], pos)
	if h.engine.opts.NoSync {
		h.show(events)
		return pos, nil
	}
	h.pending = append(h.pending, batch{pos, events})
	return pos, nil
}

// durable shows followers what has become durable. The journal calls it, in order.
func (h *host) durable(upto journal.Pos) {
	h.outMu.Lock()
	defer h.outMu.Unlock()
	n := 0
	for ; n < len(h.pending) && h.pending[n].pos <= upto; n++ {
		h.show(h.pending[n].events)
		h.pending[n] = batch{}
	}
	if h.pending = h.pending[n:]; len(h.pending) == 0 {
		h.pending = nil
	}
}

func (h *host) show(events []room.Event) {
	for f := range h.followers {
		f.show(events)
	}
}

// follow is one reader of the room's log.
type follow struct {
	f     room.Follower
	ready bool         // has been Reset
	early []room.Event // what came before that
}

func (f *follow) show(events []room.Event) {
	if !f.ready {
		f.early = append(f.early, events...)
		return
	}
	f.f.Apply(events)
}

func (h *host) follow(ctx context.Context, to room.Follower) error {
	f := &follow{f: to}
	h.mu.Lock()
	if h.deleted || h.machine.Summary().Revision == 0 {
		h.mu.Unlock()
		return fmt.Errorf("%w: %s", room.ErrNotFound, h.id)
	}
	h.outMu.Lock()
	h.followers[f] = struct{}{}
	h.outMu.Unlock()
	mirror, end := h.machine.Mirror(), h.journal.End()
	h.mu.Unlock()
	defer func() {
		h.outMu.Lock()
		delete(h.followers, f)
		h.outMu.Unlock()
	}()

	if err := h.journal.Sync(ctx, end); err != nil { // never show what may still be lost
		return fmt.Errorf("%w: %w", room.ErrUnavailable, err)
	}
	h.outMu.Lock()
	f.ready = true
	to.Reset(mirror)
	if len(f.early) > 0 { // what the mirror already has is skipped by its number
		to.Apply(f.early)
		f.early = nil
	}
	h.outMu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-h.ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.deleted {
		return fmt.Errorf("%w: %s", room.ErrNotFound, h.id)
	}
	return fmt.Errorf("%w: usher is stopping", room.ErrUnavailable)
}

// tick does what time brings.
func (h *host) tick() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-h.again:
		case <-timer.C:
		}
		h.mu.Lock()
		wait := time.Until(h.next)
		h.mu.Unlock()
		for wait <= 0 && h.ctx.Err() == nil {
			res, _, err := h.step(&room.Command{Op: room.OpTick, Rand: rand.Uint64()})
			h.mu.Lock()
			wait = h.machine.Wake()
			if err != nil {
				wait = 100 * time.Millisecond
			}
			h.next = time.Now().Add(wait)
			h.mu.Unlock()
			if err == nil && res.More {
				wait = 0
				runtime.Gosched() // let callers in between two chunks
			}
		}
		timer.Reset(wait)
	}
}

func (h *host) configured() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.deleted && h.machine.Summary().Revision != 0
}

func (h *host) delete(force bool) error {
	h.mu.Lock()
	if n := h.machine.Summary().Waiting; n > 0 && !force {
		h.mu.Unlock()
		return fmt.Errorf("%w: %d; close the room and let it drain, or use force", room.ErrWaiters, n)
	}
	h.deleted = true
	h.mu.Unlock()
	h.stop()
	h.wg.Wait()
	return h.journal.Close()
}

// close writes a snapshot, so that the next start is quick, and frees the folder.
func (h *host) close() error {
	h.stop()
	h.wg.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if end := h.journal.End(); h.journal.Err() == nil && end > h.snapshot {
		if err := h.journal.Sync(context.Background(), end); err == nil {
			if err := h.journal.Snapshot(context.Background(), end, h.machine.Save); err != nil {
				h.engine.log.Warn("no snapshot at the end; the next start takes longer", "room", h.id, "err", err)
			}
		}
	}
	err := h.journal.Close()
	if errors.Is(err, journal.ErrClosed) {
		return nil
	}
	return err
}
