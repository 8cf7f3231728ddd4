package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/engine/memory/journal/disk/faultdisk"
)

// snapshot stores state at the end of the log.
func snapshot(t *testing.T, j *journal.Journal, state string) journal.Pos {
	t.Helper()
	pos := j.End()
	err := j.Snapshot(t.Context(), pos, func(w io.Writer) error {
		_, err := io.WriteString(w, state)
		return err
	})
	if err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	return pos
}

func latest(t *testing.T, j *journal.Journal) (journal.Pos, string) {
	t.Helper()
	pos, r, ok, err := j.LatestSnapshot()
	if err != nil {
		t.Fatalf("latest snapshot: %v", err)
	}
	if !ok {
		return 0, ""
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("reading the snapshot: %v", err)
	}
	return pos, string(b)
}

func TestSnapshotOfAnySize(t *testing.T) {
	j := open(t, t.TempDir(), journal.Options{})
	addSync(t, j, record(0))
	rnd := rand.New(rand.NewPCG(1, 1))
	for _, size := range []int{0, 1, 256<<10 - 1, 256 << 10, 256<<10 + 1, 1 << 20, 3<<20 + 77} {
		state := make([]byte, size)
		for i := range state {
			state[i] = byte(rnd.Uint32())
		}
		err := j.Snapshot(t.Context(), j.End(), func(w io.Writer) error {
			for b := state; len(b) > 0; {
				n := min(len(b), 1+rnd.IntN(100_000))
				if _, err := w.Write(b[:n]); err != nil {
					return err
				}
				b = b[n:]
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if pos, got := latest(t, j); pos != j.End() || !bytes.Equal([]byte(got), state) {
			t.Errorf("%d bytes at %d came back as %d at %d", size, j.End(), len(got), pos)
		}
	}
}

// A snapshot that is damaged at any byte is never read as a whole one: the one before it
// and the log from there are used.
func TestDamagedSnapshot(t *testing.T) {
	d := faultdisk.New(1)
	const dir = "/j"
	j := open(t, dir, journal.Options{FS: d})
	addSync(t, j, record(0))
	first := snapshot(t, j, "first")
	addSync(t, j, record(1))
	second := snapshot(t, j, strings.Repeat("second ", 20))
	addSync(t, j, record(2))
	j.Close()
	name := fmt.Sprintf("/j/%016x.snap", int64(second))
	whole := readFile(t, d, name)
	spoilt := 0
	try := func(what string, b []byte) {
		t.Helper()
		writeFile(t, d, name, b)
		var said logs
		j := open(t, dir, journal.Options{FS: d, Logger: said.logger()})
		defer j.Close()
		_, r, _, err := j.LatestSnapshot()
		if errors.As(err, new(*journal.LayoutError)) {
			return // another version's: not ours to judge
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		r.Close()
		pos, state := latest(t, j)
		if pos != first || state != "first" || len(replay(t, j, pos)) != 2 {
			t.Fatalf("%s: snapshot %q at %d", what, state, pos)
		}
		if !strings.Contains(said.String(), "damaged") {
			t.Fatalf("%s: the logger heard %q", what, said.String())
		}
		spoilt++
	}
	for at := range whole {
		if at >= 40 && at < 64 {
			continue // zeros that the checksum covers: one is enough
		}
		b := bytes.Clone(whole)
		b[at] ^= 1
		try(fmt.Sprint("byte ", at), b)
	}
	for size := range whole {
		try(fmt.Sprint("cut at ", size), whole[:size])
	}
	if spoilt < len(whole) {
		t.Errorf("only %d tries", spoilt)
	}

	// With none left and the log complete the state is rebuilt from the log alone.
	writeFile(t, d, fmt.Sprintf("/j/%016x.snap", int64(first)), nil)
	j = open(t, dir, journal.Options{FS: d})
	if pos, state := latest(t, j); pos != 0 || state != "" || len(replay(t, j, 0)) != 3 {
		t.Errorf("snapshot %q at %d", state, pos)
	}
}

// Trim leaves the log from the older snapshot on, so that the older one is of use.
func TestFallingBackAfterTrim(t *testing.T) {
	dir := t.TempDir()
	opts := journal.Options{SegmentBytes: 500}
	j := open(t, dir, opts)
	var n int
	more := func() {
		for range 40 {
			addSync(t, j, record(n))
			n++
		}
	}
	more()
	snapshot(t, j, "40")
	more()
	snapshot(t, j, "80")
	more()
	if _, err := j.Trim(journal.Keep{MaxBytes: 1}); err != nil {
		t.Fatal(err)
	}
	j.Close()
	snaps, _ := filepath.Glob(filepath.Join(dir, "*.snap"))
	edit(t, snaps[1], flip(-1))
	j = open(t, dir, opts)
	pos, state := latest(t, j)
	if got := replay(t, j, pos); state != "40" || len(got) != 80 {
		t.Errorf("snapshot %q and %d records, want 40 and 80", state, len(got))
	}
	j.Close()
	edit(t, snaps[0], flip(-1))
	j = open(t, dir, opts)
	_, _, _, err := j.LatestSnapshot()
	if !errors.As(err, new(*journal.CorruptError)) || !strings.Contains(err.Error(), "no whole snapshot") {
		t.Errorf("with both damaged: %v", err)
	}
}

// A snapshot must not know more than the log: it waits.
func TestSnapshotWaitsForTheLog(t *testing.T) {
	d := faultdisk.New(1)
	j := open(t, "/j", journal.Options{FS: d})
	addSync(t, j, record(0))
	d.SetFault(func(op faultdisk.Op) faultdisk.Fault {
		if op.Kind == faultdisk.Write && strings.Contains(op.Name, ".log") {
			return faultdisk.Fault{Err: syscall.ENOSPC}
		}
		return faultdisk.Fault{}
	})
	pos := add(t, j, record(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := j.Snapshot(ctx, pos, func(io.Writer) error {
		t.Error("written before the log")
		return nil
	})
	if !errors.Is(err, journal.ErrUnknown) {
		t.Errorf("got %v", err)
	}
	d.SetFault(nil)
	if got := snapshot(t, j, "two"); got != pos || j.Durable() < pos {
		t.Errorf("snapshot at %d, durable %d, want %d", got, j.Durable(), pos)
	}
}

func TestSnapshotErrors(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, journal.Options{})
	early := addSync(t, j, record(0))
	addSync(t, j, record(1))
	snapshot(t, j, "good")
	broken := errors.New("broken")
	if err := j.Snapshot(t.Context(), j.End(), func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("the writer's error: %v", err)
	}
	if err := j.Snapshot(t.Context(), early, func(io.Writer) error { return nil }); err == nil {
		t.Error("a snapshot older than the last was taken")
	}
	if err := j.Snapshot(t.Context(), j.End()+1, func(io.Writer) error { return nil }); err != journal.ErrBeyondEnd {
		t.Errorf("beyond the end: %v", err)
	}
	if _, state := latest(t, j); state != "good" {
		t.Errorf("the good snapshot is now %q", state)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	j.Close()
	if err := j.Snapshot(t.Context(), j.End(), func(io.Writer) error { return nil }); err != journal.ErrClosed {
		t.Errorf("after close: %v", err)
	}
}

// A log that ends before its snapshot has lost something.
func TestLogEndsBeforeItsSnapshot(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, journal.Options{})
	for n := range 5 {
		addSync(t, j, record(n))
	}
	snapshot(t, j, "5")
	j.Close()
	segments, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	edit(t, segments[0], func(b []byte) []byte { return b[:len(b)-20] })
	size := len(contents(t, dir)[segments[0]])
	_, err := journal.Open(dir, journal.Options{})
	if !errors.As(err, new(*journal.CorruptError)) || !strings.Contains(err.Error(), "a snapshot was made at") {
		t.Errorf("got %v", err)
	}
	if got := len(contents(t, dir)[segments[0]]); got != size {
		t.Errorf("the segment went from %d bytes to %d", size, got)
	}
	if err := os.Remove(segments[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Open(dir, journal.Options{}); !errors.As(err, new(*journal.CorruptError)) {
		t.Errorf("with no segment: %v", err)
	}
}

func TestTrimKeepsWhatItMust(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	d := faultdisk.New(1)
	j := open(t, "/j", journal.Options{FS: d, SegmentBytes: 400, Now: func() time.Time { return now }})
	n := 0
	more := func(to int) {
		for ; n < to; n++ {
			now = now.Add(time.Minute)
			addSync(t, j, record(n))
		}
	}
	more(100)
	all := journal.Keep{From: j.Durable(), Since: now.Add(time.Hour), MaxBytes: 1}
	try := func(k journal.Keep) journal.Pos {
		t.Helper()
		floor, err := j.Trim(k)
		if err != nil || floor != j.Floor() {
			t.Fatalf("trim: %d, %v; floor is %d", floor, err, j.Floor())
		}
		return floor
	}
	if try(all) != 0 {
		t.Error("trimmed without a snapshot")
	}
	snapshot(t, j, "a")
	if try(all) != 0 {
		t.Error("trimmed with a single snapshot")
	}
	more(200)
	reader := j.Durable()
	seen := now
	more(300)
	snapshot(t, j, "b")
	more(400)
	snapshot(t, j, "c") // and a is gone
	whole := j.End()

	if try(journal.Keep{}) != 0 || try(journal.Keep{From: reader}) != 0 || try(journal.Keep{Since: now}) != 0 {
		t.Error("trimmed though nothing said so")
	}
	floor := try(journal.Keep{From: reader, Since: now})
	if floor == 0 || floor > reader || reader-floor > 600 {
		t.Errorf("floor %d for a reader at %d", floor, reader)
	}
	try(journal.Keep{From: j.Durable(), Since: seen.Add(50 * time.Minute)})
	if kept := replay(t, j, j.Floor()); len(kept) < 150 || len(kept) > 165 {
		t.Errorf("%d records of the last 150 minutes kept", len(kept))
	}
	floor = try(journal.Keep{MaxBytes: 9_000})
	if size := whole - floor; size > 9_000 || size < 8_300 {
		t.Errorf("%d bytes kept of 9,000", size)
	}
	try(all)
	if kept := replay(t, j, j.Floor()); len(kept) < 100 || len(kept) > 110 {
		t.Errorf("%d records kept, those after the older snapshot are 100", len(kept))
	}
	var gone *journal.TrimmedError
	if _, err := j.Replay(0, func(journal.Pos, []byte) error { return nil }); !errors.As(err, &gone) || gone.Floor != j.Floor() {
		t.Errorf("reading what is gone: %v", err)
	}
	j.Close()
	j = open(t, "/j", journal.Options{FS: d})
	if got := replay(t, j, j.Floor()); string(got[len(got)-1]) != string(record(399)) {
		t.Error("the last record is not the last")
	}
}

// A file that cannot be deleted is deleted later, and never is a younger one before it.
func TestTrimGoesInOrder(t *testing.T) {
	d := faultdisk.New(1)
	opts := journal.Options{FS: d, SegmentBytes: 300}
	j := open(t, "/j", opts)
	for n := range 100 {
		addSync(t, j, record(n))
	}
	snapshot(t, j, "a")
	addSync(t, j, record(100))
	snapshot(t, j, "b")
	for _, kind := range []faultdisk.Kind{faultdisk.Remove, faultdisk.SyncDir} {
		count := 0
		d.SetFault(func(op faultdisk.Op) faultdisk.Fault {
			if op.Kind == kind {
				if count++; count == 2 {
					return faultdisk.Fault{Err: syscall.EIO}
				}
			}
			return faultdisk.Fault{}
		})
		if _, err := j.Trim(journal.Keep{MaxBytes: 1}); !errors.Is(err, syscall.EIO) {
			t.Fatalf("trim: %v", err)
		}
		replay(t, j, j.Floor())
		d.SetFault(nil)
		names, _ := d.List("/j")
		if kind == faultdisk.Remove && !strings.Contains(fmt.Sprint(names), ".log") {
			t.Error("no segment left")
		}
	}
	floor, err := j.Trim(journal.Keep{MaxBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	names, _ := d.List("/j")
	if names[0] != fmt.Sprintf("%016x.log", int64(floor)) {
		t.Errorf("the floor is %d, the folder has %v", floor, names)
	}
	j.Close()
	j = open(t, "/j", opts)
	if j.Floor() != floor {
		t.Errorf("the floor went from %d to %d", floor, j.Floor())
	}
}

// However long the room churns, the folder stays within its bound.
func TestFolderIsBounded(t *testing.T) {
	d := faultdisk.New(1)
	const segment, bound, state = 4000, 20_000, 3000
	opts := journal.Options{FS: d, SegmentBytes: segment}
	j := open(t, "/j", opts)
	var most int64
	for n := range 20_000 {
		pos := add(t, j, record(n))
		if n%10 == 0 {
			if err := j.Sync(t.Context(), pos); err != nil {
				t.Fatal(err)
			}
		}
		if n%200 == 0 {
			snapshot(t, j, strings.Repeat("s", state))
			if _, err := j.Trim(journal.Keep{MaxBytes: bound}); err != nil {
				t.Fatal(err)
			}
		}
		if n%3000 == 2999 {
			j.Close()
			j = open(t, "/j", opts)
		}
		most = max(most, d.Used())
	}
	// The bound, a segment more since only whole ones go, what was appended since the last trim,
	// and the snapshots: two, and one being made.
	if limit := int64(bound + segment + 200*120 + 3*(state+200)); most > limit {
		t.Errorf("the folder grew to %d bytes, want at most %d", most, limit)
	}
	t.Logf("at most %d bytes, %d were appended", most, j.End())
}
