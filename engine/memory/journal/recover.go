package journal

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/ushergo/usher/engine/memory/journal/disk"
)

// recover finds out what the folder holds, and makes it ready to be written.
func (j *Journal) recover() error {
	names, err := j.fs.List(j.dir)
	if err != nil {
		return &FolderError{j.dir, err}
	}
	var temps []string
	for _, name := range names {
		if strings.HasSuffix(name, tempExt) {
			temps = append(temps, name)
		} else if pos, ok := parseName(name, segmentExt); ok {
			j.segments = append(j.segments, segment{start: pos})
		} else if pos, ok := parseName(name, snapshotExt); ok {
			j.snapshots = append(j.snapshots, pos)
		}
	}
	slices.SortFunc(j.segments, func(a, b segment) int { return cmp.Compare(a.start, b.start) })
	slices.Sort(j.snapshots)

	if len(j.segments) == 0 {
		if len(j.snapshots) > 0 {
			return &CorruptError{j.path(segmentName(j.snapshots[len(j.snapshots)-1])), 0, "there are snapshots, but no segment"}
		}
		return j.create(temps)
	}
	if err := j.checkSegments(); err != nil {
		return err
	}
	j.floor = j.segments[0].start
	end, err := j.openTail()
	if err != nil {
		return err
	}
	j.end = end
	j.durable.Store(int64(end))
	j.removeTemps(temps)
	// Names that were given just before a crash may not be durable yet.
	if err := j.syncDir(); err != nil {
		_ = j.tail.file.Close()
		return &FolderError{j.dir, err}
	}
	return nil
}

// removeTemps deletes half-made files of ours. They never had a name that counts.
func (j *Journal) removeTemps(names []string) {
	for _, name := range names {
		j.log.Info("removing a file that a crash left half made", slog.String("file", name))
		_ = j.fs.Remove(j.path(name)) // the next attempt to make it empties it
	}
}

func (j *Journal) create(temps []string) error {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	j.id = binary.LittleEndian.Uint64(id[:])
	j.removeTemps(temps)
	if err := j.beginSegment(0); err != nil {
		return &FolderError{j.dir, err}
	}
	return nil
}

// checkSegments reads all headers, and sees that each segment reaches to the next.
func (j *Journal) checkSegments() error {
	for i, s := range j.segments {
		name := j.path(segmentName(s.start))
		f, err := j.fs.OpenRead(name)
		if err != nil {
			return err
		}
		h, err := readHeader(f, name, segmentMagic, s.start)
		var size int64
		if err == nil {
			size, err = f.Size()
		}
		_ = f.Close()
		if err != nil {
			return err
		}
		if i == 0 {
			j.id = h.id
		} else if h.id != j.id {
			return &CorruptError{name, 16, "it belongs to another journal"}
		}
		j.segments[i].created = h.created
		if i+1 == len(j.segments) {
			break
		}
		if whole := int64(j.segments[i+1].start-s.start) + segmentHeader; size < whole {
			return &CorruptError{name, size, fmt.Sprintf("it ends %d bytes before the next segment begins", whole-size)}
		}
	}
	return nil
}

// openTail opens the last segment for writing and returns the end of the log in it.
//
// It cuts what an interrupted write left, and writes the last group again. That looks
// needless and is not: if the sync of that group failed and the process was killed, the
// system may show it to us from its cache although it is not on the disk and never will
// be, since the cache believes it clean. Groups before the last were synced, or else the
// last would not have been written.
func (j *Journal) openTail() (end Pos, err error) {
	s := j.segments[len(j.segments)-1]
	name := j.path(segmentName(s.start))
	f, err := j.fs.Open(name)
	if err != nil {
		return 0, &FolderError{j.dir, err}
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	fr := &frames{r: f, id: j.id, pos: s.start, limit: s.start + Pos(size-segmentHeader), shift: segmentHeader - int64(s.start)}
	last, end, bad, err := scanGroups(fr)
	if err != nil {
		return 0, err
	}
	if n := len(j.snapshots); n > 0 && j.snapshots[n-1] > end {
		reason := fmt.Sprintf("the log ends here, at position %d, but a snapshot was made at %d", end, j.snapshots[n-1])
		if bad != nil {
			reason += ": " + bad.reason
		}
		return 0, &CorruptError{name, int64(end-s.start) + segmentHeader, reason}
	}
	if bad != nil {
		offset := int64(bad.pos-s.start) + segmentHeader
		later, found, err := fr.findGroup(bad.pos + 1)
		if err != nil {
			return 0, err
		}
		if found {
			return 0, &CorruptError{name, offset, fmt.Sprintf("%s, and whole records follow at position %d", bad.reason, later)}
		}
		j.log.Warn("cutting an interrupted write from the end of the log; nothing in it was answered",
			slog.String("file", name), slog.Int64("offset", offset), slog.String("reason", bad.reason),
			slog.Int64("from", int64(end)), slog.Int64("bytes", int64(fr.limit-end)))
		if err := f.Truncate(int64(end-s.start) + segmentHeader); err != nil {
			return 0, &FolderError{j.dir, err}
		}
	}
	if err := rewrite(f, int64(last-s.start)+segmentHeader, int64(end-s.start)+segmentHeader); err != nil {
		return 0, &FolderError{j.dir, err}
	}
	if err := j.sync(f); err != nil {
		return 0, &FolderError{j.dir, err}
	}
	j.tail = tail{file: f, start: s.start}
	return end, nil
}

// scanGroups returns where the last whole group begins and ends, and what is wrong behind
// it, if anything is.
func scanGroups(fr *frames) (last, end Pos, bad *badFrame, err error) {
	last, end = fr.pos, fr.pos
	for {
		start := fr.pos
		_, length, isGroup, err := fr.next()
		switch {
		case err == io.EOF:
			return last, end, nil, nil
		case errors.As(err, &bad):
			return last, end, bad, nil
		case err != nil:
			return 0, 0, nil, err
		case !isGroup:
			return last, end, &badFrame{start, "a record outside a group"}, nil
		}
		groupEnd := fr.pos + Pos(length)
		for fr.pos < groupEnd {
			at := fr.pos
			_, _, isGroup, err := fr.next()
			switch {
			case err == io.EOF:
				return last, end, &badFrame{at, "the group is not complete"}, nil
			case errors.As(err, &bad):
				return last, end, bad, nil
			case err != nil:
				return 0, 0, nil, err
			case isGroup || fr.pos > groupEnd:
				return last, end, &badFrame{at, "a group within a group"}, nil
			}
		}
		last, end = start, groupEnd
	}
}

// rewrite reads the bytes from one offset to another and writes them where they are.
func rewrite(f disk.File, from, to int64) error {
	buf := make([]byte, min(to-from, 1<<20))
	for from < to {
		b := buf[:min(to-from, int64(len(buf)))]
		if _, err := f.ReadAt(b, from); err != nil && err != io.EOF {
			return err
		}
		if _, err := f.WriteAt(b, from); err != nil {
			return err
		}
		from += int64(len(b))
	}
	return nil
}
