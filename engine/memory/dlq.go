package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/engine/memory/journal/disk"
	"github.com/ushergo/usher/relay"
)

// DeadLetterOptions of OpenDeadLetters. The zero value is a good one.
type DeadLetterOptions struct {
	Logger *slog.Logger // default: nobody
	// NoSync answers before the disk has what was answered. For tests.
	NoSync bool
	// FS is the disk; default the real one. For tests.
	FS disk.FS
}

// DeadLetters keeps dead letters in memory, and on the disk before it answers. It implements relay.DeadLetters.
type DeadLetters struct {
	log *slog.Logger

	mu       sync.Mutex
	journal  *journal.Journal // nil: nothing is kept
	snapshot journal.Pos
	size     int64 // of all letters, at the last snapshot
	relays   map[string]*letters
	seq      uint64
	closed   bool

	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
}

var _ relay.DeadLetters = (*DeadLetters)(nil)

// letters are one relay's.
type letters struct {
	byID  map[string]*relay.Letter
	order []*relay.Letter // by Seq; of dropped ones an empty letter stands until there are many
	gone  int
	bytes int64
}

// OpenDeadLetters brings back those of the data folder dir, or begins there; with dir "" nothing is kept. Errors are those
// of journal.Open, with their mends.
func OpenDeadLetters(dir string, opts DeadLetterOptions) (*DeadLetters, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	d := &DeadLetters{log: opts.Logger, relays: map[string]*letters{}}
	d.ctx, d.stop = context.WithCancel(context.Background())
	if dir == "" {
		return d, nil
	}
	j, err := journal.Open(filepath.Join(dir, "dlq"), journal.Options{FS: opts.FS, Logger: opts.Logger, NoSync: opts.NoSync, SegmentBytes: 8 << 20})
	if err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	d.journal = j
	if err := d.restore(); err != nil {
		_ = j.Close()
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	d.wg.Go(d.keep)
	return d, nil
}

// change takes a step in memory and waits until the disk has it. f says what is written: nil, nothing.
func (d *DeadLetters) change(ctx context.Context, f func() (*dlqPage, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	pos, err := func() (journal.Pos, error) {
		defer d.mu.Unlock()
		if d.closed {
			return 0, errors.New("dead letters: usher is stopping")
		}
		if d.journal != nil { // memory takes no step back: whether the disk takes it is asked first
			if err := errors.Join(d.journal.Err(), d.journal.Ready()); err != nil {
				return 0, err
			}
		}
		page, err := f()
		if err != nil || page == nil || d.journal == nil {
			return 0, err
		}
		return d.append(page)
	}()
	if err != nil || pos == 0 {
		return err
	}
	return d.journal.Sync(ctx, pos)
}

func (d *DeadLetters) of(id string) *letters {
	r := d.relays[id]
	if r == nil {
		r = &letters{byID: map[string]*relay.Letter{}}
		d.relays[id] = r
	}
	return r
}

// Put implements relay.DeadLetters.
func (d *DeadLetters) Put(ctx context.Context, l relay.Letter, b relay.DeadBounds) error {
	b = b.WithDefaults()
	return d.change(ctx, func() (*dlqPage, error) {
		r := d.of(l.Relay)
		if old := r.byID[l.Event.ID]; old != nil {
			l.Seq, l.First = old.Seq, old.First
		} else if len(r.byID) >= b.Letters || r.bytes+l.Size() > b.Bytes {
			return nil, fmt.Errorf("%w: %d letters of at most %d, %d bytes of at most %d; bring them back or drop them: usher dlq", relay.ErrDeadFull,
				len(r.byID), b.Letters, r.bytes, b.Bytes)
		} else {
			d.seq++
			l.Seq = d.seq
		}
		r.put(&l)
		return &dlqPage{Put: &l}, nil
	})
}

func (r *letters) put(l *relay.Letter) {
	if old := r.byID[l.Event.ID]; old != nil {
		r.bytes += l.Size() - old.Size()
		*old = *l
		return
	}
	r.byID[l.Event.ID] = l
	r.order = append(r.order, l)
	r.bytes += l.Size()
}

func (r *letters) drop(id string) bool {
	l := r.byID[id]
	if l == nil {
		return false
	}
	delete(r.byID, id)
	r.bytes -= l.Size()
	i, _ := slices.BinarySearchFunc(r.order, l.Seq, func(o *relay.Letter, seq uint64) int { return cmp.Compare(o.Seq, seq) })
	r.order[i] = &relay.Letter{Seq: l.Seq} // a gap, with nothing of the letter
	if r.gone++; r.gone > len(r.order)/2 {
		r.order = slices.DeleteFunc(r.order, func(o *relay.Letter) bool { return r.byID[o.Event.ID] != o })
		r.gone = 0
	}
	return true
}

// List implements relay.DeadLetters.
func (d *DeadLetters) List(_ context.Context, id string, after uint64, limit int) ([]relay.Letter, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.relays[id]
	if r == nil {
		return nil, nil
	}
	i, _ := slices.BinarySearchFunc(r.order, after+1, func(o *relay.Letter, seq uint64) int { return cmp.Compare(o.Seq, seq) })
	var list []relay.Letter
	for ; i < len(r.order) && len(list) < limit; i++ {
		if l := r.order[i]; r.byID[l.Event.ID] == l {
			list = append(list, *l)
		}
	}
	return list, nil
}

// Get implements relay.DeadLetters.
func (d *DeadLetters) Get(_ context.Context, id, event string) (relay.Letter, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.relays[id]; r != nil && r.byID[event] != nil {
		return *r.byID[event], nil
	}
	return relay.Letter{}, fmt.Errorf("%w: %s", relay.ErrNoLetter, event)
}

// Drop implements relay.DeadLetters.
func (d *DeadLetters) Drop(ctx context.Context, id string, events ...string) (n int, err error) {
	err = d.change(ctx, func() (*dlqPage, error) {
		r := d.relays[id]
		if r == nil {
			return nil, nil
		}
		var gone []string
		for _, event := range events {
			if r.drop(event) {
				gone = append(gone, event)
			}
		}
		if n = len(gone); n == 0 {
			return nil, nil
		}
		return &dlqPage{Relay: id, Dropped: gone}, nil
	})
	return n, err
}

// Expire implements relay.DeadLetters.
func (d *DeadLetters) Expire(ctx context.Context, id string, before time.Time) (int, error) {
	d.mu.Lock()
	var old []string
	if r := d.relays[id]; r != nil {
		for event, l := range r.byID {
			if l.Last.Before(before) {
				old = append(old, event)
			}
		}
	}
	d.mu.Unlock()
	if len(old) == 0 {
		return 0, nil
	}
	return d.Drop(ctx, id, old...)
}

// Stats implements relay.DeadLetters.
func (d *DeadLetters) Stats(_ context.Context, id string) (s relay.DeadStats, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.relays[id]
	if r == nil {
		return s, nil
	}
	s.Letters, s.Bytes = len(r.byID), r.bytes
	for _, l := range r.byID {
		if s.Oldest.IsZero() || l.First.Before(s.Oldest) {
			s.Oldest = l.First
		}
	}
	return s, nil
}
