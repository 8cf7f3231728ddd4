package memory

import (
	"context"
	"errors"
	"fmt"
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
	// SegmentBytes is how long a file of the log grows; default 64 MiB, less for small logs.
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
	stop context.CancelFunc
	ctx  context.Context
	wg   sync.WaitGroup

	mu     sync.Mutex
	hosts  map[string]*host
	closed bool
}

var _ room.Store = (*Engine)(nil)

// Open brings back every room in dir, which is made if it does not exist. Errors are those of
// journal.Open, with their mends.
func Open(dir string, opts Options) (*Engine, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.SnapshotBytes <= 0 {
		opts.SnapshotBytes = 64 << 20
	}
	e := &Engine{dir: dir, opts: opts, log: opts.Logger, now: opts.Now, hosts: map[string]*host{}}
	e.ctx, e.stop = context.WithCancel(context.Background())
	if e.now == nil {
		c := newClock()
		e.now = c.now
		e.wg.Go(func() { e.keepTime(c) })
	}
	roomsDir := filepath.Join(dir, "rooms")
	if err := os.MkdirAll(roomsDir, 0o700); err != nil {
		e.stop()
		return nil, fmt.Errorf("data folder %s cannot be made: %w; name another with engine.dir (--data)", dir, err)
	}
	entries, err := os.ReadDir(roomsDir)
	if err != nil {
		e.stop()
		return nil, fmt.Errorf("data folder %s cannot be read: %w; name another with engine.dir (--data)", dir, err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), deletedPrefix) { // a deletion was interrupted
			if err := os.RemoveAll(filepath.Join(roomsDir, entry.Name())); err != nil {
				e.log.Warn("a deleted room's folder is still there", "folder", entry.Name(), "err", err)
			}
			continue
		}
		if !entry.IsDir() {
			continue
		}
		h, err := e.openHost(entry.Name())
		if err != nil {
			e.Close()
			return nil, fmt.Errorf("room %s: %w", entry.Name(), err)
		}
		e.hosts[entry.Name()] = h
	}
	return e, nil
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

// Close makes everything durable and frees the folder.
func (e *Engine) Close() error {
	e.mu.Lock()
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
	h, err := e.host(id)
	if errors.Is(err, room.ErrNotFound) && cmd.Op == room.OpConfigure {
		h, err = e.create(id, cmd)
	}
	if err != nil {
		return room.Result{}, err
	}
	return h.do(ctx, cmd)
}

// create makes the folder of a room that is configured for the first time.
func (e *Engine) create(id string, cmd *room.Command) (*host, error) {
	if cmd.Config == nil || cmd.Config.ID != id {
		return nil, fmt.Errorf("%w: a configuration for room %q", room.ErrBadCommand, id)
	}
	if err := cmd.Config.Validate(); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, fmt.Errorf("%w: usher is stopping", room.ErrUnavailable)
	}
	if h := e.hosts[id]; h != nil {
		return h, nil
	}
	h, err := e.openHost(id)
	if err != nil {
		return nil, fmt.Errorf("%w: room %s: %w", room.ErrUnavailable, id, err)
	}
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

const deletedPrefix = ".deleted-"

// Delete implements room.Store.
func (e *Engine) Delete(_ context.Context, id string, force bool) error {
	h, err := e.host(id)
	if err != nil {
		return err
	}
	if err := h.delete(force); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.hosts, id)
	dir := filepath.Join(e.dir, "rooms", id)
	gone := filepath.Join(e.dir, "rooms", fmt.Sprintf("%s%s-%d", deletedPrefix, id, e.now()))
	if err := os.Rename(dir, gone); err != nil {
		return fmt.Errorf("room %s is stopped but its folder stays: %w; remove it by hand", id, err)
	}
	if err := os.RemoveAll(gone); err != nil {
		e.log.Warn("a deleted room's folder is still there", "folder", gone, "err", err)
	}
	return nil
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
