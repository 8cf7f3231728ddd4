package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// Pos is a position in the journal: the bytes of groups and records before it. The position of a
// record is its end, so "everything up to pos" includes it, and reading on from pos
// yields the record after it. Zero is the beginning.
type Pos int64

// MaxRecord is the longest record in bytes.
const MaxRecord = 16 << 20

const (
	groupHeader  = 12
	recordHeader = 8
	groupMark    = 0xffffffff // stands where a record has its length
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum covers b, the journal it belongs to and the place where it stands.
func checksum(id uint64, pos Pos, b []byte) uint32 {
	mask := (id ^ uint64(pos)) * 0x9e3779b97f4a7c15
	return crc32.Update(0, castagnoli, b) ^ uint32(mask>>32)
}

// appendRecord frames rec. The checksum is left to seal.
func appendRecord(buf, rec []byte) []byte {
	buf = append(buf, 0, 0, 0, 0)
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(rec)))
	return append(buf, rec...)
}

// seal completes a group that begins at pos: buf is the room for its header and the
// framed records. It returns their number.
func seal(id uint64, pos Pos, buf []byte) (n uint64) {
	binary.LittleEndian.PutUint32(buf[4:], groupMark)
	binary.LittleEndian.PutUint32(buf[8:], uint32(len(buf)-groupHeader))
	binary.LittleEndian.PutUint32(buf, checksum(id, pos, buf[4:groupHeader]))
	for at := groupHeader; at < len(buf); {
		end := at + recordHeader + int(binary.LittleEndian.Uint32(buf[at+4:]))
		binary.LittleEndian.PutUint32(buf[at:], checksum(id, pos+Pos(at), buf[at+4:end]))
		at = end
		n++
	}
	return n
}

// A badFrame is bytes that are not what was written there.
type badFrame struct {
	pos    Pos
	reason string
}

func (e *badFrame) Error() string { return fmt.Sprintf("position %d: %s", e.pos, e.reason) }

// frames reads group headers and records from r, in which position pos lies at offset
// pos+shift. It knows nothing of their order.
type frames struct {
	r     io.ReaderAt
	id    uint64
	pos   Pos // of the next frame
	limit Pos
	shift int64

	buf  []byte
	have []byte // the part of buf that holds what follows pos
}

const readAhead = 128 << 10

// next returns the next frame: a record, or the length of a group that begins. The
// record is valid until the call after. At the limit the error is io.EOF; if what is
// there is not a frame it is a *badFrame and pos stays before it.
func (f *frames) next() (rec []byte, group int64, isGroup bool, err error) {
	if f.pos == f.limit {
		return nil, 0, false, io.EOF
	}
	head, err := f.peek(recordHeader)
	if err != nil {
		return nil, 0, false, err
	}
	length := binary.LittleEndian.Uint32(head[4:])
	if length == groupMark {
		if head, err = f.peek(groupHeader); err != nil {
			return nil, 0, false, err
		}
		if checksum(f.id, f.pos, head[4:groupHeader]) != binary.LittleEndian.Uint32(head) {
			return nil, 0, false, &badFrame{f.pos, "wrong checksum of a group"}
		}
		group = int64(binary.LittleEndian.Uint32(head[8:]))
		f.skip(groupHeader)
		return nil, group, true, nil
	}
	if length == 0 || length > MaxRecord {
		return nil, 0, false, &badFrame{f.pos, fmt.Sprintf("a record of %d bytes cannot be", length)}
	}
	size := recordHeader + int(length)
	if head, err = f.peek(size); err != nil {
		return nil, 0, false, err
	}
	if checksum(f.id, f.pos, head[4:size]) != binary.LittleEndian.Uint32(head) {
		return nil, 0, false, &badFrame{f.pos, "wrong checksum of a record"}
	}
	f.skip(size)
	return head[recordHeader:size], 0, false, nil
}

func (f *frames) skip(n int) {
	f.have = f.have[n:]
	f.pos += Pos(n)
}

// peek returns the next n bytes or more.
func (f *frames) peek(n int) ([]byte, error) {
	if len(f.have) >= n {
		return f.have, nil
	}
	left := int64(f.limit - f.pos)
	if int64(n) > left {
		return nil, &badFrame{f.pos, fmt.Sprintf("%d bytes expected, %d there", n, left)}
	}
	want := int(min(int64(max(n, readAhead)), left))
	buf := f.buf
	if cap(buf) < want {
		buf = make([]byte, want)
	}
	buf = buf[:want]
	kept := copy(buf, f.have)
	read, err := f.r.ReadAt(buf[kept:], int64(f.pos)+f.shift+int64(kept))
	if kept+read < want {
		if err == nil || err == io.EOF {
			return nil, &badFrame{f.pos, fmt.Sprintf("the file ends %d bytes early", want-kept-read)}
		}
		return nil, err
	}
	f.buf, f.have = buf, buf
	return f.have, nil
}

// findGroup returns the position of the first whole group header at or after from, if
// there is one before the limit.
func (f *frames) findGroup(from Pos) (Pos, bool, error) {
	mark := []byte{0xff, 0xff, 0xff, 0xff}
	f.pos, f.have = from, nil
	for f.limit-f.pos >= groupHeader {
		b, err := f.peek(groupHeader)
		if err != nil {
			return 0, false, err
		}
		for len(b) >= groupHeader {
			i := bytes.Index(b[4:], mark)
			if i < 0 || len(b) < i+groupHeader {
				f.skip(len(b) - groupHeader + 1) // a header may begin in the rest
				break
			}
			f.skip(i)
			b = f.have
			if checksum(f.id, f.pos, b[4:groupHeader]) == binary.LittleEndian.Uint32(b) {
				return f.pos, true, nil
			}
			f.skip(1)
			b = f.have
		}
	}
	return 0, false, nil
}
