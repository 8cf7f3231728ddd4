package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/room"
)

// logIndex remembers where in the journal some events are, so that a reader need not start at
// the beginning. Safe for concurrent use.
type logIndex struct {
	mu    sync.Mutex
	marks []mark // rising
}

// mark says that the record that ends with event n ends at pos.
type mark struct {
	n   uint64
	pos journal.Pos
}

const markEvery = 1024 // events

// note takes a mark, unless there is one nearby. Readers note where they ended, so that one who
// reads page after page begins at the beginning but once.
func (x *logIndex) note(last room.Cursor, pos journal.Pos) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := len(x.marks)
	if i > 0 && x.marks[i-1].n >= last.N { // a reader
		i, _ = slices.BinarySearchFunc(x.marks, last.N, func(m mark, n uint64) int { return cmp.Compare(m.n, n) })
	}
	if i > 0 && last.N < x.marks[i-1].n+markEvery || i < len(x.marks) && last.N+markEvery > x.marks[i].n {
		return
	}
	x.marks = slices.Insert(x.marks, i, mark{last.N, pos})
}

// trim forgets marks before floor.
func (x *logIndex) trim(floor journal.Pos) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.marks) > 0 && x.marks[0].pos < floor {
		x.marks = x.marks[1:]
	}
}

// before returns the mark nearest before event n, at or behind floor.
func (x *logIndex) before(n uint64, floor journal.Pos) mark {
	x.trim(floor)
	x.mu.Lock()
	defer x.mu.Unlock()
	best := mark{0, floor}
	for lo, hi := 0, len(x.marks); lo < hi; {
		if mid := (lo + hi) / 2; x.marks[mid].n <= n {
			best, lo = x.marks[mid], mid+1
		} else {
			hi = mid
		}
	}
	return best
}

var errEnough = errors.New("enough")

// events reads the log. The zero cursor reads from the oldest event kept.
func (h *host) events(ctx context.Context, after room.Cursor, limit int) ([]room.Event, room.Cursor, error) {
	limit, asked := min(max(limit, 1), 10_000), after
	if h.engine.opts.NoSync {
		if err := h.written(ctx); err != nil {
			return nil, after, err
		}
	}
	var events []room.Event
	first, zero := true, after == room.Cursor{}
	if after.Epoch < h.epoch && !zero { // of a deleted room of this name: all of this one is new
		after = room.Cursor{Epoch: h.epoch}
	}
	var read room.Cursor
	_, err := h.journal.Replay(h.index.before(after.N, h.journal.Floor()).pos, func(pos journal.Pos, rec []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		defer func() {
			if read.N != 0 {
				h.index.note(read, pos)
			}
		}()
		read.N = 0
		return decode(rec, func(e *room.Event) error {
			at := room.Cursor{Epoch: e.Epoch, N: e.N}
			if first && !zero && e.Epoch == after.Epoch && e.N > after.N+1 {
				after = room.Cursor{Epoch: e.Epoch, N: e.N - 1}
				return room.ErrTrimmed
			}
			first = false
			if !after.Before(at) {
				return nil
			}
			if len(events) >= limit {
				read.N = 0 // not all of this record
				return errEnough
			}
			events = append(events, *e)
			read = at
			return nil
		})
	})
	var trimmed *journal.TrimmedError
	switch {
	case err == nil, errors.Is(err, errEnough):
	case errors.As(err, &trimmed): // deleted while we read, which may or may not be what was asked for
		return h.events(ctx, asked, limit)
	case errors.Is(err, room.ErrTrimmed):
		return nil, after, room.ErrTrimmed
	default:
		return nil, after, fmt.Errorf("%w: %w", room.ErrUnavailable, err)
	}
	if n := len(events); n > 0 {
		after = room.Cursor{Epoch: events[n-1].Epoch, N: events[n-1].N}
	}
	return events, after, nil
}

// written waits until the file has all that was appended: without syncs nobody else does.
func (h *host) written(ctx context.Context) error {
	for end := h.journal.End(); h.journal.Durable() < end; {
		if err := h.journal.Err(); err != nil {
			return fmt.Errorf("%w: %w", room.ErrUnavailable, err)
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", room.ErrUnavailable, ctx.Err())
		case <-h.ctx.Done():
			return nil // closed; Replay says so
		}
	}
	return nil
}

const keepEvery = time.Second

// keepLog snapshots the room when its log has grown, and trims the log. The snapshot is made
// from the files alone, by a second machine, so that the living one never waits for it, and so
// that files which cannot be read are found out while they still can be mended.
func (h *host) keepLog() {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-h.ctx.Done():
			return
		case <-tick.C:
		}
		h.mu.Lock()
		keep := h.machine.Summary().Config.Log
		h.mu.Unlock()
		// Trim keeps two snapshots' worth. A log may be as long as a snapshot in any case: more
		// snapshots would be more to write than the log itself.
		every := max(min(h.engine.opts.SnapshotBytes, int64(keep.MaxBytes)/4), h.snapshotSize)
		grown := int64(h.journal.Durable()-h.snapshot) >= every
		if !grown && n%60 != 0 {
			continue
		}
		if grown {
			if err := h.snapshotFromLog(); err != nil {
				h.engine.log.Error("no snapshot; the log grows until there is one", "room", h.id, "err", err)
				continue
			}
		}
		since := time.UnixMicro(h.engine.now()).Add(-time.Duration(keep.Retain))
		if _, err := h.journal.Trim(journal.Keep{From: h.slowest(), Since: since, MaxBytes: int64(keep.MaxBytes)}); err != nil {
			h.engine.log.Error("the log was not trimmed", "room", h.id, "err", err)
		}
		h.index.trim(h.journal.Floor())
	}
}

// keepFirst is how long nothing is let go of after a start but by log.max_bytes: readers have not said yet what they need.
const keepFirst = time.Minute

// slowest is where the slowest of those who said so reads on.
func (h *host) slowest() journal.Pos {
	if time.Since(h.opened) < keepFirst {
		return h.journal.Floor()
	}
	from := h.journal.Durable()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, after := range h.readers {
		n := after.N
		if after.Epoch < h.epoch {
			n = 0
		}
		from = min(from, h.index.before(n, h.journal.Floor()).pos)
	}
	return from
}

// KeepFor implements room.Keeper.
func (e *Engine) KeepFor(_ context.Context, id, reader string, after room.Cursor) error {
	h, err := e.host(id)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.readers == nil {
		h.readers = map[string]room.Cursor{}
	}
	h.readers[reader] = after
	return nil
}

// LetGo implements room.Keeper.
func (e *Engine) LetGo(_ context.Context, id, reader string) error {
	h, err := e.host(id)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.readers, reader)
	return nil
}

// fitSegments keeps the files of a small log small, since only whole files are deleted.
func (h *host) fitSegments(keep room.Log) {
	if max := int64(keep.MaxBytes); max > 0 && h.engine.opts.SegmentBytes <= 0 {
		h.journal.SetSegmentBytes(min(max/8, 64<<20))
	}
}

func (h *host) snapshotFromLog() error {
	m, _, end, err := restore(h.journal, func(room.Cursor, journal.Pos) {})
	if err != nil {
		return err
	}
	m.Forget()
	var size counter
	err = h.journal.Snapshot(h.ctx, end, func(w io.Writer) error {
		size = 0
		return m.Save(io.MultiWriter(w, &size))
	})
	if err != nil {
		return err
	}
	h.snapshot, h.snapshotSize = end, int64(size)
	return nil
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
