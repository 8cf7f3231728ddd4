package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"
)

// Keep says what of the log Trim must leave.
type Keep struct {
	// From is the position of the slowest reader: what follows it is kept. The zero value keeps
	// all; give Journal.Durable if nobody reads.
	From Pos

	// Since keeps records written at or after that time. The zero value keeps all.
	Since time.Time

	// MaxBytes bounds the log whatever From and Since say; 0 is no bound.
	MaxBytes int64
}

// Trim deletes old segments as far as Keep allows, and returns the position of the oldest record
// kept. What is needed to recover from either of the last two snapshots is kept in any case, and so is
// the segment being written.
//
// A reader in the midst of Replay gets a *TrimmedError if it comes too late.
func (j *Journal) Trim(k Keep) (Pos, error) {
	j.keepMu.Lock()
	defer j.keepMu.Unlock()
	if j.closed() {
		return j.Floor(), ErrClosed
	}
	if len(j.snapshots) < keptSnapshots {
		return j.Floor(), nil
	}
	for {
		j.segMu.Lock()
		oldest := j.segments[0]
		if oldest.start >= j.floor { // else it is doomed, but could not be deleted last time
			if !j.trimmable(k) {
				floor := j.floor
				j.segMu.Unlock()
				return floor, nil
			}
			// First the floor: a reader then learns that the records are gone, not that a file
			// is missing.
			j.floor = j.segments[1].start
		}
		j.segMu.Unlock()
		name := segmentName(oldest.start)
		err := j.fs.Remove(j.path(name))
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			// One at a time and in order: after a power loss there must be no hole.
			err = j.syncDir()
		}
		if err != nil {
			return j.Floor(), fmt.Errorf("journal: trim: %w", err)
		}
		j.segMu.Lock()
		j.segments = j.segments[1:]
		j.segMu.Unlock()
		j.log.Debug("deleted a segment", slog.String("file", name))
	}
}

// trimmable reports whether the oldest segment may go. segMu is held.
func (j *Journal) trimmable(k Keep) bool {
	if len(j.segments) < 2 {
		return false
	}
	end := j.segments[1].start
	if end > j.snapshots[0] {
		return false
	}
	if k.MaxBytes > 0 && j.Durable()-j.floor > Pos(k.MaxBytes) {
		return true
	}
	// The next segment was begun after the last record of this one.
	return end <= k.From && j.segments[1].created < k.Since.UnixMilli()
}
