package memory

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/engine/memory/journal/disk"
	"github.com/ushergo/usher/lease"
)

// LeaseOptions of OpenLeases. The zero value is a good one.
type LeaseOptions struct {
	Logger *slog.Logger // default: nobody
	// NoSync answers before the disk has what was answered. For tests.
	NoSync bool
	// Now is the engine's clock, µs since 1970; default: a clock that steps of the machine's
	// clock do not disturb. For tests.
	Now func() int64
	// FS is the disk; default the real one. For tests.
	FS disk.FS
}

// Leases is a space of leases in the memory of one process, for all its workers. It implements lease.Store and
// lease.Watcher.
//
// On the disk, synced before the answer, are the resources with desired state, spec, owner, fence and cursor, and the
// floor of fences. Workers are not: after a restart those of before are dead, and what they owned is nobody's.
type Leases struct {
	book *leaseBook
	now  func() int64
	log  *slog.Logger
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex
	machine  *lease.Machine
	watchers map[*func()]struct{}
	closed   bool
}

var (
	_ lease.Store   = (*Leases)(nil)
	_ lease.Watcher = (*Leases)(nil)
)

// OpenLeases brings back a space of the data folder dir, or begins there; with dir "" nothing is kept. Errors are those of
// journal.Open, with their mends.
func OpenLeases(dir, space string, opts LeaseOptions) (*Leases, error) {
	if err := lease.CheckSpace(space); err != nil {
		return nil, err
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	folder := ""
	if dir != "" {
		folder = filepath.Join(dir, "leases", space)
	}
	s := &Leases{now: opts.Now, log: opts.Logger, machine: lease.NewMachine(0), watchers: map[*func()]struct{}{}}
	var err error
	s.book, err = openLeaseBook(folder, s.machine, journal.Options{FS: opts.FS, Logger: opts.Logger, NoSync: opts.NoSync, SegmentBytes: 8 << 20})
	if err != nil {
		return nil, fmt.Errorf("leases %s: %w", space, err)
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	var c *clock
	if s.now == nil {
		c = newClock()
		s.now = c.now
	}
	if c != nil || s.book.journal != nil {
		s.wg.Go(func() { s.keep(c) })
	}
	return s, nil
}

// kind of a step.
type leaseStep uint8

const (
	quick leaseStep = iota // nothing of it is on the disk: a full one hinders no beat
	kept                   // it is on the disk before it is answered
	told                   // the same, and those who watch are told
)

// step takes a step of the machine and waits until what f returned is on the disk. f returns nil where nothing changed.
func (s *Leases) step(ctx context.Context, bad error, kind leaseStep, f func(m *lease.Machine, now int64) *leasePage) error {
	if bad != nil {
		return bad
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", lease.ErrUnavailable, err)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return fmt.Errorf("%w: usher is stopping", lease.ErrUnavailable)
	}
	if kind != quick {
		if err := s.book.ready(); err != nil {
			s.mu.Unlock()
			return err
		}
	}
	page := f(s.machine, s.now())
	var pos journal.Pos
	var err error
	if page != nil {
		pos, err = s.book.write(page)
	}
	s.mu.Unlock()
	if err == nil {
		err = s.book.sync(ctx, pos)
	}
	if page != nil && kind == told {
		s.tell()
	}
	return err
}

// tell wakes those who watch.
func (s *Leases) tell() {
	s.mu.Lock()
	wakes := make([]func(), 0, len(s.watchers))
	for wake := range s.watchers {
		wakes = append(wakes, *wake)
	}
	s.mu.Unlock()
	for _, wake := range wakes {
		wake()
	}
}

// read looks at the machine.
func (s *Leases) read(ctx context.Context, bad error, f func(m *lease.Machine)) error {
	return s.step(ctx, bad, quick, func(m *lease.Machine, _ int64) *leasePage { f(m); return nil })
}

// Workers implements lease.Store.
func (s *Leases) Workers(ctx context.Context) (rows []lease.WorkerRow, err error) {
	err = s.read(ctx, nil, func(m *lease.Machine) { rows = m.Workers() })
	return rows, err
}

// Join implements lease.Store.
func (s *Leases) Join(ctx context.Context, j lease.Join) (out lease.Joined, err error) {
	err = s.step(ctx, j.Check(), quick, func(m *lease.Machine, now int64) *leasePage { out = m.Join(j, now); return nil })
	return out, err
}

// Beat implements lease.Store.
func (s *Leases) Beat(ctx context.Context, b lease.Beat) (ok bool, err error) {
	err = s.read(ctx, b.Check(), func(m *lease.Machine) { ok = m.Beat(b) })
	return ok, err
}

// Mark implements lease.Store.
func (s *Leases) Mark(ctx context.Context, k lease.Mark) (ok bool, err error) {
	err = s.read(ctx, k.Check(), func(m *lease.Machine) { ok = m.Mark(k) })
	return ok, err
}

// Leave implements lease.Store.
func (s *Leases) Leave(ctx context.Context, o lease.Owner) error {
	err := s.read(ctx, o.Check(), func(m *lease.Machine) { m.Leave(o) })
	if err == nil {
		s.tell()
	}
	return err
}

// Forget implements lease.Store.
func (s *Leases) Forget(ctx context.Context, o lease.Owner) error {
	return s.read(ctx, o.Check(), func(m *lease.Machine) { m.Forget(o) })
}

// Put implements lease.Store.
func (s *Leases) Put(ctx context.Context, p lease.Put) (row lease.Row, err error) {
	err = s.step(ctx, p.Check(), told, func(m *lease.Machine, _ int64) *leasePage {
		var before uint64
		for _, old := range m.Get([]string{p.ID}) {
			before = old.Rev
		}
		if row = m.Put(p); row.Rev == before {
			return nil
		}
		return &leasePage{Rows: []lease.Row{row}}
	})
	return row, err
}

// Delete implements lease.Store.
func (s *Leases) Delete(ctx context.Context, id string) (was bool, err error) {
	err = s.step(ctx, lease.CheckID(id), told, func(m *lease.Machine, _ int64) *leasePage {
		if was = m.Delete(id); !was {
			return nil
		}
		return &leasePage{Deleted: []string{id}, Floor: m.Floor()}
	})
	return was, err
}

// Get implements lease.Store.
func (s *Leases) Get(ctx context.Context, ids []string) (rows []lease.Row, err error) {
	err = s.read(ctx, lease.CheckIDs(ids), func(m *lease.Machine) { rows = m.Get(ids) })
	return rows, err
}

// List implements lease.Store.
func (s *Leases) List(ctx context.Context, after string, limit int) (rows []lease.Row, next string, err error) {
	err = s.read(ctx, lease.CheckList(after, limit), func(m *lease.Machine) { rows, next = m.List(after, limit) })
	return rows, next, err
}

// Owned implements lease.Store.
func (s *Leases) Owned(ctx context.Context, o lease.Owner) (list []lease.Brief, err error) {
	err = s.read(ctx, o.Check(), func(m *lease.Machine) { list = m.Owned(o) })
	return list, err
}

// Orphans implements lease.Store.
func (s *Leases) Orphans(ctx context.Context, living []lease.Owner, limit int) (list []lease.Brief, err error) {
	err = s.read(ctx, nil, func(m *lease.Machine) { list = m.Orphans(living, limit) })
	return list, err
}

// Take implements lease.Store.
func (s *Leases) Take(ctx context.Context, t lease.Take) (out lease.Taken, err error) {
	err = s.step(ctx, t.Check(), kept, func(m *lease.Machine, now int64) *leasePage {
		if out = m.Take(t, now); !out.OK {
			return nil
		}
		return &leasePage{Owners: []leaseOwner{ownerOf(out.Row)}}
	})
	return out, err
}

// Release implements lease.Store.
func (s *Leases) Release(ctx context.Context, r lease.Release) (ok bool, err error) {
	err = s.step(ctx, r.Check(), told, func(m *lease.Machine, _ int64) *leasePage {
		if ok = m.Release(r); !ok {
			return nil
		}
		return &leasePage{Owners: []leaseOwner{ownerOf(m.Get([]string{r.ID})[0])}}
	})
	return ok, err
}

// Flush implements lease.Store.
func (s *Leases) Flush(ctx context.Context, cs []lease.Cursor) (ok []bool, err error) {
	err = s.step(ctx, lease.CheckCursors(cs), kept, func(m *lease.Machine, _ int64) *leasePage {
		page := &leasePage{Cursors: map[string]string{}}
		ok = make([]bool, len(cs))
		for i, c := range cs {
			if ok[i] = m.Flush(c); ok[i] {
				page.Cursors[c.ID] = c.Cursor
			}
		}
		return page
	})
	return ok, err
}

// Watch implements lease.Watcher.
func (s *Leases) Watch(ctx context.Context, wake func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &wake
	s.watchers[w] = struct{}{}
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, w)
	})
	return nil
}

// Health implements lease.Store.
func (s *Leases) Health() error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return fmt.Errorf("%w: usher is stopping", lease.ErrUnavailable)
	}
	return s.book.ready()
}

// Close frees the folder.
func (s *Leases) Close() error {
	s.stop()
	s.wg.Wait()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return s.book.close()
}

// keep follows the clock, and keeps the log short.
func (s *Leases) keep(c *clock) {
	tick := time.NewTicker(slewEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case t := <-tick.C:
			if c != nil {
				c.follow(t, s.log)
			}
		}
		if err := s.tidy(); err != nil && s.ctx.Err() == nil {
			s.log.Error("the leases' log was not tidied; it grows until it is", "err", err)
		}
	}
}

// tidy makes a snapshot when the log has grown.
func (s *Leases) tidy() error {
	if !s.book.grown() {
		return nil
	}
	s.mu.Lock()
	page, pos := everything(s.machine), s.book.journal.End()
	s.mu.Unlock()
	return s.book.snap(s.ctx, page, pos)
}
