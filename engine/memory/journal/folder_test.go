package journal_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/engine/memory/journal/disk/faultdisk"
)

// folder makes a journal in three segments, closed, and returns its folder, its
// segments, oldest first, and the number of records.
func folder(t *testing.T) (dir string, segments []string, records int) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "rooms", "premiere")
	j := open(t, dir, journal.Options{SegmentBytes: 1000})
	for ; j.Stats().Segments < 3; records++ {
		addSync(t, j, record(records))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(segments) != 3 {
		t.Fatalf("segments: %v, %v", segments, err)
	}
	return dir, segments, records
}

// edit changes a file's bytes.
func edit(t *testing.T, name string, change func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, change(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

func flip(at int) func([]byte) []byte {
	return func(b []byte) []byte {
		if at < 0 {
			at += len(b)
		}
		b[at] ^= 0x40
		return b
	}
}

// contents returns all files of a folder but the lock.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(name) != "lock" {
			all[name] = string(b)
		}
	}
	return all
}

// What Open refuses, it names, with the mend, and leaves as it was.
func TestOpenRefuses(t *testing.T) {
	other, otherSegments, _ := folder(t)
	_ = other
	tests := []struct {
		name   string
		spoil  func(t *testing.T, segments []string)
		layout bool
		file   int
		says   string
	}{
		{"another layout", func(t *testing.T, s []string) {
			edit(t, s[1], func(b []byte) []byte { b[8] = 9; return b })
		}, true, 1, "layout 9, this version reads layout 1: start the version that wrote it"},
		{"something else", func(t *testing.T, s []string) {
			edit(t, s[0], func(b []byte) []byte { copy(b, "SQLite format 3"); return b })
		}, false, 0, `does not begin with "USHERJNL"`},
		{"damaged header", func(t *testing.T, s []string) { edit(t, s[2], flip(20)) }, false, 2, "wrong checksum of the header"},
		{"empty file", func(t *testing.T, s []string) {
			edit(t, s[2], func([]byte) []byte { return nil })
		}, false, 2, "ends within its header"},
		{"a segment is missing", func(t *testing.T, s []string) {
			if err := os.Remove(s[1]); err != nil {
				t.Fatal(err)
			}
		}, false, 0, "bytes before the next segment begins"},
		{"a segment is cut", func(t *testing.T, s []string) {
			edit(t, s[1], func(b []byte) []byte { return b[:len(b)-1] })
		}, false, 1, "it ends 1 bytes before the next segment begins"},
		{"a segment of another journal", func(t *testing.T, s []string) {
			b, err := os.ReadFile(otherSegments[0])
			if err != nil {
				t.Fatal(err)
			}
			edit(t, s[0], func([]byte) []byte { return b })
		}, false, 1, "another journal"},
		{"a renamed segment", func(t *testing.T, s []string) {
			if err := os.Rename(s[2], strings.Replace(s[2], "0.log", "1.log", 1)+"x"); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(s[0], filepath.Join(filepath.Dir(s[0]), "0000000000000001.log")); err != nil {
				t.Fatal(err)
			}
		}, false, -1, "not to the one in its name"},
		{"damage in the last segment, records behind", func(t *testing.T, s []string) {
			edit(t, s[2], flip(64+12+8))
		}, false, 2, "wrong checksum of a record, and whole records follow"},
		{"damage in the last group header but one", func(t *testing.T, s []string) {
			edit(t, s[2], flip(64+8))
		}, false, 2, "wrong checksum of a group, and whole records follow"},
		{"damage in the last record, after an orderly close", func(t *testing.T, s []string) {
			edit(t, s[2], flip(-13))
		}, false, 2, "wrong checksum of a record, and whole records follow"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir, segments, _ := folder(t)
			tt.spoil(t, segments)
			before := contents(t, dir)
			_, err := journal.Open(dir, journal.Options{})
			var corrupt *journal.CorruptError
			var layout *journal.LayoutError
			switch {
			case errors.As(err, &layout) && tt.layout:
				if layout.File != segments[tt.file] {
					t.Errorf("names %s, not %s", layout.File, segments[tt.file])
				}
			case errors.As(err, &corrupt) && !tt.layout:
				if tt.file >= 0 && corrupt.File != segments[tt.file] {
					t.Errorf("names %s, not %s", corrupt.File, segments[tt.file])
				}
				if !strings.Contains(err.Error(), "restore the folder from a copy") {
					t.Errorf("no mend in %q", err)
				}
			default:
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q does not say %q", err, tt.says)
			}
			after := contents(t, dir)
			if len(after) != len(before) {
				t.Error("files came or went")
			}
			for name, b := range before {
				if after[name] != b {
					t.Errorf("%s was changed", name)
				}
			}
		})
	}
}

// Damage in an old segment is found by those who read it, and by nobody else.
func TestDamageInAnOldSegment(t *testing.T) {
	dir, segments, _ := folder(t)
	edit(t, segments[1], flip(200))
	j := open(t, dir, journal.Options{})
	addSync(t, j, record(1))
	_, err := j.Replay(0, func(journal.Pos, []byte) error { return nil })
	var corrupt *journal.CorruptError
	if !errors.As(err, &corrupt) || corrupt.File != segments[1] || corrupt.Offset < 64 || corrupt.Offset > 200 {
		t.Errorf("got %v", err)
	}
}

// An interrupted write is cut at whatever byte it ended, and reported.
func TestTornTail(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, journal.Options{})
	for _, n := range []int{0, 1, 80} {
		addSync(t, j, record(n))
	}
	two := len(record(0)) + len(record(1)) + 2*20
	name := filepath.Join(dir, "0000000000000000.log")
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	j.Close()
	for size := 64 + two + 1; size < len(whole); size++ {
		edit(t, name, func([]byte) []byte { return whole[:size] })
		var said logs
		j, err := journal.Open(dir, journal.Options{Logger: said.logger()})
		if err != nil {
			t.Fatalf("cut at %d: %v", size, err)
		}
		if got := replay(t, j, 0); len(got) != 2 {
			t.Fatalf("cut at %d: %d records, want 2", size, len(got))
		}
		if out := said.String(); !strings.Contains(out, "interrupted write") || !strings.Contains(out, name) {
			t.Fatalf("cut at %d: the logger heard %q", size, out)
		}
		addSync(t, j, record(9))
		j.Close()
		said = logs{}
		j = open(t, dir, journal.Options{Logger: said.logger()})
		if out := said.String(); out != "" {
			t.Fatalf("cut at %d: once more the logger heard %q", size, out)
		}
		if got := replay(t, j, 0); len(got) != 3 || string(got[2]) != string(record(9)) {
			t.Fatalf("cut at %d: the log does not go on", size)
		}
		j.Close()
	}
}

func TestHalfMadeFilesAreRemoved(t *testing.T) {
	dir, segments, records := folder(t)
	for _, name := range []string{segments[2] + ".tmp", filepath.Join(dir, "00000000000000ff.snap.tmp")} {
		if err := os.WriteFile(name, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	notes := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(notes, []byte("the operator's"), 0o600); err != nil {
		t.Fatal(err)
	}
	j := open(t, dir, journal.Options{})
	if got := replay(t, j, 0); len(got) != records {
		t.Errorf("%d records, want %d", len(got), records)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := os.Stat(notes); err != nil {
		t.Errorf("a file that is not ours: %v", err)
	}
}

func TestFolderOfAnotherKind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		_, err := journal.Open(dir, journal.Options{})
		if !errors.As(err, new(*journal.FolderError)) || !strings.Contains(err.Error(), "not a directory") {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestReadOnlyFolder(t *testing.T) {
	d := faultdisk.New(1)
	j := open(t, "/j", journal.Options{FS: d})
	addSync(t, j, record(0))
	j.Close()
	d.SetReadOnly(true)
	for _, dir := range []string{"/j", "/new"} {
		_, err := journal.Open(dir, journal.Options{FS: d})
		if !errors.As(err, new(*journal.FolderError)) || !errors.Is(err, syscall.EROFS) ||
			!strings.Contains(err.Error(), "cannot write in "+dir) || !strings.Contains(err.Error(), "make it writable") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	d.SetReadOnly(false)
	open(t, "/j", journal.Options{FS: d})
}

// A folder's lock is of this process too, and goes with the journal.
func TestLocked(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, journal.Options{})
	_, err := journal.Open(dir, journal.Options{})
	var locked *journal.LockedError
	if !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("got %v", err)
	}
	j.Close()
	open(t, dir, journal.Options{})
}

func TestFilesAreForTheirOwnerAlone(t *testing.T) {
	dir, segments, _ := folder(t)
	j := open(t, dir, journal.Options{})
	snapshot(t, j, "x")
	snaps, _ := filepath.Glob(filepath.Join(dir, "*.snap"))
	for _, name := range append(segments, snaps...) {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v", dir, info.Mode(), err)
	}
}
