package journal_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/engine/memory/journal/disk/faultdisk"
)

// A world is a disk, the journals that lived on it one after the other, and what their
// callers were told.
type world struct {
	t    *testing.T
	seed uint64
	rnd  *rand.Rand
	disk *faultdisk.Disk
	j    *journal.Journal

	mu       sync.Mutex
	appended [][]byte // in order; what a restart lost is taken off again
	answered int      // how many of them Sync has vouched for
	lost     int      // unanswered records that a crash took, in all
	crashes  int
	said     logs
}

func newWorld(t *testing.T, seed uint64) *world {
	return &world{t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 1)), disk: faultdisk.New(seed)}
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d, crash %d: %s\n%s", w.seed, w.crashes, fmt.Sprintf(format, args...), w.said.String())
}

// open opens the journal and checks the two promises: what was answered is there, and what
// is there is a prefix of what was appended.
func (w *world) open() bool {
	w.t.Helper()
	var err error
	w.j, err = journal.Open("/room", journal.Options{
		FS: w.disk, Logger: w.said.logger(), SegmentBytes: 3000, MaxPending: 1 << 20,
	})
	if err != nil {
		if w.disk.Dead() || errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENOSPC) {
			w.j = nil
			return false // crashed while it recovered
		}
		w.fatalf("open: %v", err)
	}
	w.check()
	return w.j != nil
}

func (w *world) check() {
	w.t.Helper()
	pos, r, ok, err := w.j.LatestSnapshot()
	if w.died(err) {
		return
	}
	if err != nil {
		w.fatalf("snapshot: %v", err)
	}
	n := 0
	if ok {
		// The state is simply the number of records.
		b, err := io.ReadAll(r)
		r.Close()
		if w.died(err) {
			return
		}
		if err != nil || len(b) < 8 {
			w.fatalf("snapshot of %d bytes: %v", len(b), err)
		}
		n = int(binary.LittleEndian.Uint64(b))
		if n > len(w.appended) {
			w.fatalf("the snapshot knows %d records, %d were appended", n, len(w.appended))
		}
	}
	_, err = w.j.Replay(pos, func(_ journal.Pos, rec []byte) error {
		if n == len(w.appended) {
			return fmt.Errorf("a record that nobody appended: %x", rec)
		}
		if !bytes.Equal(rec, w.appended[n]) {
			return fmt.Errorf("record %d is %x, want %x", n, rec, w.appended[n])
		}
		n++
		return nil
	})
	if w.died(err) {
		return
	}
	if err != nil {
		w.fatalf("replay: %v", err)
	}
	if n < w.answered {
		w.fatalf("%d records, but %d were answered", n, w.answered)
	}
	w.lost += len(w.appended) - n
	w.appended = w.appended[:n]
	w.answered = n // they are durable now, whoever was told
}

func (w *world) died(err error) bool {
	if err != nil && w.disk.Dead() {
		w.j.Close()
		w.j = nil
		return true
	}
	return false
}

// work appends, syncs, snapshots and trims until steps are done or the disk dies.
func (w *world) work(steps int) {
	for range steps {
		if w.disk.Dead() {
			return
		}
		switch w.rnd.IntN(20) {
		default:
			w.burst(1 + w.rnd.IntN(8))
		case 0:
			w.snapshot()
		case 1:
			_, _ = w.j.Trim(journal.Keep{From: w.j.Durable(), MaxBytes: int64(w.rnd.IntN(6000) + 1)})
		case 2:
			// Records nobody waits for.
			w.append()
		}
	}
}

func (w *world) append() (journal.Pos, int) {
	rec := make([]byte, 1+w.rnd.IntN(1+w.rnd.IntN(1200)))
	for i := range rec {
		rec[i] = byte(w.rnd.Uint32())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	pos, err := w.j.Append(rec)
	if err != nil {
		w.fatalf("append: %v", err)
	}
	w.appended = append(w.appended, rec)
	return pos, len(w.appended)
}

// burst lets several callers wait at once, and gives up on them when the disk dies.
func (w *world) burst(callers int) {
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for range callers {
		pos, count := w.append()
		wg.Go(func() {
			err := w.j.Sync(ctx, pos)
			if err == nil {
				w.mu.Lock()
				w.answered = max(w.answered, count)
				w.mu.Unlock()
			} else if !errors.Is(err, journal.ErrUnknown) {
				w.t.Errorf("seed %d: sync: %v", w.seed, err)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for {
		select {
		case <-done:
			return
		case <-pollTick():
			if w.disk.Dead() {
				cancel()
			}
		}
	}
}

func (w *world) snapshot() {
	w.mu.Lock()
	pos, count := w.j.End(), len(w.appended)
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.j.Snapshot(ctx, pos, func(out io.Writer) error {
			b := make([]byte, 8+count) // grows, so that it is torn at many places
			binary.LittleEndian.PutUint64(b, uint64(count))
			_, err := out.Write(b)
			return err
		})
	}()
	for {
		select {
		case <-done:
			return
		case <-pollTick():
			if w.disk.Dead() {
				cancel()
			}
		}
	}
}

// crash ends the journal and the machine or the process.
func (w *world) crash() {
	w.crashes++
	if w.j != nil {
		w.j.Close() // ends its goroutine; the disk is dead, so nothing is written
		w.j = nil
	}
	w.disk.SetFault(nil)
	if w.rnd.IntN(3) == 0 {
		w.disk.Kill()
	} else {
		w.disk.PowerLoss()
	}
}

// live is one life: from a restart to the next crash, which comes at a random operation,
// in recovery too. faulty adds errors of the disk before.
func (w *world) live(faulty bool) {
	at := w.disk.Ops() + 1 + w.rnd.IntN(1+w.rnd.IntN(120))
	rnd := rand.New(rand.NewPCG(w.seed, uint64(w.crashes))) // called under the disk's lock
	w.disk.SetFault(func(op faultdisk.Op) faultdisk.Fault {
		if op.N >= at && op.Kind.Changes() {
			return faultdisk.Fault{Crash: true}
		}
		if faulty && op.Kind.Changes() && rnd.IntN(12) == 0 {
			err := []error{syscall.EIO, syscall.ENOSPC}[rnd.IntN(2)]
			short := 0
			if op.Len > 0 {
				short = rnd.IntN(op.Len)
			}
			return faultdisk.Fault{Err: err, Short: short}
		}
		return faultdisk.Fault{}
	})
	for !w.disk.Dead() {
		if w.j != nil || w.open() {
			w.work(50)
		} else if !w.disk.Dead() && !faulty {
			w.fatalf("the journal does not open")
		}
	}
	w.crash()
}

// seeds runs f for a number of seeds, more of them when soaking, or for the one that
// USHER_SEED names. It runs each in a bubble, where waiting for a retry takes no time. A
// seed fixes the faults, not the order in which goroutines run.
func seeds(t *testing.T, n uint64, f func(t *testing.T, seed uint64)) {
	if s := os.Getenv("USHER_SEED"); s != "" {
		var seed uint64
		if _, err := fmt.Sscan(s, &seed); err != nil {
			t.Fatalf("USHER_SEED: %v", err)
		}
		synctest.Test(t, func(t *testing.T) { f(t, seed) })
		return
	}
	if os.Getenv("USHER_SOAK") != "" {
		n *= 100
	}
	if testing.Short() {
		n = min(n, 10)
	}
	for seed := range n {
		synctest.Test(t, func(t *testing.T) { f(t, seed) })
		if t.Failed() {
			return
		}
	}
}

func testCrashes(t *testing.T, n uint64, faulty bool) {
	var crashes, lost, kept, cuts int
	seeds(t, n, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		for range 12 {
			w.live(faulty)
		}
		if !w.open() {
			w.fatalf("the journal does not open")
		}
		w.j.Close()
		crashes += w.crashes
		lost += w.lost
		kept += len(w.appended)
		cuts += strings.Count(w.said.String(), "cutting")
	})
	t.Logf("%d crashes, %d records kept, %d unanswered ones lost, %d torn tails cut", crashes, kept, lost, cuts)
	if !t.Failed() && os.Getenv("USHER_SEED") == "" && (lost == 0 || cuts == 0) {
		t.Error("nothing was ever torn: the test does not test")
	}
}

// A crash at any operation, of the process or of the power.
func TestCrashAnywhere(t *testing.T) { testCrashes(t, 300, false) }

// The same on a disk whose writes, syncs, renames and directory syncs fail now and then.
func TestCrashAnywhereOnAFailingDisk(t *testing.T) { testCrashes(t, 300, true) }
