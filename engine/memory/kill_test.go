package memory_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/room/roomtest"
)

// The test binary is also the process that is killed.
func TestMain(m *testing.M) {
	var err error
	switch dir := os.Getenv("USHER_MEMORY_DIR"); os.Getenv("USHER_MEMORY_CHILD") {
	case "storm":
		err = stormChild(dir)
	case "delete":
		err = deleteChild(dir)
	case "hold":
		err = holdChild(dir)
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// startChild runs a child on dir until it has said its first line.
func startChild(t *testing.T, kind, dir string, env ...string) (*exec.Cmd, *bufio.Scanner, *strings.Builder) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), append(env, "USHER_MEMORY_CHILD="+kind, "USHER_MEMORY_DIR="+dir)...)
	stderr := &strings.Builder{}
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		_ = cmd.Wait()
		t.Fatalf("the child said nothing; on stderr: %s", stderr)
	}
	return cmd, lines, stderr
}

// small files, so that kills hit new segments and snapshots too
var stormOptions = memory.Options{SegmentBytes: 64 << 10, SnapshotBytes: 128 << 10}

func stormConfig(active int64) *room.Config {
	c := config(active)
	c.Queue.Grace, c.Queue.MaxWaiting = room.Duration(2*time.Second), 5000
	c.Session.Claim, c.Session.Idle, c.Session.Max = room.Duration(time.Second), room.Duration(2*time.Second), room.Duration(4*time.Second)
	return &c
}

// say writes a line at once and as a whole, so that it has been said when the process dies.
func say(format string, args ...any) {
	if _, err := fmt.Fprintf(os.Stdout, format+"\n", args...); err != nil {
		os.Exit(2)
	}
}

// stormChild lets many clients do everything at once and say what they are told, until it
// is killed. "ask" is said before the first call of a request id, the rest after answers.
func stormChild(dir string) error {
	ctx := context.Background()
	round := uint64(0)
	fmt.Sscan(os.Getenv("USHER_MEMORY_ROUND"), &round)
	e, err := memory.Open(dir, stormOptions)
	if err != nil {
		return err
	}
	do := func(cmd *room.Command) (room.Result, error) {
		cmd.Rand = rand.Uint64()
		return e.Do(ctx, "premiere", cmd)
	}
	if r, err := do(&room.Command{Op: room.OpConfigure, Config: stormConfig(40)}); err != nil || r.Err != nil {
		return errors.Join(r.Err, err)
	}
	say("open")
	failed := make(chan error)
	for k := range uint64(32) {
		go func() {
			rng := rand.New(rand.NewPCG(round, k))
			var refs []room.Ref
			for n := uint64(0); ; n++ {
				pick := rng.IntN(12)
				if len(refs) == 0 {
					pick = 0
				}
				var r room.Result
				var err error
				switch {
				case pick < 5:
					var request [16]byte
					binary.BigEndian.PutUint64(request[:], round<<32|k)
					binary.BigEndian.PutUint64(request[8:], n)
					cmd := &room.Command{Op: room.OpEnter, NewID: room.ID(request), Request: request}
					cmd.NewID[0] = 0xff
					say("ask %x", request)
					if r, err = do(cmd); err == nil && r.Err == nil {
						say("enter %x %d %x", request, r.View.Seq, r.View.ID[:])
						refs = append(refs, r.View.Ref)
					}
				case pick == 5 && k == 0:
					active := int64(rng.IntN(60) + 1)
					if r, err = do(&room.Command{Op: room.OpConfigure, Config: stormConfig(active)}); err == nil && r.Err == nil {
						say("limit %d %x", active, []byte{1})
					}
				default:
					i := rng.IntN(len(refs))
					op := []room.Op{room.OpStatus, room.OpClaim, room.OpRenew, room.OpLeave, room.OpLeave}[rng.IntN(5)]
					if r, err = do(&room.Command{Op: op, Ref: refs[i]}); err == nil {
						switch {
						case r.Err != nil && !errors.Is(r.Err, room.ErrEnded) && !errors.Is(r.Err, room.ErrNotAdmitted):
							err = r.Err
						case r.View.State == room.Ended:
							say("ended %d %x", refs[i].Seq, refs[i].ID[:])
							refs = append(refs[:i], refs[i+1:]...)
						case r.View.Claimed:
							say("claimed %d %x", refs[i].Seq, refs[i].ID[:])
						}
					}
				}
				if err != nil || (r.Err != nil && errors.Is(r.Err, room.ErrIDTaken)) {
					failed <- errors.Join(err, r.Err)
					return
				}
				if r.View.State == room.Active {
					say("admitted %d %x", r.View.Seq, r.View.ID[:])
				}
			}
		}()
	}
	return <-failed
}

// told is what all children's clients were told, and what they asked without an answer.
type told struct {
	entered                  map[[16]byte]room.Ref
	asked                    map[[16]byte]bool
	admitted, claimed, ended map[room.Ref]bool
	answers                  int
}

func (w *told) note(t *testing.T, line string) {
	t.Helper()
	f := strings.Fields(line)
	bytes16 := func(s string) [16]byte {
		b, err := hex.DecodeString(s)
		if err != nil || len(b) != 16 {
			t.Fatalf("the child said %q", line)
		}
		return [16]byte(b)
	}
	ref := func(f []string) (r room.Ref) {
		fmt.Sscan(f[0], &r.Seq)
		r.ID = bytes16(f[1])
		return r
	}
	w.answers++
	switch f[0] {
	case "ask":
		w.answers--
		w.asked[bytes16(f[1])] = true
	case "enter":
		w.entered[bytes16(f[1])] = ref(f[2:])
		delete(w.asked, bytes16(f[1]))
	case "admitted":
		w.admitted[ref(f[1:])] = true
	case "claimed":
		w.claimed[ref(f[1:])] = true
	case "ended":
		w.ended[ref(f[1:])] = true
	case "limit", "open":
	default:
		t.Fatalf("the child said %q", line)
	}
}

// readLog reads all of a room's log.
func readLog(t *testing.T, s room.Store, id string) (events []room.Event) {
	t.Helper()
	for after := (room.Cursor{}); ; {
		some, next, err := s.Events(t.Context(), id, after, 10_000)
		if err != nil {
			t.Fatal(err)
		}
		if len(some) == 0 {
			return events
		}
		events, after = append(events, some...), next
	}
}

// check compares what was told with what came back.
func (w *told) check(t *testing.T, e *memory.Engine) {
	t.Helper()
	events := readLog(t, e, "premiere")
	if err := roomtest.Audit(events); err != nil {
		t.Fatal(err)
	}
	entered := map[[16]byte]room.Ref{}
	seqs := map[uint64]bool{}
	admitted, claimed, ended := map[room.Ref]bool{}, map[room.Ref]bool{}, map[room.Ref]bool{}
	for _, ev := range events {
		switch ev.Type {
		case room.Entered:
			if _, twice := entered[ev.Request]; twice || seqs[ev.Seq] {
				t.Fatalf("request %x or seq %d has two tickets", ev.Request, ev.Seq)
			}
			entered[ev.Request], seqs[ev.Seq] = ev.Ref, true
		case room.Admitted:
			admitted[ev.Ref] = true
		case room.Claimed:
			claimed[ev.Ref] = true
		case room.Left, room.Expired, room.Abandoned:
			ended[ev.Ref] = true
		}
	}
	for request, ref := range w.entered {
		if entered[request] != ref {
			t.Fatalf("request %x was told %v, the log has %v", request, ref, entered[request])
		}
	}
	for _, c := range []struct {
		what      string
		told, log map[room.Ref]bool
	}{{"admitted", w.admitted, admitted}, {"claimed", w.claimed, claimed}, {"ended", w.ended, ended}} {
		for ref := range c.told {
			if !c.log[ref] {
				t.Fatalf("%v was told that it is %s, and the log does not have it", ref, c.what)
			}
		}
	}
	// The living state says what the log says, to those who were answered and to those who
	// were not: the same request id settles it.
	settle := func(request [16]byte, ref room.Ref, known bool) {
		cmd := &room.Command{Op: room.OpEnter, NewID: room.ID(request), Request: request}
		r, err := e.Do(t.Context(), "premiere", cmd)
		switch {
		case err != nil:
			t.Fatal(err)
		case known && (r.View.Ref != ref || r.View.Created):
			t.Fatalf("request %x was told %v, now %+v %v", request, ref, r.View, r.Err)
		case r.Err != nil && !(known && ended[ref] && errors.Is(r.Err, room.ErrSpent)) && !errors.Is(r.Err, room.ErrSpent) && !errors.Is(r.Err, room.ErrFull):
			t.Fatalf("request %x: %+v %v", request, r.View, r.Err)
		}
	}
	n := 0
	for request := range w.asked {
		ref, known := entered[request]
		settle(request, ref, known)
		delete(w.asked, request) // or it might be told again
		if n++; n == 200 {
			break
		}
	}
	n = 0
	for request, ref := range w.entered {
		settle(request, ref, true)
		if n++; n == 200 {
			break
		}
	}
}

// copyDir copies a folder of files, as a power loss or a kill left it.
func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestKill9UnderLoad kills a real process at random moments while many clients do everything,
// over and over on one folder, and compares what they were told with what comes back.
func TestKill9UnderLoad(t *testing.T) { // cases/room 20
	kills := 15
	if testing.Short() {
		kills = 3
	}
	if os.Getenv("USHER_SOAK") != "" {
		kills = 300
	}
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	var dir string
	var w *told
	total := 0
	for kill := range kills {
		if kill%30 == 0 { // logs are read as a whole each time
			dir = t.TempDir()
			w = &told{entered: map[[16]byte]room.Ref{}, asked: map[[16]byte]bool{}, admitted: map[room.Ref]bool{}, claimed: map[room.Ref]bool{}, ended: map[room.Ref]bool{}}
		}
		before := w.answers
		cmd, lines, stderr := startChild(t, "storm", dir, fmt.Sprint("USHER_MEMORY_ROUND=", kill+1))
		for range rng.IntN(1 + rng.IntN(6000)) { // lines; often few
			if !lines.Scan() {
				break
			}
			w.note(t, lines.Text())
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // said before it died
			w.note(t, lines.Text())
		}
		_ = cmd.Wait() // it was killed
		if stderr.Len() > 0 {
			t.Fatalf("kill %d: the child said: %s", kill, stderr)
		}
		in := dir
		if kill%3 != 2 { // the next child finds the folder as the kill left it
			in = copyDir(t, dir)
		}
		e, err := memory.Open(in, stormOptions)
		if err != nil {
			t.Fatalf("kill %d: %v", kill, err)
		}
		w.check(t, e)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if in != dir {
			_ = os.RemoveAll(in)
		}
		total += w.answers - before
	}
	t.Logf("%d kills, %d answers, all there", kills, total)
}

// deleteChild makes a room, lets people in, deletes it, and so on.
func deleteChild(dir string) error {
	e, err := memory.Open(dir, memory.Options{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	say("open")
	for n := 0; ; n++ {
		r, err := e.Do(ctx, "premiere", &room.Command{Op: room.OpConfigure, Config: stormConfig(2)})
		if err != nil || r.Err != nil {
			return errors.Join(r.Err, err)
		}
		for range 5 {
			id := room.ID{}
			binary.BigEndian.PutUint64(id[:], rand.Uint64())
			r, err := e.Do(ctx, "premiere", &room.Command{Op: room.OpEnter, NewID: id})
			if err != nil || r.Err != nil {
				return errors.Join(r.Err, err)
			}
			say("enter %d %d", r.Epoch, r.View.Seq)
		}
		say("deleting 0 0")
		if err := e.Delete(ctx, "premiere", true); err != nil {
			return err
		}
		say("deleted 0 0")
	}
}

// TestKill9WhileDeleting: a deletion that is interrupted leaves the room or nothing, and the
// next room of that name gives no seq again.
func TestKill9WhileDeleting(t *testing.T) {
	kills := 10
	if os.Getenv("USHER_SOAK") != "" {
		kills = 200
	}
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))
	var epoch, seq uint64
	whole, gone := 0, 0
	for kill := range kills {
		cmd, lines, stderr := startChild(t, "delete", dir)
		said := 0 // enters of the room that was there last
		state := ""
		inEpoch := uint64(0)
		read := func() bool {
			if !lines.Scan() {
				return false
			}
			var e, s uint64
			fmt.Sscanf(lines.Text(), "%s %d %d", &state, &e, &s)
			if state == "enter" {
				if e < epoch || s <= seq {
					t.Fatalf("kill %d: epoch %d, seq %d after %d, %d", kill, e, s, epoch, seq)
				}
				if e != inEpoch {
					said, inEpoch = 0, e
				}
				said++
				epoch, seq = e, s
			}
			return true
		}
		for range rng.IntN(60) {
			if !read() {
				break
			}
		}
		for kill%4 != 0 && state != "deleting" && read() { // mostly in the midst of it
		}
		for until := time.Now().Add(time.Duration(rng.IntN(12_000)) * time.Microsecond); kill%4 > 1 && time.Now().Before(until); {
			runtime.Gosched() // a random moment, not a wait for something
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for read() {
		}
		_ = cmd.Wait()
		if stderr.Len() > 0 {
			t.Fatalf("kill %d: the child said: %s", kill, stderr)
		}
		e, err := memory.Open(dir, memory.Options{})
		if err != nil {
			t.Fatalf("kill %d: %v", kill, err)
		}
		rooms, err := e.Rooms(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case len(rooms) == 1 && state != "deleted":
			whole++
			events := readLog(t, e, "premiere")
			if err := roomtest.Audit(events); err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, ev := range events {
				if ev.Type == room.Entered {
					n++
					seq = max(seq, ev.Seq)
				}
			}
			if inEpoch == events[0].Epoch && n < said {
				t.Fatalf("kill %d: %d of %d answered enters are left", kill, n, said)
			}
		case len(rooms) == 1 && events0(t, e).Epoch <= epoch:
			t.Fatalf("kill %d: a deleted room is back", kill)
		case len(rooms) == 0 && state == "enter":
			t.Fatalf("kill %d: a room is gone that nobody deleted", kill)
		default:
			gone++
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d kills: %d times the room, %d times nothing", kills, whole, gone)
	left, err := filepath.Glob(filepath.Join(dir, "rooms", ".deleted-*"))
	if err != nil || len(left) > 1 {
		t.Errorf("deleted rooms pile up: %v %v", left, err)
	}
}

func events0(t *testing.T, e *memory.Engine) room.Event { return readLog(t, e, "premiere")[0] }

// holdChild holds a folder until it is killed.
func holdChild(dir string) error {
	if _, err := memory.Open(dir, memory.Options{}); err != nil {
		return err
	}
	say("open")
	var wg sync.WaitGroup
	wg.Add(1)
	wg.Wait() // it is killed; timers of the engine keep the runtime from calling it a deadlock
	return nil
}
