package journal_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/engine/memory/journal/disk/faultdisk"
)

// logs collects what a journal says.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func open(t *testing.T, dir string, opts journal.Options) *journal.Journal {
	t.Helper()
	j, err := journal.Open(dir, opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

// record makes the n-th record: recognisable, of varied length.
func record(n int) []byte {
	b := make([]byte, 8+n%90)
	binary.LittleEndian.PutUint64(b, uint64(n))
	for i := 8; i < len(b); i++ {
		b[i] = byte(n + i)
	}
	return b
}

func add(t *testing.T, j *journal.Journal, rec []byte) journal.Pos {
	t.Helper()
	pos, err := j.Append(rec)
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	return pos
}

func addSync(t *testing.T, j *journal.Journal, rec []byte) journal.Pos {
	t.Helper()
	pos := add(t, j, rec)
	if err := j.Sync(t.Context(), pos); err != nil {
		t.Fatalf("sync: %v", err)
	}
	return pos
}

// replay returns copies of all records after from.
func replay(t *testing.T, j *journal.Journal, from journal.Pos) [][]byte {
	t.Helper()
	var recs [][]byte
	_, err := j.Replay(from, func(_ journal.Pos, rec []byte) error {
		recs = append(recs, bytes.Clone(rec))
		return nil
	})
	if err != nil {
		t.Fatalf("replay from %d: %v", from, err)
	}
	return recs
}

func TestReplayFromEveryPosition(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, journal.Options{SegmentBytes: 2000})
	var positions []journal.Pos
	for n := range 300 {
		pos := add(t, j, record(n))
		if n%7 == 0 {
			if err := j.Sync(t.Context(), pos); err != nil {
				t.Fatal(err)
			}
		}
		positions = append(positions, pos)
	}
	if err := j.Sync(t.Context(), positions[299]); err != nil {
		t.Fatal(err)
	}
	check := func(j *journal.Journal) {
		t.Helper()
		for k := -1; k < 300; k++ {
			var from journal.Pos
			if k >= 0 {
				from = positions[k]
			}
			n := k + 1
			next, err := j.Replay(from, func(pos journal.Pos, rec []byte) error {
				if !bytes.Equal(rec, record(n)) || pos != positions[n] {
					return fmt.Errorf("record %d at %d is not what was appended at %d", n, pos, positions[n])
				}
				n++
				return nil
			})
			if err != nil || n != 300 {
				t.Fatalf("from record %d: %d records, %v", k, n, err)
			}
			if next < positions[299] {
				t.Fatalf("next is %d, the last record is at %d", next, positions[299])
			}
		}
	}
	check(j)
	if s := j.Stats(); s.Segments < 3 || s.Records != 300 {
		t.Errorf("stats: %+v", s)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = open(t, dir, journal.Options{SegmentBytes: 2000})
	check(j)
	addSync(t, j, record(300))
	if got := replay(t, j, positions[298]); len(got) != 2 {
		t.Errorf("%d records after number 298, want 2", len(got))
	}
}

func TestReplayStopsWhereTold(t *testing.T) {
	j := open(t, t.TempDir(), journal.Options{})
	var second journal.Pos
	for n := range 5 {
		pos := addSync(t, j, record(n))
		if n == 1 {
			second = pos
		}
	}
	enough := errors.New("enough")
	n := 0
	next, err := j.Replay(0, func(journal.Pos, []byte) error {
		if n == 2 {
			return enough
		}
		n++
		return nil
	})
	if err != enough || next != second {
		t.Errorf("got %d, %v; want %d, enough", next, err, second)
	}
	if _, err := j.Replay(second-1, func(journal.Pos, []byte) error { return nil }); !errors.As(err, new(*journal.CorruptError)) {
		t.Errorf("a position within a record: %v", err)
	}
	if _, err := j.Replay(j.End()+1, func(journal.Pos, []byte) error { return nil }); err != journal.ErrBeyondEnd {
		t.Errorf("a position beyond the end: %v", err)
	}
}

func TestAppendRefusals(t *testing.T) {
	d := faultdisk.New(1)
	j := open(t, "/j", journal.Options{FS: d, MaxPending: 1000})
	for _, rec := range [][]byte{nil, {}, make([]byte, journal.MaxRecord+1)} {
		if _, err := j.Append(rec); err != journal.ErrRecordSize {
			t.Errorf("%d bytes: %v", len(rec), err)
		}
	}
	pos := addSync(t, j, []byte("x"))
	if err := j.Sync(t.Context(), pos+1); err != journal.ErrBeyondEnd {
		t.Errorf("sync beyond the end: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if _, err := j.Append([]byte("x")); err != journal.ErrClosed {
		t.Errorf("append after close: %v", err)
	}
	if err := j.Ready(); err != journal.ErrClosed {
		t.Errorf("ready after close: %v", err)
	}
	if err := j.Sync(t.Context(), pos); err != nil {
		t.Errorf("what was durable before close is not: %v", err)
	}
}

// The journal promises that no Sync returns before the disk has said that all up to the
// position is there. The disk itself counts.
func TestEveryAnswerWaitedForItsSync(t *testing.T) {
	d := faultdisk.New(2)
	var synced atomicPos
	d.SetAfter(func(op faultdisk.Op) {
		var start journal.Pos
		if op.Kind != faultdisk.Sync || !strings.Contains(op.Name, ".log") {
			return
		}
		fmt.Sscanf(op.Name, "/j/%016x", &start)
		synced.raise(start + journal.Pos(op.Size) - 64)
	})
	var told atomicPos
	j := open(t, "/j", journal.Options{FS: d, SegmentBytes: 20000, OnDurable: func(upto journal.Pos) {
		if upto > synced.load() {
			t.Errorf("OnDurable(%d), the disk has %d", upto, synced.load())
		}
		told.raise(upto)
	}})
	const callers, each = 64, 200
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for n := range each {
				pos, err := j.Append(record(c*each + n))
				if err == nil {
					err = j.Sync(context.Background(), pos)
				}
				if err != nil {
					t.Error(err)
					return
				}
				if synced.load() < pos {
					t.Errorf("answered at %d, the disk has %d", pos, synced.load())
				}
				if told.load() < pos {
					t.Errorf("answered at %d, OnDurable was told %d", pos, told.load())
				}
			}
		})
	}
	wg.Wait()
	s := j.Stats()
	if s.Records != callers*each || s.Segments < 3 {
		t.Errorf("stats: %+v", s)
	}
	t.Logf("%d answers shared %d syncs", s.Records, s.Groups)
}

func TestNoSync(t *testing.T) {
	d := faultdisk.New(3)
	syncs := 0
	d.SetAfter(func(op faultdisk.Op) {
		if op.Kind == faultdisk.Sync || op.Kind == faultdisk.SyncDir {
			syncs++
		}
	})
	j := open(t, "/j", journal.Options{FS: d, NoSync: true})
	for n := range 100 {
		addSync(t, j, record(n))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	d.SetAfter(nil)
	if syncs != 0 {
		t.Errorf("%d syncs", syncs)
	}
	if got := replay(t, open(t, "/j", journal.Options{FS: d, NoSync: true}), 0); len(got) != 100 {
		t.Errorf("%d records, want 100", len(got))
	}
}

// Appending, syncing, reading, snapshots, trimming and closing at once: for -race, and
// every reader must see the records in order without a hole.
func TestEverythingAtOnce(t *testing.T) {
	j := open(t, t.TempDir(), journal.Options{SegmentBytes: 6000})
	ctx, cancel := context.WithCancel(t.Context())
	var wg, appenders sync.WaitGroup
	var mu sync.Mutex // as the engine's: order of numbers is order of records
	n := 0
	for range 8 {
		appenders.Go(func() {
			for {
				mu.Lock()
				if n == 600 {
					mu.Unlock()
					return
				}
				pos, err := j.Append(record(n))
				n++
				mu.Unlock()
				if err == nil {
					err = j.Sync(context.Background(), pos)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		wg.Go(func() {
			var from journal.Pos
			want := -1
			for ctx.Err() == nil {
				next, err := j.Replay(from, func(_ journal.Pos, rec []byte) error {
					got := int(binary.LittleEndian.Uint64(rec))
					if want >= 0 && got != want || !bytes.Equal(rec, record(got)) {
						return fmt.Errorf("record %d, want %d", got, want)
					}
					want = got + 1
					return nil
				})
				var gone *journal.TrimmedError
				if errors.As(err, &gone) {
					next, want = gone.Floor, -1
				} else if err != nil {
					t.Error(err)
					return
				}
				from = next
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			pos := j.Durable()
			err := j.Snapshot(ctx, pos, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "state at %d", pos)
				return err
			})
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			if _, err := j.Trim(journal.Keep{From: j.Durable(), MaxBytes: 8000}); err != nil {
				t.Error(err)
			}
			_, r, ok, err := j.LatestSnapshot()
			if err != nil || !ok {
				t.Errorf("no snapshot: %v", err)
				return
			}
			r.Close()
			_, _, _ = j.Stats(), j.Err(), j.Ready()
		}
	})
	appenders.Wait()
	cancel()
	wg.Wait()
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}
