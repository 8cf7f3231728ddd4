package memory_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/engine/memory/journal/disk/faultdisk"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/room/roomtest"
)

// faulty opens an engine whose rooms are on a faulty disk. Which rooms there are is on the
// real one, in dir.
func faulty(t *testing.T, d *faultdisk.Disk, dir string, opts memory.Options) *memory.Engine {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "rooms", "premiere"), 0o700); err != nil {
		t.Fatal(err)
	}
	opts.FS = d
	e, err := memory.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func mustDo(t *testing.T, s room.Store, cmd *room.Command) room.Result {
	t.Helper()
	r, err := s.Do(t.Context(), "premiere", cmd)
	if err != nil || r.Err != nil {
		t.Fatalf("%+v: %v %v", cmd, r.Err, err)
	}
	return r
}

func number(n int) (id room.ID) {
	binary.BigEndian.PutUint64(id[:], uint64(n)+1)
	return id
}

func enterCmd(n int) *room.Command {
	return &room.Command{Op: room.OpEnter, NewID: number(n), Request: [16]byte(number(n))}
}

// TestPowerLossKeepsWhatWasAnswered turns the machine off in the middle of any operation of the
// disk, under load, and forgets whatever was not synced.
func TestPowerLossKeepsWhatWasAnswered(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 8
	}
	if os.Getenv("USHER_SOAK") != "" {
		seeds = 2000
	}
	answers := 0
	for seed := range seeds {
		dir, d := t.TempDir(), faultdisk.New(seed)
		rng := rand.New(rand.NewPCG(seed, 3))
		opts := memory.Options{SegmentBytes: 2 << 10}
		answered := map[room.Ref]int{}
		left := map[room.Ref]bool{}
		base := 0
		for range 3 { // crash after crash on one disk
			e := faulty(t, d, dir, opts)
			mustDo(t, e, &room.Command{Op: room.OpConfigure, Config: stormConfig(5)})
			at := d.Ops() + rng.IntN(150)
			d.SetFault(func(op faultdisk.Op) faultdisk.Fault {
				return faultdisk.Fault{Crash: op.N >= at && op.Kind.Changes()}
			})
			ctx, cancel := context.WithCancel(t.Context())
			var mu sync.Mutex
			var wg sync.WaitGroup
			for k := range 8 {
				wg.Go(func() {
					for n := range 100 {
						n := base + 100*k + n
						r, err := e.Do(ctx, "premiere", enterCmd(n))
						if err == nil && r.Err == nil {
							mu.Lock()
							answered[r.View.Ref] = n
							mu.Unlock()
							if n%3 == 0 {
								ref := r.View.Ref
								if r, err = e.Do(ctx, "premiere", &room.Command{Op: room.OpLeave, Ref: ref}); err == nil {
									mu.Lock()
									left[ref] = true
									mu.Unlock()
								}
							}
						}
						if err != nil {
							return
						}
					}
				})
			}
			done := make(chan struct{})
			go func() { wg.Wait(); close(done) }()
			for !d.Dead() {
				select {
				case <-done:
				case <-time.After(time.Millisecond):
					continue
				}
				break
			}
			cancel()
			<-done
			_ = e.Close() // of a machine that is off
			d.SetFault(nil)
			d.PowerLoss()
			base += 1000
		}
		e := faulty(t, d, dir, opts)
		events := readLog(t, e, "premiere")
		if err := roomtest.Audit(events); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, ev := range events {
			switch ev.Type {
			case room.Entered:
				if n, ok := answered[ev.Ref]; ok && ev.Request == [16]byte(number(n)) {
					delete(answered, ev.Ref)
					answers++
				}
			case room.Left, room.Expired, room.Abandoned:
				delete(left, ev.Ref)
			}
		}
		if len(answered)+len(left) > 0 {
			t.Fatalf("seed %d: of what was answered is not in the log: %v entered, %v left", seed, answered, left)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d power losses, %d answers, all there", 3*seeds, answers)
}

// TestEveryAnswerWaitedForItsSync lets the disk count: when an answer leaves, the record of the
// last event that it knows of is synced.
func TestEveryAnswerWaitedForItsSync(t *testing.T) {
	dir, d := t.TempDir(), faultdisk.New(1)
	folder := filepath.Join(dir, "rooms", "premiere")
	var synced atomic.Int64 // position in the log
	d.SetAfter(func(op faultdisk.Op) {
		var start int64
		if op.Kind == faultdisk.Sync && strings.HasPrefix(op.Name, folder) && strings.Contains(op.Name, ".log") {
			fmt.Sscanf(filepath.Base(op.Name), "%016x", &start)
			if end := start + op.Size - 64; end > synced.Load() { // one at a time: the disk is locked
				synced.Store(end)
			}
		}
	})
	e := faulty(t, d, dir, memory.Options{SegmentBytes: 20 << 10})
	mustDo(t, e, &room.Command{Op: room.OpConfigure, Config: stormConfig(20)})
	type answer struct {
		n      uint64 // the last event it knows of
		synced int64  // when it left
	}
	var mu sync.Mutex
	var answers []answer
	var wg sync.WaitGroup
	for k := range 32 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(k)))
			var refs []room.Ref
			for i := range 150 {
				cmd := enterCmd(1000*k + i)
				if len(refs) > 0 && rng.IntN(2) == 0 {
					op := []room.Op{room.OpStatus, room.OpStatus, room.OpClaim, room.OpRenew, room.OpLeave, room.OpHeard}[rng.IntN(6)]
					cmd = &room.Command{Op: op, Ref: refs[rng.IntN(len(refs))], Refs: refs}
				}
				r, err := e.Do(t.Context(), "premiere", cmd)
				a := answer{r.N, synced.Load()}
				if err != nil {
					t.Error(err)
					return
				}
				if r.View.Created {
					refs = append(refs, r.View.Ref)
				}
				mu.Lock()
				answers = append(answers, a)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	syncs := e.Stats()["premiere"].Groups
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(folder, journal.Options{FS: d})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	ends := map[uint64]int64{} // of the record that holds event n
	if _, err := j.Replay(0, func(pos journal.Pos, rec []byte) error {
		for len(rec) > 0 {
			ev, rest, err := room.DecodeEvent(rec)
			if err != nil {
				return err
			}
			ends[ev.N], rec = int64(pos), rest
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, a := range answers {
		if end, ok := ends[a.n]; !ok || a.synced < end {
			t.Fatalf("an answer that knows event %d left when the disk had %d, the event ends at %d", a.n, a.synced, end)
		}
	}
	t.Logf("%d answers shared %d syncs", len(answers), syncs)
}

// An answer that only shows what another call changed waits for that change to be durable, and
// followers do not see it sooner either.
func TestStatusWaitsForWhatItShows(t *testing.T) {
	dir, d := t.TempDir(), faultdisk.New(1)
	var waiting atomic.Int64
	e := faulty(t, d, dir, memory.Options{OnSync: func(context.Context, string) func(error) {
		waiting.Add(1)
		return func(error) { waiting.Add(-1) }
	}})
	defer e.Close()
	mustDo(t, e, &room.Command{Op: room.OpConfigure, Config: stormConfig(1)})
	seen := &watcher{}
	following := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _ = e.Follow(ctx, "premiere", seen); close(following) }()
	defer func() { cancel(); <-following }()
	until(t, func() bool { return seen.ready.Load() })

	gate := make(chan struct{})
	d.SetFault(func(op faultdisk.Op) faultdisk.Fault {
		if op.Kind == faultdisk.Sync {
			<-gate
		}
		return faultdisk.Fault{}
	})
	cmds := []*room.Command{
		enterCmd(1), enterCmd(1), // the second one is told what the first one did
		{Op: room.OpStatus, Ref: room.Ref{Seq: 1, ID: number(1)}},
		{Op: room.OpRenew, Ref: room.Ref{Seq: 1, ID: number(1)}},
		{Op: room.OpHeard, Refs: []room.Ref{{Seq: 1, ID: number(1)}}},
	}
	var answered atomic.Int64
	var wg sync.WaitGroup
	for i, cmd := range cmds {
		wg.Go(func() {
			r, err := e.Do(t.Context(), "premiere", cmd)
			answered.Add(1)
			if err != nil || r.Err != nil {
				t.Error(i, r.Err, err)
			}
		})
		until(t, func() bool { return waiting.Load() == int64(i+1) })
	}
	if n := answered.Load(); n != 0 {
		t.Errorf("%d answers left before the disk had what they say", n)
	}
	if n := seen.events.Load(); n != 0 {
		t.Errorf("a follower saw %d events that may still be lost", n)
	}
	close(gate)
	wg.Wait()
	if n := seen.events.Load(); n != 3 { // entered, admitted, claimed
		t.Errorf("the follower saw %d events before the answers", n)
	}
}

type watcher struct {
	ready  atomic.Bool
	events atomic.Int64
}

func (w *watcher) Reset(*room.Mirror)        { w.ready.Store(true) }
func (w *watcher) Apply(events []room.Event) { w.events.Add(int64(len(events))) }

// until polls until ok.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("not within 30 s")
		}
		time.Sleep(time.Millisecond) // between two looks
	}
}

// TestFullDisk fills the disk under load, and frees it again: calls are refused with words that
// help, nothing answered is lost, and all goes on by itself.
func TestFullDisk(t *testing.T) {
	dir, d := t.TempDir(), faultdisk.New(1)
	var logged strings.Builder
	e := faulty(t, d, dir, memory.Options{SegmentBytes: 8 << 10, SnapshotBytes: 16 << 10, Logger: slog.New(slog.NewTextHandler(&lockedWriter{w: &logged}, nil))})
	mustDo(t, e, &room.Command{Op: room.OpConfigure, Config: stormConfig(20)})
	d.SetCapacity(d.Used() + 30<<10)
	var mu sync.Mutex
	answered := map[room.Ref]bool{}
	var unknown []int
	var refused error
	var wg sync.WaitGroup
	for k := range 16 {
		wg.Go(func() {
			for i := 0; ; i++ {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				r, err := e.Do(ctx, "premiere", enterCmd(100_000*k+i))
				cancel()
				mu.Lock()
				switch {
				case errors.Is(err, room.ErrUnknown):
					unknown = append(unknown, 100_000*k+i)
				case errors.Is(err, room.ErrUnavailable):
					refused = err
					mu.Unlock()
					return
				case err != nil:
					t.Error(err)
				case r.Err == nil:
					answered[r.View.Ref] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Log("a call:", refused)
	health := e.Health()
	t.Log("health:", health)
	for _, err := range []error{refused, health} {
		if !errors.Is(err, room.ErrUnavailable) || !strings.Contains(err.Error(), "disk full") || !strings.Contains(err.Error(), "free some space") || !strings.Contains(err.Error(), dir) {
			t.Errorf("this does not help: %v", err)
		}
	}
	d.SetCapacity(0)
	until(t, func() bool { return e.Health() == nil })
	for _, n := range unknown { // settled by the same request id
		if r, err := e.Do(t.Context(), "premiere", enterCmd(n)); err != nil || r.Err != nil {
			t.Error(r.Err, err)
		}
	}
	events := readLog(t, e, "premiere")
	if err := roomtest.Audit(events); err != nil {
		t.Error(err)
	}
	for _, ev := range events {
		if ev.Type == room.Entered {
			delete(answered, ev.Ref)
		}
	}
	if len(answered) > 0 {
		t.Errorf("%d answered enters are lost", len(answered))
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("%d unknown, all settled; the log says\n%s", len(unknown), logged.String())
}

type lockedWriter struct {
	mu sync.Mutex
	w  *strings.Builder
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(p)
}

// While the disk is full nobody can be heard. That time counts against nobody: afterwards each
// has a full grace, claim and idle.
func TestFullDiskCostsNobodyHerPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, d := t.TempDir(), faultdisk.New(1)
		e := faulty(t, d, dir, memory.Options{})
		c := config(2)
		c.Queue.Grace, c.Session.Claim = room.Duration(28*time.Second), room.Duration(30*time.Second)
		c.Session.Idle, c.Session.Max = room.Duration(30*time.Second), room.Duration(10*time.Minute)
		mustDo(t, e, &room.Command{Op: room.OpConfigure, Config: &c})
		claimed, unclaimed, waiter := mustDo(t, e, enterCmd(1)).View.Ref, mustDo(t, e, enterCmd(2)).View.Ref, mustDo(t, e, enterCmd(3)).View.Ref
		mustDo(t, e, &room.Command{Op: room.OpClaim, Ref: claimed})
		time.Sleep(25 * time.Second)
		full := func(op faultdisk.Op) faultdisk.Fault {
			if op.Kind == faultdisk.Write || op.Kind == faultdisk.Create {
				return faultdisk.Fault{Err: syscall.ENOSPC}
			}
			return faultdisk.Fault{}
		}
		d.SetFault(full)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := e.Do(ctx, "premiere", enterCmd(4)); !errors.Is(err, room.ErrUnknown) {
			t.Errorf("under way when the disk filled: %v", err)
		}
		time.Sleep(time.Hour)
		if _, err := e.Do(t.Context(), "premiere", enterCmd(5)); !errors.Is(err, room.ErrUnavailable) {
			t.Errorf("on a full disk: %v", err)
		}
		d.SetFault(nil)
		time.Sleep(2 * time.Second)
		if err := e.Health(); err != nil {
			t.Fatal(err)
		}
		look := func(ref room.Ref) (room.TicketState, room.Reason) {
			for _, ev := range readLog(t, e, "premiere") {
				if ev.ID == ref.ID && ev.Type >= room.Left {
					return room.Ended, ev.Reason
				}
			}
			return room.Waiting, 0
		}
		time.Sleep(25*time.Second + 500*time.Millisecond) // after 25 s before, and an hour, and 2 s
		for _, ref := range []room.Ref{claimed, unclaimed, waiter} {
			if s, why := look(ref); s == room.Ended {
				t.Errorf("ticket %d ended for %v by the outage", ref.Seq, why)
			}
		}
		time.Sleep(6 * time.Second)
		for ref, want := range map[room.Ref]room.Reason{claimed: room.ReasonIdle, unclaimed: room.ReasonClaim, waiter: room.ReasonAbandoned} {
			if s, why := look(ref); s != room.Ended || why != want {
				t.Errorf("ticket %d after a silent grace: %v %v, want %v", ref.Seq, s, why, want)
			}
		}
		if v, err := e.Do(t.Context(), "premiere", enterCmd(4)); err != nil || v.View.Created {
			t.Errorf("the unknown one: %+v %v", v.View, err) // it was done
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}
