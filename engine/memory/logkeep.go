package memory

import (
	"context"
	"errors"
	"fmt"
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

func (x *logIndex) note(last room.Event, pos journal.Pos) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if k := len(x.marks); k == 0 || last.N >= x.marks[k-1].n+markEvery {
		x.marks = append(x.marks, mark{last.N, pos})
	}
}

// before returns the mark nearest before event n, at or behind floor.
func (x *logIndex) before(n uint64, floor journal.Pos) mark {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.marks) > 0 && x.marks[0].pos < floor {
		x.marks = x.marks[1:]
	}
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

// events reads the log. Marks exist only for what was written since the start; the rest is
// read from the beginning.
func (h *host) events(ctx context.Context, after room.Cursor, limit int) ([]room.Event, room.Cursor, error) {
	limit = min(max(limit, 1), 10_000)
	var events []room.Event
	first := true
	_, err := h.journal.Replay(h.index.before(after.N, h.journal.Floor()).pos, func(_ journal.Pos, rec []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return decode(rec, func(e *room.Event) error {
			at := room.Cursor{Epoch: e.Epoch, N: e.N}
			if first && after.N != 0 && e.Epoch == after.Epoch && e.N > after.N+1 {
				after = room.Cursor{Epoch: e.Epoch, N: e.N - 1}
				return room.ErrTrimmed
			}
			first = false
			if !after.Before(at) {
				return nil
			}
			if len(events) >= limit {
				return errEnough
			}
			events = append(events, *e)
			return nil
		})
	})
	var trimmed *journal.TrimmedError
	switch {
	case err == nil, errors.Is(err, errEnough):
	case errors.As(err, &trimmed): // deleted while we read
		return nil, after, room.ErrTrimmed
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
		every := min(h.engine.opts.SnapshotBytes, int64(keep.MaxBytes)/4) // Trim keeps two snapshots' worth
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
		if _, err := h.journal.Trim(journal.Keep{From: h.journal.Durable(), Since: since, MaxBytes: int64(keep.MaxBytes)}); err != nil {
			h.engine.log.Error("the log was not trimmed", "room", h.id, "err", err)
		}
	}
}

func (h *host) snapshotFromLog() error {
	m, _, end, err := restore(h.journal)
	if err != nil {
		return err
	}
	if err := h.journal.Snapshot(h.ctx, end, m.Save); err != nil {
		return err
	}
	h.snapshot = end
	return nil
}
