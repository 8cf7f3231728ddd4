package journal

import (
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/ushergo/usher/engine/memory/journal/disk"
)

const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Second
	silence    = 5 * time.Second // a disk that is quiet for longer is reported
	keepBuffer = 4 << 20         // a buffer that grew beyond this is not used again
)

// tail is where the committer writes: the last segment.
type tail struct {
	file  disk.File
	start Pos
	// suspect: a sync or a write failed, so what the file holds beyond the durable
	// position is not known, whatever it shows to readers.
	suspect bool
}

// run is the committer.
func (j *Journal) run() {
	defer close(j.stopped)
	for {
		g := j.take()
		if g == nil {
			j.mark()
			return
		}
		err := j.persist(g)
		if err == nil {
			j.durable.Store(int64(g.end))
			j.opts.OnDurable(g.end)
		} else {
			g.err = fmt.Errorf("%w: %w", ErrUnknown, ErrClosed)
		}
		j.mu.Lock()
		j.flight = nil
		if cap(g.buf) <= keepBuffer && j.spare == nil {
			j.spare = g.buf
		}
		if err != nil && j.next != nil {
			// Closed on a disk that fails. A later group must not be there without this one.
			j.next.err = g.err
			close(j.next.done)
			j.next = nil
		}
		j.mu.Unlock()
		close(g.done)
		// Let those just released append again before the next group is taken. Else it
		// would be the first of them alone, and the others would wait two syncs: half the
		// throughput at 512 callers.
		runtime.Gosched()
	}
}

// mark ends the log with an empty group, if anything was written. Damage to the last
// records can then not pass for an interrupted write when the folder is next opened.
func (j *Journal) mark() {
	if j.stats.groups.Load() == 0 || j.Err() != nil {
		return
	}
	end := j.Durable()
	g := &group{start: end, end: end + groupHeader, buf: make([]byte, groupHeader)}
	if err := j.commit(g); err != nil {
		j.log.Warn("the log was not ended in order; its records are safe", slog.Any("error", err))
		return
	}
	j.mu.Lock()
	j.end = g.end
	j.mu.Unlock()
	j.durable.Store(int64(g.end))
}

// take waits for a group; nil means that the journal closes and nothing is left.
func (j *Journal) take() *group {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.next == nil && !j.closing {
		j.wake.Wait()
	}
	j.flight, j.next = j.next, nil
	return j.flight
}

// persist writes and syncs a group, and again until it is durable. It gives up only when
// the journal is closed.
func (j *Journal) persist(g *group) error {
	wait := firstRetry
	for {
		began := time.Now()
		err := j.commit(g)
		if err == nil {
			j.stats.groups.Add(1)
			j.stats.records.Add(g.records)
			j.stats.syncTime.Add(int64(time.Since(began)))
			j.healed()
			return nil
		}
		j.stalled(err)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-j.stop:
			timer.Stop()
			if err = j.commit(g); err == nil {
				j.healed()
			}
			return err
		}
		wait = min(2*wait, lastRetry)
	}
}

// commit is one attempt to make a group durable.
func (j *Journal) commit(g *group) error {
	j.attempt.Store(int64(time.Since(j.opened)) | 1) // never 0
	defer j.attempt.Store(0)
	if g.records == 0 { // another attempt writes the same bytes
		g.records = seal(j.id, g.start, g.buf)
	}
	t := &j.tail
	if t.suspect || t.file == nil || int64(g.start-t.start) >= j.segMax.Load() {
		if err := j.beginSegment(g.start); err != nil {
			return err
		}
	}
	if _, err := t.file.WriteAt(g.buf, int64(g.start-t.start)+segmentHeader); err != nil {
		// After ENOSPC the same bytes go to the same place once there is room. Of other
		// errors nothing is known.
		t.suspect = !disk.IsFull(err)
		return err
	}
	if j.opts.NoSync {
		return nil
	}
	if err := t.file.Sync(); err != nil {
		t.suspect = true
		return err
	}
	return nil
}

// beginSegment makes a new segment that begins at start and writes there from now on. If
// it fails the old one is still the tail.
func (j *Journal) beginSegment(start Pos) error {
	s := segment{start: start, created: j.opts.Now().UnixMilli()}
	f, err := j.createSegment(s)
	if err != nil {
		return err
	}
	if j.tail.file != nil {
		_ = j.tail.file.Close() // all that counts in it is synced
	}
	j.tail = tail{file: f, start: start}
	j.segMu.Lock()
	defer j.segMu.Unlock()
	if n := len(j.segments); n > 0 && j.segments[n-1].start == start {
		// Nothing in the old one was ever durable, and the new one has taken its name.
		j.segments[n-1] = s
	} else {
		j.segments = append(j.segments, s)
	}
	return nil
}

func (j *Journal) stalled(err error) {
	j.stats.failures.Add(1)
	now := j.opts.Now()
	e := &StallError{Dir: j.dir, Err: err, Since: now, Pending: int64(j.End() - j.Durable())}
	e.Free, _ = j.fs.Free(j.dir)
	old := j.stall.Load()
	if old != nil {
		e.Since = old.Since
	}
	j.stall.Store(e)
	if old == nil || old.Err.Error() != err.Error() { // not once a second for hours
		j.log.Error("nothing becomes durable", slog.Any("error", e))
	}
}

func (j *Journal) healed() {
	if e := j.stall.Load(); e != nil {
		j.stall.Store(nil)
		j.log.Info("the disk takes records again", slog.Duration("after", j.opts.Now().Sub(e.Since)))
	}
}
