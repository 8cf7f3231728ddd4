package journal_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/engine/memory/journal/disk/faultdisk"
)

// While the disk is full callers wait or leave with an unknown outcome, memory is
// bounded, the message says what to do; when there is room again all heals by itself.
func TestDiskFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := faultdisk.New(1)
		var said logs
		j := open(t, "/j", journal.Options{FS: d, MaxPending: 5000, Logger: said.logger()})
		for n := range 10 {
			addSync(t, j, record(n))
		}
		answered := j.Durable()
		d.SetCapacity(d.Used() + 20) // the next record is cut short

		pos := add(t, j, record(10))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err := j.Sync(ctx, pos)
		if !errors.Is(err, journal.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("sync on a full disk: %v", err)
		}
		var stall *journal.StallError
		if err := j.Err(); !errors.As(err, &stall) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("health: %v", err)
		}
		for _, part := range []string{"disk full: 0 bytes free on /j", "free some space", "every second"} {
			if !strings.Contains(stall.Error(), part) {
				t.Errorf("the message %q does not say %q", stall, part)
			}
		}
		if j.Durable() != answered {
			t.Errorf("durable went from %d to %d", answered, j.Durable())
		}
		if got := replay(t, j, 0); len(got) != 10 {
			t.Errorf("readers see %d records, want 10", len(got))
		}

		n := 11
		for ; ; n++ {
			if err := j.Ready(); err == journal.ErrFull {
				break
			}
			pos = add(t, j, record(n))
		}
		if p := j.Stats().Pending; p < 5000 || p > 5200 {
			t.Errorf("%d bytes wait, the bound is 5000", p)
		}
		if _, err := j.Append(record(n)); err != journal.ErrFull {
			t.Errorf("append beyond the bound: %v", err)
		}

		waited := make(chan error)
		go func() { waited <- j.Sync(t.Context(), pos) }()
		time.Sleep(30 * time.Second)
		if got := strings.Count(said.String(), "level=ERROR"); got != 1 {
			t.Errorf("%d lines about one full disk, want 1:\n%s", got, said.String())
		}
		d.SetCapacity(0)
		began := time.Now()
		if err := <-waited; err != nil {
			t.Errorf("sync after space came back: %v", err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("healed after %v, it is to be retried every second", took)
		}
		if err := j.Err(); err != nil {
			t.Errorf("health after space came back: %v", err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		d.PowerLoss()
		if got := replay(t, open(t, "/j", journal.Options{FS: d}), 0); len(got) != n {
			t.Errorf("%d records, want %d", len(got), n)
		}
	})
}

// A full disk at the moment when a new segment or a snapshot is due.
func TestDiskFullElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := faultdisk.New(1)
		j := open(t, "/j", journal.Options{FS: d, SegmentBytes: 500})
		addSync(t, j, make([]byte, 600))
		d.SetCapacity(d.Used() + 30)
		pos := add(t, j, record(1)) // needs a new segment
		waited := make(chan error)
		go func() { waited <- j.Sync(t.Context(), pos) }()
		synctest.Wait()
		if err := j.Err(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("health: %v", err)
		}
		d.SetCapacity(0)
		if err := <-waited; err != nil {
			t.Error(err)
		}

		d.SetCapacity(d.Used() + 100)
		err := j.Snapshot(t.Context(), pos, func(w io.Writer) error {
			_, err := w.Write(make([]byte, 1000))
			return err
		})
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("snapshot: %v", err)
		}
		if names, _ := d.List("/j"); strings.Contains(fmt.Sprint(names), ".tmp") {
			t.Errorf("a failed snapshot was left behind: %v", names)
		}
		if _, _, ok, err := j.LatestSnapshot(); ok || err != nil {
			t.Errorf("a failed snapshot counts: %v, %v", ok, err)
		}
		if err := j.Err(); err != nil {
			t.Errorf("a failed snapshot stalls the log: %v", err)
		}
	})
}

// After a failed sync nothing that the file shows is trusted: all that waits is written
// once more, to another segment.
func TestFailedSync(t *testing.T) {
	for _, kind := range []faultdisk.Kind{faultdisk.Sync, faultdisk.Write} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := faultdisk.New(1)
				j := open(t, "/j", journal.Options{FS: d})
				addSync(t, j, record(0))
				durable := j.Durable()
				fails := 2
				d.SetFault(func(op faultdisk.Op) faultdisk.Fault {
					if op.Kind == kind && fails > 0 {
						fails--
						return faultdisk.Fault{Err: syscall.EIO, Short: op.Len / 2}
					}
					return faultdisk.Fault{}
				})
				pos := addSync(t, j, record(1))
				if s := j.Stats(); s.Segments != 2 || s.Failures != 2 {
					t.Errorf("stats: %+v", s)
				}
				names, _ := d.List("/j")
				if want := fmt.Sprintf("%016x.log", int64(durable)); !strings.Contains(fmt.Sprint(names), want) {
					t.Errorf("%v has no %s", names, want)
				}
				if got := replay(t, j, 0); len(got) != 2 {
					t.Errorf("readers see %d records, want 2", len(got))
				}
				j.Close()
				d.PowerLoss()
				j = open(t, "/j", journal.Options{FS: d})
				if got := replay(t, j, 0); len(got) != 2 || j.Durable() < pos {
					t.Errorf("%d records up to %d, want 2 up to %d", len(got), j.Durable(), pos)
				}
			})
		})
	}
}

// A process is killed after a sync has failed. The next one finds the record in the page
// cache, where it looks as good as any, though it is not on the disk. If it went on from
// there, a power loss would leave a hole before records that were answered.
func TestFailedSyncThenKillThenPowerLoss(t *testing.T) {
	for seed := range uint64(50) {
		d := faultdisk.New(seed)
		j := open(t, "/j", journal.Options{FS: d})
		addSync(t, j, record(0))
		failed := make(chan struct{}, 1)
		d.SetFault(func(op faultdisk.Op) faultdisk.Fault {
			switch op.Kind {
			case faultdisk.Sync:
				select {
				case failed <- struct{}{}:
				default:
				}
				return faultdisk.Fault{Err: syscall.EIO}
			case faultdisk.Create: // and no other segment
				return faultdisk.Fault{Err: syscall.EIO}
			}
			return faultdisk.Fault{}
		})
		add(t, j, make([]byte, 5000))
		<-failed
		if err := j.Close(); err == nil {
			t.Fatal("closed in order on a disk that fails")
		}
		d.SetFault(nil)
		d.Kill()

		j = open(t, "/j", journal.Options{FS: d})
		if got := replay(t, j, 0); len(got) != 2 {
			t.Fatalf("%d records in the page cache, the test wants 2", len(got))
		}
		addSync(t, j, record(2))
		j.Close()
		d.PowerLoss()
		j = open(t, "/j", journal.Options{FS: d})
		if got := replay(t, j, 0); len(got) != 3 {
			t.Fatalf("seed %d: %d records, want 3", seed, len(got))
		}
		j.Close()
	}
}

// A disk that neither succeeds nor fails is reported as well.
func TestSilentDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := faultdisk.New(1)
		j := open(t, "/j", journal.Options{FS: d})
		answer := make(chan struct{})
		d.SetFault(func(op faultdisk.Op) faultdisk.Fault {
			if op.Kind == faultdisk.Sync {
				<-answer
			}
			return faultdisk.Fault{}
		})
		pos := add(t, j, record(0))
		time.Sleep(4 * time.Second)
		if err := j.Err(); err != nil {
			t.Errorf("after 4 s: %v", err)
		}
		time.Sleep(3 * time.Second)
		var stall *journal.StallError
		if err := j.Err(); !errors.As(err, &stall) || !strings.Contains(err.Error(), "has not answered for 7s") || stall.Pending != int64(pos) {
			t.Errorf("after 7 s: %v", err)
		}
		close(answer)
		if err := j.Sync(t.Context(), pos); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if err := j.Err(); err != nil {
			t.Errorf("after the answer: %v", err)
		}
	})
}

// Closing on a disk that fails does not wait for better times, tells those who wait that
// nobody knows, and leaves no later record without an earlier one.
func TestCloseOnAFailingDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := faultdisk.New(1)
		j := open(t, "/j", journal.Options{FS: d})
		addSync(t, j, record(0))
		failing := true // until the first attempt after Close has begun
		d.SetFault(func(op faultdisk.Op) faultdisk.Fault {
			if failing && op.Kind == faultdisk.Write {
				return faultdisk.Fault{Err: syscall.ENOSPC}
			}
			return faultdisk.Fault{}
		})
		first := add(t, j, record(1))
		synctest.Wait() // its first attempt has failed
		second := add(t, j, record(2))
		answers := make(chan error, 2)
		for _, pos := range []journal.Pos{first, second} {
			go func() { answers <- j.Sync(t.Context(), pos) }()
		}
		synctest.Wait()
		d.SetFault(func(op faultdisk.Op) faultdisk.Fault {
			if failing && op.Kind == faultdisk.Write {
				failing = false
				return faultdisk.Fault{Err: syscall.ENOSPC}
			}
			return faultdisk.Fault{}
		})
		if err := j.Close(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("close: %v", err)
		}
		for range 2 {
			if err := <-answers; !errors.Is(err, journal.ErrUnknown) || !errors.Is(err, journal.ErrClosed) {
				t.Errorf("sync: %v", err)
			}
		}
		if err := j.Sync(t.Context(), second); !errors.Is(err, journal.ErrUnknown) {
			t.Errorf("sync after close: %v", err)
		}
		d.SetFault(nil)
		if got := replay(t, open(t, "/j", journal.Options{FS: d}), 0); len(got) != 1 {
			t.Errorf("%d records, want 1", len(got))
		}
	})
}

// Any byte of the last segment may be damaged. Then either the damage is named, or it is taken
// for an interrupted write, but never is a record invented or one kept behind a lost one.
func TestDamageIsNeverReadAsARecord(t *testing.T) {
	d := faultdisk.New(1)
	j := open(t, "/j", journal.Options{FS: d})
	const n = 12
	for i := range n {
		addSync(t, j, record(i*7))
	}
	j.Close()
	const name = "/j/0000000000000000.log"
	whole := readFile(t, d, name)
	rnd := rand.New(rand.NewPCG(1, 1))
	named, cut := 0, 0
	for at := range whole {
		damaged := append([]byte(nil), whole...)
		damaged[at] ^= byte(1 + rnd.IntN(255))
		d := faultdisk.New(2)
		if err := d.MkdirAll("/j"); err != nil {
			t.Fatal(err)
		}
		writeFile(t, d, name, damaged)
		j, err := journal.Open("/j", journal.Options{FS: d})
		if err != nil {
			if !errors.As(err, new(*journal.CorruptError)) && !errors.As(err, new(*journal.LayoutError)) {
				t.Fatalf("damage at %d: %v", at, err)
			}
			named++
			continue
		}
		for i, rec := range replay(t, j, 0) {
			if i >= n || string(rec) != string(record(i*7)) {
				t.Fatalf("damage at %d: record %d is %x", at, i, rec)
			}
		}
		cut++
		j.Close()
	}
	// The journal was closed in order, so only the mark at its end can pass for an
	// interrupted write.
	if cut != 12 {
		t.Errorf("damage was named at %d places and cut off at %d, want 12", named, cut)
	}
}
