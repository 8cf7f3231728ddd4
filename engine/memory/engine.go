package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/engine/memory/journal/disk"
	"github.com/ushergo/usher/room"
)

// Options of Open. The zero value is a good one.
type Options struct {
	Logger *slog.Logger // default: nobody
	// NoSync answers before the disk has what was answered. For tests: a kill may lose the
	// latest answers, a power loss may damage all.
	NoSync bool
	// SnapshotBytes is how much log is written between two snapshots; default 64 MiB. More
	// makes starts slower, less makes the disk busier.
	SnapshotBytes int64
	// SegmentBytes is how long a file of the log grows; default 64 MiB, or an eighth of log.max_bytes.
	SegmentBytes int64
	// OnSync is called when an answer begins to wait for the disk, and what it returns when
	// the wait is over; for traces. Default: nobody.
	OnSync func(ctx context.Context, room string) func(error)
	// Now is the engine's clock, µs since 1970; default: a clock that steps of the machine's
	// clock do not disturb. For tests.
	Now func() int64
	// FS is the disk; default the real one. For tests.
	FS disk.FS
}

// Engine keeps rooms in memory and on the disk. It implements room.Store.
type Engine struct {
	dir  string
	opts Options
	log  *slog.Logger
	now  func() int64
	lock io.Closer
	stop context.CancelFunc
	ctx  context.Context
	wg   sync.WaitGroup

	making sync.Mutex      // held while a room is made or deleted; taken before mu
	last   map[string]tomb // of deleted rooms; under making

	mu     sync.Mutex
	hosts  map[string]*host
	closed bool
}

// Open brings back every room in dir, which is made if it does not exist. Errors are those of
// journal.Open, with their mends.
func Open(dir string, opts Options) (*Engine, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.SnapshotBytes <= 0 {
		opts.SnapshotBytes = 64 << 20
	}
	e := &Engine{dir: dir, opts: opts, log: opts.Logger, now: opts.Now, hosts: map[string]*host{}, last: map[string]tomb{}}
	e.ctx, e.stop = context.WithCancel(context.Background())
	if err := e.openDir(); err != nil {
		_ = e.Close()
		return nil, err
	}
	return e, nil
}

// openDir takes the folder and brings back what is in it.
func (e *Engine) openDir() error {
	if e.now == nil {
		c := newClock()
		e.now = c.now
		e.wg.Go(func() { e.keepTime(c) })
	}
	roomsDir := filepath.Join(e.dir, "rooms")
	if err := disk.OS().MkdirAll(roomsDir); err != nil {
		return fmt.Errorf("data folder %s cannot be made: %w; name another with engine.dir (--data)", e.dir, err)
	}
	fs := e.opts.FS
	if fs == nil {
		fs = disk.OS()
	}
	lock, err := fs.Lock(filepath.Join(e.dir, "lock"))
	var held *disk.HeldError
	switch {
	case errors.As(err, &held):
		return &journal.LockedError{Dir: e.dir, PID: held.PID}
	case err != nil:
		return &journal.FolderError{Dir: e.dir, Err: err}
	}
	e.lock = lock
	entries, err := os.ReadDir(roomsDir)
	if err != nil {
		return fmt.Errorf("data folder %s cannot be read: %w; name another with engine.dir (--data)", e.dir, err)
	}
	e.buryAll(entries)
	for _, entry := range entries {
		id := entry.Name()
		if !entry.IsDir() || strings.HasPrefix(id, deletedPrefix) {
			continue
		}
		if !room.ValidID(id) {
			e.log.Warn("a folder among the rooms is none, and is left alone", "folder", filepath.Join(roomsDir, id))
			continue
		}
		h, err := e.openHost(id)
		if err != nil {
			return fmt.Errorf("room %s: %w", id, err)
		}
		e.hosts[id] = h
	}
	return nil
}

func (e *Engine) keepTime(c *clock) {
	tick := time.NewTicker(slewEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case t := <-tick.C:
			c.follow(t, e.log)
		}
	}
}

// Close makes everything durable and frees the folder. A disk that does not take it delays Close for
// some seconds and is an error. A second Close does nothing.
func (e *Engine) Close() error {
	e.making.Lock()
	defer e.making.Unlock()
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	hosts := make([]*host, 0, len(e.hosts))
	for _, h := range e.hosts {
		hosts = append(hosts, h)
	}
	e.mu.Unlock()
	e.stop()
	e.wg.Wait()
	var errs []error
	for _, h := range hosts {
		errs = append(errs, h.close())
	}
	if e.lock != nil {
		errs = append(errs, e.lock.Close())
	}
	return errors.Join(errs...)
}

func (e *Engine) host(id string) (*host, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, fmt.Errorf("%w: usher is stopping", room.ErrUnavailable)
	}
	if h := e.hosts[id]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("%w: %s", room.ErrNotFound, id)
}

// Do implements room.Store.
func (e *Engine) Do(ctx context.Context, id string, cmd *room.Command) (room.Result, error) {
	for {
		h, err := e.host(id)
		if errors.Is(err, room.ErrNotFound) && cmd.Op == room.OpConfigure {
			h, err = e.create(id, cmd)
		}
		if err != nil {
			return room.Result{}, err
		}
		res, err := h.do(ctx, cmd)
		if cmd.Op == room.OpConfigure && errors.Is(err, room.ErrNotFound) { // it is just being deleted
			e.settled()
			continue
		}
		return res, err
	}
}

// settled waits until the rooms that are being made or deleted are.
func (e *Engine) settled() {
	e.making.Lock()
	defer e.making.Unlock()
}

// create makes the folder of a room that is configured for the first time.
func (e *Engine) create(id string, cmd *room.Command) (*host, error) {
	if cmd.Config == nil || cmd.Config.ID != id {
		return nil, fmt.Errorf("%w: a configuration for room %q", room.ErrBadCommand, id)
	}
	if err := cmd.Config.Validate(); err != nil {
		return nil, err
	}
	e.making.Lock() // not mu: other rooms go on while the disk works
	defer e.making.Unlock()
	if h, err := e.host(id); !errors.Is(err, room.ErrNotFound) {
		return h, err
	}
	h, err := e.openHost(id)
	if err != nil {
		return nil, fmt.Errorf("%w: room %s: %w", room.ErrUnavailable, id, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hosts[id] = h
	return h, nil
}

// Follow implements room.Store.
func (e *Engine) Follow(ctx context.Context, id string, f room.Follower) error {
	h, err := e.host(id)
	if err != nil {
		return err
	}
	return h.follow(ctx, f)
}

// Events implements room.Store.
func (e *Engine) Events(ctx context.Context, id string, after room.Cursor, limit int) ([]room.Event, room.Cursor, error) {
	h, err := e.host(id)
	if err != nil {
		return nil, after, err
	}
	return h.events(ctx, after, limit)
}

// Rooms implements room.Store.
func (e *Engine) Rooms(context.Context) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ids := make([]string, 0, len(e.hosts))
	for id, h := range e.hosts {
		if h.configured() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Health implements room.Store.
func (e *Engine) Health() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("%w: usher is stopping", room.ErrUnavailable)
	}
	for id, h := range e.hosts {
		if err := h.journal.Err(); err != nil {
			return fmt.Errorf("%w: room %s: %w", room.ErrUnavailable, id, err)
		}
	}
	return nil
}

// Stats are figures of one room's log, for metrics.
func (e *Engine) Stats() map[string]journal.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	stats := make(map[string]journal.Stats, len(e.hosts))
	for id, h := range e.hosts {
		stats[id] = h.journal.Stats()
	}
	return stats
}
