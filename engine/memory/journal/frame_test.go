package journal

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

const testID = 0x1234567890abcdef

// encode makes a log of groups from data: a byte for the length of each record, a high
// bit ends a group.
func encode(data []byte) (log []byte, recs [][]byte) {
	var group []byte
	flush := func() {
		if group != nil {
			seal(testID, Pos(len(log)), group)
			log = append(log, group...)
			group = nil
		}
	}
	for i, b := range data {
		rec := bytes.Repeat([]byte{byte(i)}, 1+int(b&0x7f))
		if group == nil {
			group = make([]byte, groupHeader)
		}
		group = appendRecord(group, rec)
		recs = append(recs, rec)
		if b&0x80 != 0 {
			flush()
		}
	}
	flush()
	return log, recs
}

// decode returns the records of the whole groups at the beginning of log, and what is wrong
// after them.
func decode(t *testing.T, log []byte) (recs [][]byte, end Pos, bad *badFrame) {
	t.Helper()
	last, end, bad, err := scanGroups(&frames{r: bytes.NewReader(log), id: testID, limit: Pos(len(log))})
	if err != nil {
		t.Fatalf("scan: %v", err)
	}
	if last < 0 || last > end || end > Pos(len(log)) || (bad == nil) != (end == Pos(len(log))) {
		t.Fatalf("last group at %d, end %d of %d, %v", last, end, len(log), bad)
	}
	fr := &frames{r: bytes.NewReader(log), id: testID, limit: end}
	for {
		rec, _, isGroup, err := fr.next()
		if err == io.EOF {
			return recs, end, bad
		}
		if err != nil {
			t.Fatalf("scanned, but not read: %v", err)
		}
		if !isGroup {
			recs = append(recs, bytes.Clone(rec))
		}
	}
}

// Whatever happens to a log's bytes, what is read is the beginning of what was written.
func FuzzDamagedLog(f *testing.F) {
	f.Add([]byte{1, 2, 0x83, 4, 0x85}, uint16(0), byte(1), uint16(0))
	f.Add([]byte{0x80, 0x80, 0x80}, uint16(13), byte(0xff), uint16(60))
	f.Add([]byte{127, 127, 0xff}, uint16(16), byte(0x80), uint16(1))
	f.Fuzz(func(t *testing.T, data []byte, at uint16, flip byte, cut uint16) {
		if len(data) > 500 {
			data = data[:500]
		}
		log, recs := encode(data)
		got, _, bad := decode(t, log)
		if bad != nil || len(got) != len(recs) {
			t.Fatalf("a whole log: %d records of %d, %v", len(got), len(recs), bad)
		}
		if len(log) == 0 {
			return
		}
		log[int(at)%len(log)] ^= flip
		log = log[:len(log)-int(cut)%len(log)]
		got, end, bad := decode(t, log)
		for i, rec := range got {
			if !bytes.Equal(rec, recs[i]) {
				t.Fatalf("record %d is %x, want %x", i, rec, recs[i])
			}
		}
		if bad != nil {
			fr := &frames{r: bytes.NewReader(log), id: testID, limit: Pos(len(log))}
			if pos, found, err := fr.findGroup(bad.pos + 1); err != nil || found && pos <= end {
				t.Fatalf("a group at %d, before the end at %d: %v", pos, end, err)
			}
		}
	})
}

// The reader takes any bytes for what they are.
func FuzzForeignBytes(f *testing.F) {
	log, _ := encode([]byte{1, 2, 0x83, 4})
	f.Add(log)
	f.Add(log[:len(log)-1])
	f.Add(append(bytes.Clone(log), log...))
	f.Add(bytes.Repeat([]byte{0xff}, 100))
	f.Add(make([]byte, 100))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, end, bad := decode(t, b)
		if bad != nil {
			fr := &frames{r: bytes.NewReader(b), id: testID, limit: Pos(len(b))}
			if pos, found, err := fr.findGroup(end); err != nil || found && (pos < end || pos > Pos(len(b)-groupHeader)) {
				t.Fatalf("a group at %d of %d: %v", pos, len(b), err)
			}
		}
	})
}

// Records longer than what is read ahead, and a group found wherever it lies in that.
func TestFramesAcrossReads(t *testing.T) {
	var log []byte
	want := 0
	for _, size := range []int{1, readAhead - 30, readAhead, 3*readAhead + 1, 5} {
		g := appendRecord(make([]byte, groupHeader), bytes.Repeat([]byte{7}, size))
		seal(testID, Pos(len(log)), g)
		log = append(log, g...)
		want++
	}
	if recs, _, bad := decode(t, log); bad != nil || len(recs) != want {
		t.Fatalf("%d records, %v", len(recs), bad)
	}
	for before := readAhead - 2*groupHeader; before < readAhead+groupHeader; before++ {
		junk := bytes.Repeat([]byte{0xff}, before)
		g := make([]byte, groupHeader)
		seal(testID, Pos(before), g)
		fr := &frames{r: bytes.NewReader(append(junk, g...)), id: testID, limit: Pos(before + groupHeader)}
		if pos, found, err := fr.findGroup(0); !found || pos != Pos(before) || err != nil {
			t.Fatalf("behind %d bytes: %d, %v, %v", before, pos, found, err)
		}
	}
}

// A record is bound to its journal and its place.
func TestChecksumIsOfThePlace(t *testing.T) {
	log, _ := encode([]byte{5, 0x85})
	for _, fr := range []*frames{
		{r: bytes.NewReader(log), id: testID + 1, limit: Pos(len(log))},
		{r: bytes.NewReader(log), id: testID, pos: 4096, limit: 4096 + Pos(len(log)), shift: -4096},
	} {
		if _, _, _, err := fr.next(); !errors.As(err, new(*badFrame)) {
			t.Errorf("bytes from elsewhere: %v", err)
		}
	}
}

func BenchmarkAppendAndSeal(b *testing.B) {
	rec := make([]byte, 80)
	buf := make([]byte, groupHeader, 1<<20)
	b.SetBytes(80)
	for b.Loop() {
		buf = appendRecord(buf, rec)
		if len(buf) > 1<<19 {
			seal(testID, 0, buf)
			buf = buf[:groupHeader]
		}
	}
}
