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
	epoch   uint64          // of all its events
	ctx     context.Context // ends when the room is closed or deleted
	stop    context.CancelFunc
	wg      sync.WaitGroup
	again   chan struct{} // wakes the ticker before its time

	mu      sync.Mutex // held to step the machine and to append what it did
	machine *room.Machine
	buf     []byte
	deleted bool
	next    time.Time // when the ticker means to wake
	last    time.Time // of the last step; zero: none yet
	index   logIndex

	outMu     sync.Mutex // held to show events; taken after mu
	pending   []batch    // made, not yet durable
	followers map[*follow]struct{}

	opened  time.Time
	readers map[string]room.Cursor // what they have read; the log is kept behind it; under mu

	snapshot     journal.Pos // of the last snapshot; the keeper's own
	snapshotSize int64
}

// outage is a time without a step that only an outage explains, as ticks come each second: the
// disk took nothing, or the process stood still. Nobody was heard meanwhile.
const outage = 5 * time.Second

// batch is what one record of the journal holds.
type batch struct {
	pos    journal.Pos
	events []room.Event
}

func (e *Engine) openHost(id string) (*host, error) {
	h := &host{engine: e, id: id, opened: time.Now(), again: make(chan struct{}, 1), followers: map[*follow]struct{}{}}
	h.ctx, h.stop = context.WithCancel(e.ctx)
	j, err := journal.Open(filepath.Join(e.dir, "rooms", id), journal.Options{
		FS: e.opts.FS, Logger: e.log.With("room", id), NoSync: e.opts.NoSync, OnDurable: h.durable,
		SegmentBytes: e.opts.SegmentBytes, Now: func() time.Time { return time.UnixMicro(e.now()) },
	})
	if err != nil {
		h.stop()
		return nil, err
	}
	h.journal = j
	if h.machine, h.snapshot, _, err = restore(j, h.index.note); err != nil {
		h.stop()
		j.Close()
		return nil, err
	}
	if last, ok := e.last[id]; ok {
		h.machine.Succeed(last.epoch, last.seq)
	}
	h.machine.Recover()
	h.epoch = h.machine.Epoch
	h.fitSegments(h.machine.Summary().Config.Log)
	h.wg.Go(h.tick)
	h.wg.Go(h.keepLog)
	return h, nil
}

// restore makes a machine from the latest snapshot and the log after it. It returns the
// snapshot's position and the position reached. note is told the last event of each record.
func restore(j *journal.Journal, note func(last room.Cursor, pos journal.Pos)) (m *room.Machine, snapshot, end journal.Pos, err error) {
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
	end, err = j.Replay(snapshot, func(pos journal.Pos, rec []byte) error {
		if err := decode(rec, m.Apply); err != nil {
			return err
		}
		note(m.Cursor, pos)
		return nil
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
	if errors.Is(res.Err, room.ErrNotFound) { // it has a folder and was never configured
		return room.Result{}, fmt.Errorf("%w: %s", room.ErrNotFound, h.id)
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
	now := time.Now()
	if !h.last.IsZero() && now.Sub(h.last) > outage {
		h.engine.log.Warn("the room stood still; everybody has a full grace again", "room", h.id, "for", now.Sub(h.last))
		h.machine.Recover()
	}
	h.last = now
	res := h.machine.Step(cmd, h.engine.now())
	end, err := h.record(res.Events)
	res.Events = nil
	if cmd.Op == room.OpConfigure {
		h.fitSegments(h.machine.Summary().Config.Log)
	}
	if err != nil {
		return room.Result{}, 0, err
	}
	if next := now.Add(h.machine.Wake()); next.Before(h.next.Add(-time.Millisecond)) {
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
	last := events[len(events)-1]
	h.index.note(room.Cursor{Epoch: last.Epoch, N: last.N}, pos)
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

// delete stops the room for good and returns its last epoch and seq.
func (h *host) delete(force bool) (tomb, error) {
	h.mu.Lock()
	if h.deleted {
		h.mu.Unlock()
		return tomb{}, fmt.Errorf("%w: %s", room.ErrNotFound, h.id)
	}
	if n := h.machine.Summary().Waiting; n > 0 && !force {
		h.mu.Unlock()
		return tomb{}, fmt.Errorf("%w: %d; close the room and let it drain, or use force", room.ErrWaiters, n)
	}
	h.deleted = true
	last := tomb{h.epoch, h.machine.Summary().LastSeq}
	h.mu.Unlock()
	h.stop()
	h.wg.Wait()
	if err := h.journal.Close(); err != nil { // what it could not write is not wanted any more
		h.engine.log.Warn("a deleted room's log did not end in order", "room", h.id, "err", err)
	}
	return last, nil
}

const closeWait = 10 * time.Second

// close writes a snapshot, so that the next start is quick, and frees the folder.
func (h *host) close() error {
	h.stop()
	h.wg.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeWait) // a sick disk keeps nobody
	defer cancel()
	if end := h.journal.End(); h.journal.Err() == nil && end > h.snapshot {
		if err := h.journal.Sync(ctx, end); err == nil {
			if err := h.journal.Snapshot(ctx, end, h.machine.Save); err != nil {
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
