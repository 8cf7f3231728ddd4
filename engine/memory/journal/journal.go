package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/engine/memory/journal/disk"
)

// Options say how a journal works. The zero value is a good one.
type Options struct {
	// FS is the disk; default disk.OS().
	FS disk.FS

	// Logger hears of repairs, stalls and their end. Default: nobody.
	Logger *slog.Logger

	// SegmentBytes is how long a segment grows before the next is begun; default
	// 64 MiB. Only whole segments are trimmed, so a log is longer than asked for by up
	// to this much. A group is never split, so a segment may be longer by a group.
	SegmentBytes int64

	// MaxPending bounds the bytes in memory that wait for the disk; default 64 MiB.
	// Beyond it Append returns ErrFull.
	MaxPending int64

	// OnDurable is called after each sync, in order and by one goroutine, before those
	// who wait in Sync are released. It must be quick and must not call Sync, Snapshot
	// or Close.
	OnDurable func(upto Pos)

	// NoSync never waits for the disk and never asks it to sync: for tests. A kill may
	// lose the latest records, a power loss may lose or damage all.
	NoSync bool

	// Now is the clock that stamps segments; default time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = disk.OS()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = 64 << 20
	}
	if o.MaxPending <= 0 {
		o.MaxPending = 64 << 20
	}
	if o.OnDurable == nil {
		o.OnDurable = func(Pos) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Journal is an open journal. All methods may be called concurrently.
type Journal struct {
	dir  string
	opts Options
	fs   disk.FS
	log  *slog.Logger
	id   uint64
	lock io.Closer

	durable atomic.Int64
	segMax  atomic.Int64 // how long a segment grows
	attempt atomic.Int64 // when the attempt under way began, since opened; 0: none is
	opened  time.Time
	stall   atomic.Pointer[StallError]
	stats   counters

	mu      sync.Mutex
	wake    sync.Cond // the committer waits here for something to do
	next    *group    // gathers; nil if empty
	flight  *group    // is being written; nil if none
	end     Pos
	spare   []byte // a buffer for the next group
	closing bool

	stop    chan struct{} // closed when closing begins
	stopped chan struct{} // closed when the committer has ended

	segMu    sync.RWMutex
	segments []segment // oldest first; the last one is written to
	floor    Pos       // of what is kept; segments[0] may be older while it is being deleted

	keepMu    sync.Mutex // held by what makes or deletes snapshots and deletes segments
	snapshots []Pos      // oldest first; read and changed under keepMu

	tail tail // the committer's alone
}

// A group is what one sync makes durable.
type group struct {
	start, end Pos
	buf        []byte
	records    uint64        // known once it is sealed; before that 0
	done       chan struct{} // closed when durable, or when err is set
	err        error
}

// Open opens the journal in dir, which is made if it does not exist, and repairs what
// an interrupted write left at its end. The caller then loads LatestSnapshot and
// Replays what follows it.
//
// Errors: *LockedError, *FolderError, *LayoutError, *CorruptError. After any of them dir
// is as it was, but for the cut tail.
func Open(dir string, opts Options) (*Journal, error) {
	opts = opts.withDefaults()
	j := &Journal{
		dir: dir, opts: opts, fs: opts.FS, log: opts.Logger.With("dir", dir),
		opened: time.Now(), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	j.wake.L = &j.mu
	j.segMax.Store(opts.SegmentBytes)
	if err := j.fs.MkdirAll(dir); err != nil {
		return nil, &FolderError{dir, err}
	}
	lock, err := j.fs.Lock(j.path("lock"))
	if err != nil {
		var held *disk.HeldError
		if errors.As(err, &held) {
			return nil, &LockedError{dir, held.PID}
		}
		return nil, &FolderError{dir, err}
	}
	j.lock = lock
	if err := j.recover(); err != nil {
		_ = lock.Close()
		return nil, err
	}
	go j.run()
	return j, nil
}

func (j *Journal) path(name string) string { return j.dir + "/" + name }

// Append adds a record and returns its position. It copies rec, never waits for the
// disk, and the record is not durable before Sync says so.
//
// Errors: ErrFull, ErrClosed, ErrRecordSize; nothing was appended then.
func (j *Journal) Append(rec []byte) (Pos, error) {
	if len(rec) == 0 || len(rec) > MaxRecord {
		return 0, ErrRecordSize
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.ready(); err != nil {
		return 0, err
	}
	g := j.next
	if g == nil {
		g = &group{start: j.end, buf: append(j.spare[:0], make([]byte, groupHeader)...), done: make(chan struct{})}
		j.spare = nil
		j.next = g
		j.wake.Signal()
	}
	g.buf = appendRecord(g.buf, rec)
	g.end = g.start + Pos(len(g.buf))
	j.end = g.end
	return g.end, nil
}

// Ready reports whether Append would take a record now: nil, ErrFull or ErrClosed. If
// all who append hold one lock, an Append right after a nil Ready can fail only because
// the journal is closed meanwhile; so a caller may ask before it changes its state.
func (j *Journal) Ready() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ready()
}

func (j *Journal) ready() error {
	if j.closing {
		return ErrClosed
	}
	if int64(j.end)-j.durable.Load() >= j.opts.MaxPending {
		return ErrFull
	}
	return nil
}

// Sync waits until everything up to pos is durable. Many callers share one sync.
//
// Errors: one that wraps ErrUnknown and either ctx's error or ErrClosed; ErrBeyondEnd
// if pos was never returned by Append.
func (j *Journal) Sync(ctx context.Context, pos Pos) error {
	if j.opts.NoSync {
		if pos > j.End() {
			return ErrBeyondEnd
		}
		return nil
	}
	return j.wait(ctx, pos)
}

func (j *Journal) wait(ctx context.Context, pos Pos) error {
	if Pos(j.durable.Load()) >= pos {
		return nil
	}
	j.mu.Lock()
	var g *group
	switch {
	case Pos(j.durable.Load()) >= pos: // before the groups: the committer ends one in this order
	case pos > j.end:
		j.mu.Unlock()
		return ErrBeyondEnd
	case j.flight != nil && pos <= j.flight.end:
		g = j.flight
	case j.next != nil && pos <= j.next.end:
		g = j.next
	default: // given up when the journal was closed
		j.mu.Unlock()
		return fmt.Errorf("%w: %w", ErrUnknown, ErrClosed)
	}
	j.mu.Unlock()
	if g == nil {
		return nil
	}
	select {
	case <-g.done:
		return g.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnknown, context.Cause(ctx))
	}
}

// SetSegmentBytes changes Options.SegmentBytes from now on.
func (j *Journal) SetSegmentBytes(n int64) { j.segMax.Store(max(n, 1)) }

// Durable returns the position up to which everything is durable.
func (j *Journal) Durable() Pos { return Pos(j.durable.Load()) }

// End returns the position of the last record appended.
func (j *Journal) End() Pos {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.end
}

// Floor returns the position of the oldest record kept.
func (j *Journal) Floor() Pos {
	j.segMu.RLock()
	defer j.segMu.RUnlock()
	return j.floor
}

// Err returns nil, or a *StallError while the disk does not take what is appended or has
// not answered for five seconds.
func (j *Journal) Err() error {
	if e := j.stall.Load(); e != nil {
		return e
	}
	if began := j.attempt.Load(); began != 0 {
		if silent := time.Since(j.opened) - time.Duration(began); silent > silence {
			return &StallError{
				Dir: j.dir, Err: fmt.Errorf("the disk has not answered for %v", silent.Round(time.Second)),
				Since: j.opts.Now().Add(-silent), Pending: int64(j.End() - j.Durable()),
			}
		}
	}
	return nil
}

// Close makes durable what was appended and frees the folder. If the disk does not take
// it, Close does not wait for better times: it returns the *StallError, and whoever waits in
// Sync is told that the outcome is unknown. A second Close does nothing.
func (j *Journal) Close() error {
	j.mu.Lock()
	if j.closing {
		j.mu.Unlock()
		<-j.stopped
		return nil
	}
	j.closing = true
	close(j.stop)
	j.wake.Signal()
	j.mu.Unlock()
	<-j.stopped
	j.keepMu.Lock() // a snapshot or trim under way ends first
	defer j.keepMu.Unlock()
	err := j.Err()
	if j.tail.file != nil {
		if cerr := j.tail.file.Close(); err == nil {
			err = cerr
		}
	}
	if lerr := j.lock.Close(); err == nil {
		err = lerr
	}
	return err
}

// Stats are counts since Open, and sizes now.
type Stats struct {
	Records, Groups uint64        // made durable
	SyncTime        time.Duration // spent in writing and syncing them, in all
	Failures        uint64        // attempts that failed
	Pending         int64         // bytes that wait for the disk
	Segments        int
	Bytes           int64 // kept in segments
	Floor, End      Pos
}

type counters struct {
	records, groups, failures atomic.Uint64
	syncTime                  atomic.Int64
}

// Stats returns figures for metrics.
func (j *Journal) Stats() Stats {
	durable, end := j.Durable(), j.End()
	j.segMu.RLock()
	defer j.segMu.RUnlock()
	floor := j.floor
	return Stats{
		Records: j.stats.records.Load(), Groups: j.stats.groups.Load(), Failures: j.stats.failures.Load(),
		SyncTime: time.Duration(j.stats.syncTime.Load()),
		Pending:  int64(end - durable),
		Segments: len(j.segments), Bytes: int64(durable-floor) + int64(len(j.segments))*segmentHeader,
		Floor: floor, End: end,
	}
}
