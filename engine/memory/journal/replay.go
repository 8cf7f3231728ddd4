package journal

import (
	"errors"
	"io"
	"io/fs"
	"slices"
)

// Replay calls fn for each durable record after from, in order, and returns the position
// to go on from: that of the last record fn took, or from. rec is valid only during
// the call. When fn returns an error, Replay ends with it.
//
// It reads up to what is durable when it begins; a reader that follows the log calls
// again when Options.OnDurable says there is more. Other calls go on meanwhile, Trim included.
//
// Errors: fn's; *TrimmedError if from is older than what is kept; *CorruptError, also if from
// is not the position of a record; ErrBeyondEnd; ErrClosed.
func (j *Journal) Replay(from Pos, fn func(pos Pos, rec []byte) error) (Pos, error) {
	upto := j.Durable()
	if from > upto {
		return from, ErrBeyondEnd
	}
	if j.closed() {
		return from, ErrClosed
	}
	j.segMu.RLock()
	segments, floor := slices.Clone(j.segments), j.floor
	j.segMu.RUnlock()
	if from < floor {
		return from, &TrimmedError{from, floor}
	}
	for i, s := range segments {
		limit := upto
		if i+1 < len(segments) {
			limit = min(limit, segments[i+1].start)
		}
		if from >= limit {
			continue
		}
		next, err := j.replaySegment(s, from, limit, fn)
		if err != nil {
			return next, err
		}
		from = next
	}
	return from, nil
}

func (j *Journal) replaySegment(s segment, from, limit Pos, fn func(Pos, []byte) error) (Pos, error) {
	name := j.path(segmentName(s.start))
	f, err := j.fs.OpenRead(name)
	if errors.Is(err, fs.ErrNotExist) && j.Floor() > from {
		return from, &TrimmedError{from, j.Floor()}
	}
	if err != nil {
		return from, err
	}
	defer f.Close()
	fr := &frames{r: f, id: j.id, pos: from, limit: limit, shift: segmentHeader - int64(s.start)}
	for {
		rec, _, isGroup, err := fr.next()
		var bad *badFrame
		switch {
		case err == io.EOF:
			return limit, nil
		case errors.As(err, &bad):
			return from, &CorruptError{name, int64(bad.pos-s.start) + segmentHeader, bad.reason}
		case err != nil:
			return from, err
		case isGroup:
			continue
		}
		if err := fn(fr.pos, rec); err != nil {
			return from, err
		}
		from = fr.pos
	}
}

func (j *Journal) closed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.closing
}
