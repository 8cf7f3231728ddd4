package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"github.com/ushergo/usher/engine/memory/journal/disk"
)

const (
	layout        = 1
	segmentHeader = 64 // bytes; a snapshot's header has the same shape
	segmentMagic  = "USHERJNL"
	snapshotMagic = "USHERSNP"
	segmentExt    = ".log"
	snapshotExt   = ".snap"
	tempExt       = ".tmp"
)

// A segment is a file that holds the records from start to the next one's start.
type segment struct {
	start   Pos
	created int64 // Unix ms
}

func segmentName(start Pos) string { return fmt.Sprintf("%016x%s", int64(start), segmentExt) }
func snapshotName(pos Pos) string  { return fmt.Sprintf("%016x%s", int64(pos), snapshotExt) }

// parseName returns the position in a name with that ending, if it is one of ours.
func parseName(name, ext string) (Pos, bool) {
	digits, ok := strings.CutSuffix(name, ext)
	if !ok || len(digits) != 16 {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 16, 64)
	return Pos(n), err == nil && n >= 0
}

// header is the first bytes of a segment or snapshot.
type header struct {
	magic   string
	id      uint64
	pos     Pos
	created int64
}

func (h header) encode() []byte {
	b := make([]byte, segmentHeader)
	copy(b, h.magic)
	binary.LittleEndian.PutUint32(b[8:], layout)
	binary.LittleEndian.PutUint64(b[16:], h.id)
	binary.LittleEndian.PutUint64(b[24:], uint64(h.pos))
	binary.LittleEndian.PutUint64(b[32:], uint64(h.created))
	binary.LittleEndian.PutUint32(b[12:], headerSum(b))
	return b
}

func headerSum(b []byte) uint32 {
	sum := crc32.Checksum(b[:12], castagnoli)
	return crc32.Update(sum, castagnoli, b[16:segmentHeader])
}

// readHeader reads and checks a header. The file must hold the kind of thing magic says
// and be named by the position it begins with.
func readHeader(f io.ReaderAt, name, magic string, pos Pos) (header, error) {
	b := make([]byte, segmentHeader)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return header{}, err
	}
	if n < segmentHeader {
		return header{}, &CorruptError{name, int64(n), "the file ends within its header"}
	}
	if string(b[:8]) != magic {
		return header{}, &CorruptError{name, 0, fmt.Sprintf("it does not begin with %q", magic)}
	}
	// The layout first: another one may have its checksum elsewhere.
	if v := binary.LittleEndian.Uint32(b[8:]); v != layout {
		return header{}, &LayoutError{name, v, layout}
	}
	if headerSum(b) != binary.LittleEndian.Uint32(b[12:]) {
		return header{}, &CorruptError{name, 12, "wrong checksum of the header"}
	}
	h := header{
		magic:   magic,
		id:      binary.LittleEndian.Uint64(b[16:]),
		pos:     Pos(binary.LittleEndian.Uint64(b[24:])),
		created: int64(binary.LittleEndian.Uint64(b[32:])),
	}
	if h.pos != pos {
		return header{}, &CorruptError{name, 24, fmt.Sprintf("it belongs to position %d, not to the one in its name", h.pos)}
	}
	return h, nil
}

// createSegment makes a segment and returns it open. It has its name only once its
// header is synced, so a segment with a bad header is damaged, never half made.
func (j *Journal) createSegment(s segment) (disk.File, error) {
	name := segmentName(s.start)
	f, err := j.createNamed(name, func(f disk.File) error {
		_, err := f.WriteAt(header{segmentMagic, j.id, s.start, s.created}.encode(), 0)
		return err
	})
	return f, err
}

// createNamed makes a file, lets fill write it, syncs it and gives it its name.
func (j *Journal) createNamed(name string, fill func(disk.File) error) (disk.File, error) {
	temp := j.path(name + tempExt)
	f, err := j.fs.Create(temp)
	if err != nil {
		return nil, err
	}
	if err = fill(f); err == nil {
		err = j.sync(f)
	}
	if err == nil {
		err = j.fs.Rename(temp, j.path(name))
	}
	if err != nil {
		_ = f.Close()
		_ = j.fs.Remove(temp) // best effort: Open removes what is left
		return nil, err
	}
	if err = j.syncDir(); err != nil {
		// It has its name and may keep it. As a segment it holds nothing but a header and the next
		// attempt replaces it; as a snapshot it is whole.
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func (j *Journal) sync(f disk.File) error {
	if j.opts.NoSync {
		return nil
	}
	return f.Sync()
}

func (j *Journal) syncDir() error {
	if j.opts.NoSync {
		return nil
	}
	return j.fs.SyncDir(j.dir)
}
