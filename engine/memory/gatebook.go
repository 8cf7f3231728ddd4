package memory

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/gate"
)

// gateBook is what gates keep on the disk: up to which fence they may have drawn, and the
// limits that somebody set. Permits, waiters and verdicts are not in it: they would make each
// acquire wait for the disk, and after a restart the transaction is the truth anyway
// (docs/gate.md).
type gateBook struct {
	journal *journal.Journal // nil: nothing is kept

	reserved atomic.Uint64 // no fence above it is given out
	reserve  sync.Mutex    // held to raise it
	ahead    atomic.Bool   // is being raised before it is needed

	mu       sync.Mutex
	page     gatePage
	snapshot journal.Pos
}

// gatePage is one record, and a snapshot of all: later records go over earlier ones.
type gatePage struct {
	Reserved uint64           `json:"reserved,omitempty"`
	Limits   map[string]int64 `json:"limits,omitempty"` // -1: deleted
}

const (
	// fenceBlock is how far fences are reserved: they follow the time in µs, so a minute.
	fenceBlock   = 60_000_000
	bookSnapshot = 1 << 20 // bytes of log between two snapshots
)

func openGateBook(dir string, opts journal.Options) (*gateBook, error) {
	b := &gateBook{page: gatePage{Limits: map[string]int64{}}}
	if dir == "" {
		b.reserved.Store(^uint64(0))
		return b, nil
	}
	j, err := journal.Open(dir, opts)
	if err != nil {
		return nil, err
	}
	b.journal = j
	if err := b.restore(); err != nil {
		_ = j.Close()
		return nil, err
	}
	b.reserved.Store(b.page.Reserved)
	return b, nil
}

func (b *gateBook) restore() error {
	pos, r, ok, err := b.journal.LatestSnapshot()
	if err != nil {
		return err
	}
	if ok {
		rec, err := io.ReadAll(r)
		if cerr := r.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
		if err := b.read(rec); err != nil {
			return err
		}
		b.snapshot = pos
	} else if f := b.journal.Floor(); f != 0 {
		return fmt.Errorf("the log begins at %d and there is no snapshot of what was before: restore the folder from a copy, or move it away to begin anew", f)
	}
	_, err = b.journal.Replay(b.snapshot, func(_ journal.Pos, rec []byte) error { return b.read(rec) })
	return err
}

func (b *gateBook) read(rec []byte) error {
	var p gatePage
	if err := json.Unmarshal(rec, &p); err != nil {
		return fmt.Errorf("a record that is none of ours: %w", err)
	}
	b.page.Reserved = max(b.page.Reserved, p.Reserved)
	for key, limit := range p.Limits {
		if limit < 0 {
			delete(b.page.Limits, key)
		} else {
			b.page.Limits[key] = limit
		}
	}
	return nil
}

// ready is asked before a machine takes a step that has to be written.
func (b *gateBook) ready() error {
	if b.journal == nil {
		return nil
	}
	if err := b.journal.Err(); err != nil {
		return fmt.Errorf("%w: %w", gate.ErrUnavailable, err)
	}
	if err := b.journal.Ready(); err != nil {
		return fmt.Errorf("%w: %w", gate.ErrUnavailable, err)
	}
	return nil
}

// write appends a page and returns where it must be durable before an answer rests on it. Called in the
// order of the changes.
func (b *gateBook) write(p gatePage) (journal.Pos, error) {
	if b.journal == nil {
		return 0, nil
	}
	rec, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	pos, err := b.journal.Append(rec)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", gate.ErrUnknown, err)
	}
	return pos, b.read(rec)
}

func (b *gateBook) sync(ctx context.Context, pos journal.Pos) error {
	if b.journal == nil || pos == 0 {
		return nil
	}
	if err := b.journal.Sync(ctx, pos); err != nil {
		return fmt.Errorf("%w: %w", gate.ErrUnknown, err)
	}
	return nil
}

// allow waits until fence may be given out. Under way it is almost always so already: half a
// block before the end the next one is reserved aside.
func (b *gateBook) allow(ctx context.Context, fence uint64) error {
	reserved := b.reserved.Load()
	if fence+fenceBlock/2 <= reserved || b.journal == nil {
		return nil
	}
	if fence <= reserved {
		if b.ahead.CompareAndSwap(false, true) {
			go func() {
				defer b.ahead.Store(false)
				_ = b.raise(context.WithoutCancel(ctx), fence+fenceBlock/2) // who needs it, hears of it
			}()
		}
		return nil
	}
	return b.raise(ctx, fence)
}

func (b *gateBook) raise(ctx context.Context, fence uint64) error {
	b.reserve.Lock()
	defer b.reserve.Unlock()
	if fence <= b.reserved.Load() {
		return nil
	}
	to := fence + fenceBlock
	pos, err := b.write(gatePage{Reserved: to})
	if err == nil {
		err = b.sync(ctx, pos)
	}
	if err != nil {
		return err
	}
	b.reserved.Store(to)
	return nil
}

// tidy makes a snapshot when the log has grown, and trims it.
func (b *gateBook) tidy(ctx context.Context) error {
	if b.journal == nil || b.journal.Durable()-b.snapshot < bookSnapshot {
		return nil
	}
	b.mu.Lock()
	pos := b.journal.End()
	page := gatePage{Reserved: b.page.Reserved, Limits: maps.Clone(b.page.Limits)}
	b.mu.Unlock()
	if err := b.journal.Sync(ctx, pos); err != nil {
		return err
	}
	err := b.journal.Snapshot(ctx, pos, func(w io.Writer) error { return json.NewEncoder(w).Encode(page) })
	if err != nil {
		return err
	}
	b.snapshot = pos
	_, err = b.journal.Trim(journal.Keep{From: pos})
	return err
}

func (b *gateBook) err() error {
	if b.journal == nil {
		return nil
	}
	return b.journal.Err()
}

func (b *gateBook) close() error {
	if b.journal == nil {
		return nil
	}
	return b.journal.Close()
}
