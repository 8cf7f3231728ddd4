package memory_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/engine/memory/journal/disk/faultdisk"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/room/roomtest"
)

// filled is a data folder with one room: 3 inside, 17 waiting, and, after snapshots, a log that
// is trimmed or not.
func filled(t *testing.T, snapshots int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for i := range max(snapshots, 1) {
		e, err := memory.Open(dir, memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c := config(3)
		if i == 0 {
			mustDo(t, e, &room.Command{Op: room.OpConfigure, Config: &c})
			for n := range 20 {
				mustDo(t, e, enterCmd(n))
			}
		}
		mustDo(t, e, enterCmd(100+i)) // something new for a snapshot
		if snapshots == 0 {
			dir = copyDir(t, dir) // as a kill would leave it
		}
		if err := e.Close(); err != nil { // makes a snapshot
			t.Fatal(err)
		}
	}
	return dir
}

// newest returns the last file with that ending in the room's folder.
func newest(t *testing.T, dir, ext string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "rooms", "premiere", "*"+ext))
	if err != nil || len(names) == 0 {
		t.Fatal("no ", ext, err)
	}
	return names[len(names)-1]
}

func patch(t *testing.T, name string, change func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(name, change(b), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What a user reads when a folder is not as it should be: which file or folder, and the mend.
func TestRefusalsNameFolderAndMend(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T) (dir string, opts memory.Options)
		want []string
	}{
		{"foreign layout", func(t *testing.T) (string, memory.Options) {
			dir := filled(t, 1)
			patch(t, newest(t, dir, ".log"), func(b []byte) []byte { b[8] = 2; return b })
			return dir, memory.Options{}
		}, []string{"room premiere", ".log has layout 2", "start the version that wrote it", "nothing was changed"}},
		{"damage", func(t *testing.T) (string, memory.Options) {
			dir := filled(t, 0)
			patch(t, newest(t, dir, ".log"), func(b []byte) []byte { b[200] ^= 1; return b })
			return dir, memory.Options{}
		}, []string{"room premiere", ".log is damaged at offset", "restore the folder from a copy, or move it away"}},
		{"the log is gone", func(t *testing.T) (string, memory.Options) {
			dir := filled(t, 1)
			_ = os.Remove(newest(t, dir, ".log"))
			return dir, memory.Options{}
		}, []string{"room premiere", "snapshots, but no segment"}},
		{"a file where the folder should be", func(t *testing.T) (string, memory.Options) {
			name := filepath.Join(t.TempDir(), "data")
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return name, memory.Options{}
		}, []string{"data folder", "cannot be made", "not a directory", "engine.dir"}},
		{"read-only", func(t *testing.T) (string, memory.Options) {
			d := faultdisk.New(1)
			d.SetReadOnly(true)
			return filled(t, 1), memory.Options{FS: d}
		}, []string{"cannot write in", "read-only file system", "make it writable"}},
		{"no permission", func(t *testing.T) (string, memory.Options) {
			if os.Getuid() == 0 {
				t.Skip("root may write everywhere; read-only above is the same path")
			}
			dir := filled(t, 1)
			if err := os.Chmod(dir, 0o500); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
			_ = os.Remove(filepath.Join(dir, "lock"))
			return dir, memory.Options{}
		}, []string{"cannot write in", "permission denied", "make it writable"}},
		{"two engines on one folder", func(t *testing.T) (string, memory.Options) {
			dir := t.TempDir()
			cmd, _, _ := startChild(t, "hold", dir)
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			return dir, memory.Options{}
		}, []string{"is in use by process", "stop it, or use another folder"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, opts := tt.do(t)
			before := contents(t, dir)
			e, err := memory.Open(dir, opts)
			if err == nil {
				_ = e.Close()
				t.Fatal("it was opened")
			}
			t.Log(err)
			for _, want := range append(tt.want, dir) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("it does not say %q", want)
				}
			}
			for name, b := range contents(t, dir) {
				if before[name] != b && filepath.Base(name) != "lock" {
					t.Errorf("%s was changed", name)
				}
			}
		})
	}
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			b, _ := os.ReadFile(name)
			files[name] = string(b)
		}
		return nil
	})
	return files
}

// What is mended at the start without anybody's help: with words in the log, and without losing
// anything that was answered.
func TestMendedAtTheStart(t *testing.T) {
	for _, tt := range []struct {
		name    string
		dir     func(t *testing.T) string
		tickets int
		want    []string
	}{
		{"torn tail", func(t *testing.T) string {
			dir := filled(t, 0)
			patch(t, newest(t, dir, ".log"), func(b []byte) []byte { return append(b, bytes.Repeat([]byte{0xa5}, 99)...) })
			return dir
		}, 21, []string{"cutting an interrupted write", "nothing in it was answered", ".log", "bytes=99"}},
		{"half a snapshot, unnamed", func(t *testing.T) string {
			dir := filled(t, 1)
			if err := os.WriteFile(newest(t, dir, ".snap")+".tmp", []byte("USHERSNP half"), 0o600); err != nil {
				t.Fatal(err)
			}
			return dir
		}, 21, []string{"removing a file that a crash left half made", ".snap.tmp"}},
		{"half a snapshot", func(t *testing.T) string {
			dir := filled(t, 2)
			patch(t, newest(t, dir, ".snap"), func(b []byte) []byte { return b[:len(b)/2] })
			return dir
		}, 22, []string{"a snapshot is damaged, the one before it is used", ".snap"}},
		{"half of both snapshots, and all of the log", func(t *testing.T) string {
			dir := filled(t, 2)
			patch(t, newest(t, dir, ".snap"), func(b []byte) []byte { return b[:len(b)/2] })
			names, _ := filepath.Glob(filepath.Join(dir, "rooms", "premiere", "*.snap"))
			patch(t, names[0], func(b []byte) []byte { return b[:100] })
			return dir
		}, 22, []string{"a snapshot is damaged, the one before it is used"}},
		{"a folder of somebody else's", func(t *testing.T) string {
			dir := filled(t, 1)
			if err := os.MkdirAll(filepath.Join(dir, "rooms", "lost+found"), 0o700); err != nil {
				t.Fatal(err)
			}
			return dir
		}, 21, []string{"is none, and is left alone", "lost+found"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tt.dir(t)
			var logged lockedBuffer
			e, err := memory.Open(dir, memory.Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			t.Log(logged.String())
			for _, want := range tt.want {
				if !strings.Contains(logged.String(), want) {
					t.Errorf("it does not say %q", want)
				}
			}
			if rooms, _ := e.Rooms(t.Context()); len(rooms) != 1 {
				t.Errorf("rooms: %v", rooms)
			}
			for n := range 20 {
				if r := mustDo(t, e, enterCmd(n)); r.View.Seq != uint64(n+1) || r.View.Created {
					t.Fatalf("ticket %d: %+v", n, r.View)
				}
			}
			events := readLog(t, e, "premiere")
			if err := roomtest.Audit(events); err != nil {
				t.Error(err)
			}
			if s := events[len(events)-1]; mustDo(t, e, enterCmd(9999)).View.Seq != uint64(tt.tickets)+1 {
				t.Errorf("not %d tickets; last event %+v", tt.tickets, s)
			}
		})
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// After downtime of any length everybody has a full grace and a full claim, and sessions have
// their idle and what was left of their max.
func TestDowntimeCountsAgainstNobody(t *testing.T) {
	for _, away := range []time.Duration{0, time.Minute, 30 * 24 * time.Hour, -time.Hour} {
		for _, kind := range []string{"stopped", "killed"} {
			t.Run(kind+" for "+away.String(), func(t *testing.T) {
				var now atomic.Int64
				now.Store(1_800_000_000_000_000)
				opts := memory.Options{Now: now.Load, NoSync: kind == "stopped"}
				dir := t.TempDir()
				e, err := memory.Open(dir, opts)
				if err != nil {
					t.Fatal(err)
				}
				c := config(2)
				c.Queue.Grace, c.Session.Claim = room.Duration(10*time.Second), room.Duration(10*time.Second)
				c.Session.Idle, c.Session.Max = room.Duration(10*time.Second), room.Duration(40*time.Second)
				mustDo(t, e, &room.Command{Op: room.OpConfigure, Config: &c})
				claimed, unclaimed, waiter := mustDo(t, e, enterCmd(1)).View.Ref, mustDo(t, e, enterCmd(2)).View.Ref, mustDo(t, e, enterCmd(3)).View.Ref
				mustDo(t, e, &room.Command{Op: room.OpClaim, Ref: claimed})
				pass := func(n int, cmd *room.Command) {
					for range n {
						now.Add(1_000_000)
						mustDo(t, e, cmd)
					}
				}
				pass(9, &room.Command{Op: room.OpTick})
				mustDo(t, e, enterCmd(4)) // the log knows what time it is
				if kind == "killed" {
					next := copyDir(t, dir)
					defer e.Close()
					dir = next
				} else if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				now.Add(away.Microseconds())
				if e, err = memory.Open(dir, opts); err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				r := mustDo(t, e, &room.Command{Op: room.OpStatus, Ref: claimed})
				if v := r.View; v.IdleEnd != 10*time.Second || v.FinalEnd != 31*time.Second {
					t.Errorf("the session has %v, and %v at most", v.IdleEnd, v.FinalEnd)
				}
				if v := mustDo(t, e, &room.Command{Op: room.OpStatus, Ref: unclaimed}).View; v.IdleEnd < 10*time.Second || v.IdleEnd > 10*time.Second+100*time.Millisecond {
					t.Errorf("the admission can be claimed for %v", v.IdleEnd)
				}
				pass(9, &room.Command{Op: room.OpTick})
				for _, ev := range readLog(t, e, "premiere") {
					if ev.Type >= room.Left && ev.Type <= room.Abandoned {
						t.Errorf("%v of %d", ev.Type, ev.Seq)
					}
				}
				pass(2, &room.Command{Op: room.OpHeard, Refs: []room.Ref{waiter}})
				mustDo(t, e, &room.Command{Op: room.OpTick})
				ends := map[room.ID]room.Reason{}
				for _, ev := range readLog(t, e, "premiere") {
					ends[ev.ID] = ev.Reason
				}
				if ends[claimed.ID] != room.ReasonIdle || ends[unclaimed.ID] != room.ReasonClaim || ends[waiter.ID] != 0 || ends[number(4)] == 0 && mustDo(t, e, enterCmd(4)).View.State != room.Active {
					t.Errorf("after a silent grace: %v", ends)
				}
			})
		}
	}
}

// The log, and the folder, stay bounded whatever happens in the room; a reader who comes too
// late is told where the log begins.
func TestFolderIsBoundedUnderChurn(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	var now atomic.Int64
	now.Store(1_800_000_000_000_000)
	dir := t.TempDir()
	e, err := memory.Open(dir, memory.Options{NoSync: true, Now: now.Load})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c := config(10)
	c.Log.MaxBytes = 1 << 20
	mustDo(t, e, &room.Command{Op: room.OpConfigure, Config: &c})
	var next atomic.Int64
	churn := func(n int64) {
		end := next.Load() + n
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for next.Load() < end {
					now.Add(100_000) // what has ended is forgotten after 6,000 more
					r, err := e.Do(context.Background(), "premiere", enterCmd(int(next.Add(1))))
					if err == nil && r.Err == nil {
						r, err = e.Do(context.Background(), "premiere", &room.Command{Op: room.OpLeave, Ref: r.View.Ref})
					}
					if err != nil || r.Err != nil {
						t.Error(r.Err, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	size := func() (n int64) {
		for _, b := range contents(t, dir) {
			n += int64(len(b))
		}
		return n
	}
	var sizes []int64
	for range 4 { // some 3.5 MB of log each
		churn(20_000)
		for deadline := time.Now().Add(15 * time.Second); size() >= 4<<20; { // once a second it is looked at
			if time.Now().After(deadline) {
				for name, b := range contents(t, dir) {
					t.Log(name, len(b))
				}
				t.Fatalf("the folder has %d bytes: %+v", size(), e.Stats()["premiere"])
			}
			churn(100)
		}
		sizes = append(sizes, size())
	}
	log := e.Stats()["premiere"]
	t.Logf("after each round the folder has %d bytes; the log is at %d and begins at %d, in %d files", sizes, log.End, log.Floor, log.Segments)

	events, floor, err := e.Events(t.Context(), "premiere", room.Cursor{Epoch: 1, N: 5}, 10)
	if !errors.Is(err, room.ErrTrimmed) || len(events) != 0 || floor.Epoch != 1 || floor.N < 1000 {
		t.Fatalf("a reader far behind: %d events, %v, %v", len(events), floor, err)
	}
	n := floor.N
	for after := floor; ; {
		some, next, err := e.Events(t.Context(), "premiere", after, 777)
		if err != nil {
			t.Fatal(err)
		}
		if len(some) == 0 {
			break
		}
		for _, ev := range some {
			if n++; ev.N != n {
				t.Fatalf("event %d follows %d", ev.N, n-1)
			}
		}
		after = next
	}
	if r := mustDo(t, e, &room.Command{Op: room.OpTick}); r.N < n || n < r.N-100 {
		t.Errorf("the reader came to %d, the log is at %d", n, r.N)
	}
	if first, _, err := e.Events(t.Context(), "premiere", room.Cursor{}, 1); err != nil || len(first) != 1 || first[0].N != floor.N+1 {
		t.Errorf("from the oldest kept: %+v %v", first, err)
	}
}

// A reader's cursor of a deleted room does not hide events of the next one of its name.
func TestCursorOfADeletedRoom(t *testing.T) {
	e, err := memory.Open(t.TempDir(), memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c := config(3)
	mustDo(t, e, &room.Command{Op: room.OpConfigure, Config: &c})
	for n := range 50 {
		mustDo(t, e, enterCmd(n))
	}
	_, last, err := e.Events(t.Context(), "premiere", room.Cursor{}, 1000)
	if err != nil || last.N < 50 {
		t.Fatal(last, err)
	}
	if err := e.Delete(t.Context(), "premiere", true); err != nil {
		t.Fatal(err)
	}
	mustDo(t, e, &room.Command{Op: room.OpConfigure, Config: &c})
	if v := mustDo(t, e, enterCmd(0)).View; v.Seq != 51 {
		t.Errorf("seq %d was given again", v.Seq)
	}
	events, _, err := e.Events(t.Context(), "premiere", last, 1000)
	if err != nil || len(events) < 3 || events[0].N != 1 || events[0].Epoch != last.Epoch+1 {
		t.Errorf("%+v %v", events, err)
	}
}

// Starting with a million waiters, from the log alone and from a snapshot, prints how long it
// takes; the bar of DESIGN is 5 s.
func TestMillionWaitersComeBack(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const n = 1_000_000
	dir := t.TempDir()
	c := config(1000)
	c.Queue.MaxWaiting = n
	j, err := journal.Open(filepath.Join(dir, "rooms", "premiere"), journal.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	m, now := room.NewMachine(), time.Now().UnixMicro()
	var buf []byte
	step := func(cmd *room.Command) {
		r := m.Step(cmd, now)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		for i := range r.Events {
			buf = r.Events[i].Append(buf)
		}
		if len(buf) > 8<<10 {
			if _, err := j.Append(buf); errors.Is(err, journal.ErrFull) {
				until(t, func() bool { _, err = j.Append(buf); return err == nil })
			} else if err != nil {
				t.Fatal(err)
			}
			buf = buf[:0]
		}
	}
	step(&room.Command{Op: room.OpConfigure, Config: &c})
	for i := range n {
		cmd := enterCmd(i)
		binary.BigEndian.PutUint64(cmd.NewID[8:], uint64(i)*0x9e3779b97f4a7c15) // ids are not zeros
		step(cmd)
	}
	if _, err := j.Append(append(buf, 0)[:len(buf)]); err != nil && len(buf) > 0 {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"the log alone", "a snapshot"} {
		before := heap()
		began := time.Now()
		e, err := memory.Open(dir, memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		t.Logf("from %s: %v, %d MB of memory", from, took.Round(time.Millisecond), (heap()-before)>>20)
		rs, err := room.Open(t.Context(), e, room.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := rs.Get(t.Context(), "premiere")
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("with a mirror to answer places: %v, %d MB", time.Since(began).Round(time.Millisecond), (heap()-before)>>20)
		if s := r.Summary(); s.Waiting != n-1000 || s.Active != 1000 || s.LastSeq != n {
			t.Errorf("from %s: %+v", from, s)
		}
		for _, i := range []int{0, 999, 1000, 500_000, n - 1} {
			v, err := r.Enter(t.Context(), room.Ref{}, [16]byte(number(i)))
			if err != nil || v.Seq != uint64(i)+1 || v.Place != int64(max(0, i-999)) {
				t.Errorf("from %s: ticket %d: %+v %v", from, i, v, err)
			}
		}
		rs.Close()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
