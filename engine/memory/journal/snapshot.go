package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/ushergo/usher/engine/memory/journal/disk"
)

// A snapshot's body is chunks, each crc:4 length:4 data, and at the end crc:4 0xffffffff:4
// and the length of all data:8. Checksums take the offset in the file for the position.
const (
	chunkBytes  = 256 << 10
	chunkHeader = 8
	endChunk    = 16
	// keptSnapshots is how many there are to fall back on. The log from the oldest of
	// them is kept too, or it would be of no use.
	keptSnapshots = 2
)

// Snapshot stores the state as it was after the record at pos, which write writes. It
// first waits until everything up to pos is durable: a snapshot must not know more than
// the log. It may take long and disturbs nobody but other calls of Snapshot and Trim.
//
// If it returns an error, be it write's, that snapshot does not exist and earlier ones do.
func (j *Journal) Snapshot(ctx context.Context, pos Pos, write func(io.Writer) error) error {
	j.keepMu.Lock()
	defer j.keepMu.Unlock()
	if j.closed() {
		return ErrClosed
	}
	if err := j.wait(ctx, pos); err != nil {
		return err
	}
	if n := len(j.snapshots); n > 0 && pos < j.snapshots[n-1] {
		return fmt.Errorf("journal: a snapshot at %d is older than the one at %d", pos, j.snapshots[n-1])
	}
	f, err := j.createNamed(snapshotName(pos), func(f disk.File) error {
		head := header{snapshotMagic, j.id, pos, j.opts.Now().UnixMilli()}.encode()
		if _, err := f.WriteAt(head, 0); err != nil {
			return err
		}
		w := &chunks{f: f, id: j.id, off: segmentHeader, buf: make([]byte, chunkHeader, chunkHeader+chunkBytes)}
		if err := write(w); err != nil {
			return err
		}
		return w.end()
	})
	if err != nil {
		return fmt.Errorf("journal: snapshot at %d: %w", pos, err)
	}
	_ = f.Close()
	if !slices.Contains(j.snapshots, pos) {
		j.snapshots = append(j.snapshots, pos)
	}
	for len(j.snapshots) > keptSnapshots {
		if err := j.fs.Remove(j.path(snapshotName(j.snapshots[0]))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			j.log.Warn("an old snapshot cannot be deleted", slog.Any("error", err))
			break
		}
		j.snapshots = j.snapshots[1:]
	}
	return nil
}

// LatestSnapshot opens the newest whole snapshot, after reading it once to see that it is
// whole. A damaged one is reported to the logger and the one before it used. ok is
// false if there is none and none is needed, since the log begins at 0.
//
// Errors: *CorruptError if there is no whole snapshot and the log does not begin at 0; *LayoutError.
func (j *Journal) LatestSnapshot() (pos Pos, r io.ReadCloser, ok bool, err error) {
	j.keepMu.Lock()
	defer j.keepMu.Unlock()
	floor := j.Floor()
	for _, pos := range slices.Backward(j.snapshots) {
		if pos < floor {
			break // the log does not reach back to it
		}
		name := j.path(snapshotName(pos))
		f, err := j.openSnapshot(name, pos)
		var bad *CorruptError
		if errors.As(err, &bad) {
			j.log.Error("a snapshot is damaged, the one before it is used", slog.Any("error", err))
			continue
		}
		if err != nil {
			return 0, nil, false, err
		}
		return pos, &chunkReader{f: f, name: name, id: j.id, off: segmentHeader}, true, nil
	}
	if floor > 0 {
		return 0, nil, false, &CorruptError{j.path(segmentName(floor)), 0,
			fmt.Sprintf("the log begins at position %d, and no whole snapshot says what was before", floor)}
	}
	return 0, nil, false, nil
}

// openSnapshot opens a snapshot and checks all of it.
func (j *Journal) openSnapshot(name string, pos Pos) (f disk.File, err error) {
	f, err = j.fs.OpenRead(name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			f = nil
		}
	}()
	h, err := readHeader(f, name, snapshotMagic, pos)
	if err != nil {
		return f, err
	}
	if h.id != j.id {
		return f, &CorruptError{name, 16, "it belongs to another journal"}
	}
	_, err = io.Copy(io.Discard, &chunkReader{f: f, name: name, id: j.id, off: segmentHeader})
	return f, err
}

// chunks writes a snapshot's body.
type chunks struct {
	f     disk.File
	id    uint64
	off   int64
	buf   []byte // a chunk with its header
	total int64
}

func (w *chunks) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		take := min(len(p), chunkHeader+chunkBytes-len(w.buf))
		w.buf = append(w.buf, p[:take]...)
		p = p[take:]
		if len(w.buf) == chunkHeader+chunkBytes {
			if err := w.flush(uint32(chunkBytes)); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

// flush writes buf as a chunk of that length, or with that mark.
func (w *chunks) flush(length uint32) error {
	binary.LittleEndian.PutUint32(w.buf[4:], length)
	binary.LittleEndian.PutUint32(w.buf, checksum(w.id, Pos(w.off), w.buf[4:]))
	if _, err := w.f.WriteAt(w.buf, w.off); err != nil {
		return err
	}
	w.off += int64(len(w.buf))
	if length != groupMark {
		w.total += int64(length)
	}
	w.buf = w.buf[:chunkHeader]
	return nil
}

func (w *chunks) end() error {
	if n := len(w.buf) - chunkHeader; n > 0 {
		if err := w.flush(uint32(n)); err != nil {
			return err
		}
	}
	w.buf = binary.LittleEndian.AppendUint64(w.buf, uint64(w.total))
	return w.flush(groupMark)
}

// chunkReader reads a snapshot's body, checking it.
type chunkReader struct {
	f     disk.File
	name  string
	id    uint64
	off   int64
	total int64
	buf   []byte
	have  []byte
	ended bool
}

func (r *chunkReader) Close() error { return r.f.Close() }

func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.have) == 0 {
		if r.ended {
			return 0, io.EOF
		}
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.have)
	r.have = r.have[n:]
	return n, nil
}

// fill reads the next chunk.
func (r *chunkReader) fill() error {
	if r.buf == nil {
		r.buf = make([]byte, chunkHeader+chunkBytes)
	}
	bad := func(reason string) error { return &CorruptError{r.name, r.off, reason} }
	n, err := r.f.ReadAt(r.buf, r.off)
	if err != nil && err != io.EOF {
		return err
	}
	b := r.buf[:n]
	if n < chunkHeader {
		return bad("the snapshot is not complete")
	}
	length := binary.LittleEndian.Uint32(b[4:])
	size := int64(chunkHeader) + int64(length)
	if length == groupMark {
		size = endChunk
	} else if length == 0 || length > chunkBytes {
		return bad("wrong length of a chunk")
	}
	if int64(n) < size {
		return bad("the snapshot is not complete")
	}
	b = b[:size]
	if checksum(r.id, Pos(r.off), b[4:]) != binary.LittleEndian.Uint32(b) {
		return bad("wrong checksum of a chunk")
	}
	r.off += size
	if length == groupMark {
		r.ended = true
		if total := binary.LittleEndian.Uint64(b[8:]); total != uint64(r.total) {
			return bad(fmt.Sprintf("%d bytes expected, %d there", total, r.total))
		}
		return nil
	}
	r.total += int64(length)
	r.have = b[chunkHeader:]
	return nil
}
