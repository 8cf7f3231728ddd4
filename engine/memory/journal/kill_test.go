package journal_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ushergo/usher/engine/memory/journal"
)

// The test binary is also the process that is killed: with USHER_JOURNAL_CHILD set it
// works on that folder until it dies.
func TestMain(m *testing.M) {
	if dir := os.Getenv("USHER_JOURNAL_CHILD"); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

var childOptions = journal.Options{SegmentBytes: 100_000}

// recovered returns how many records a journal has had, by its snapshot and its log.
func recovered(j *journal.Journal) (int, error) {
	pos, r, ok, err := j.LatestSnapshot()
	if err != nil {
		return 0, err
	}
	n := 0
	if ok {
		b, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			return 0, err
		}
		if n, err = strconv.Atoi(string(b)); err != nil {
			return 0, err
		}
	}
	_, err = j.Replay(pos, func(_ journal.Pos, rec []byte) error {
		if !bytes.Equal(rec, record(n)) {
			return fmt.Errorf("record %d is %x", n, rec)
		}
		n++
		return nil
	})
	return n, err
}

// child appends numbered records and prints each number once its Sync has returned. It
// makes snapshots and trims meanwhile.
func child(dir string) error {
	j, err := journal.Open(dir, childOptions)
	if err != nil {
		return err
	}
	n, err := recovered(j)
	if err != nil {
		return err
	}
	fmt.Println("open")
	ctx := context.Background()
	var mu sync.Mutex
	failed := make(chan error)
	for range 32 {
		go func() {
			for {
				mu.Lock()
				number := n
				n++
				pos, err := j.Append(record(number))
				mu.Unlock()
				if err == nil {
					err = j.Sync(ctx, pos)
				}
				if err == nil {
					_, err = os.Stdout.WriteString(strconv.Itoa(number) + "\n")
				}
				if err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	go func() {
		for {
			mu.Lock()
			state, pos := strconv.Itoa(n), j.End()
			mu.Unlock()
			err := j.Snapshot(ctx, pos, func(w io.Writer) error {
				_, err := io.WriteString(w, state)
				return err
			})
			if err == nil {
				_, err = j.Trim(journal.Keep{From: j.Durable(), MaxBytes: 500_000})
			}
			if err != nil {
				failed <- err
				return
			}
		}
	}()
	return <-failed
}

func startChild(t *testing.T, dir string) (*exec.Cmd, *bufio.Scanner, *bytes.Buffer) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "USHER_JOURNAL_CHILD="+dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out), &stderr
}

// A real process is killed at random moments under load, at its start too. All it has
// said to be durable is there, and nothing it did not append.
func TestKill9(t *testing.T) {
	kills := 20
	if os.Getenv("USHER_SOAK") != "" {
		kills = 500
	} else if testing.Short() {
		kills = 5
	}
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
	answered, total := -1, 0
	for kill := range kills {
		cmd, out, stderr := startChild(t, dir)
		wait := rnd.IntN(1 + rnd.IntN(3000)) // lines; often few
		for range wait {
			if !out.Scan() {
				break
			}
			answered = max(answered, number(t, out.Text()))
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for out.Scan() { // said before it died
			total++
			answered = max(answered, number(t, out.Text()))
		}
		_ = cmd.Wait() // it was killed
		if stderr.Len() > 0 {
			t.Fatalf("kill %d: the child said: %s", kill, stderr.String())
		}
		j, err := journal.Open(dir, childOptions)
		if err != nil {
			t.Fatalf("kill %d: %v", kill, err)
		}
		n, err := recovered(j)
		if err != nil {
			t.Fatalf("kill %d: %v", kill, err)
		}
		if n <= answered {
			t.Fatalf("kill %d: %d records, but number %d was answered", kill, n, answered)
		}
		total += wait
		if kill%2 == 0 {
			// Sometimes the next child finds a journal that was closed in order.
			addSync(t, j, record(n))
			answered = n
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d kills, %d answers, all there", kills, total)
}

func number(t *testing.T, line string) int {
	t.Helper()
	if line == "open" {
		return -1
	}
	n, err := strconv.Atoi(line)
	if err != nil {
		t.Fatalf("the child said %q", line)
	}
	return n
}

func TestTwoProcessesOnOneFolder(t *testing.T) {
	dir := t.TempDir()
	cmd, out, _ := startChild(t, dir)
	defer func() {
		_ = cmd.Process.Kill()
		for out.Scan() {
		}
		_ = cmd.Wait()
	}()
	if !out.Scan() || out.Text() != "open" {
		t.Fatalf("the child said %q", out.Text())
	}
	_, err := journal.Open(dir, journal.Options{})
	var locked *journal.LockedError
	if !errors.As(err, &locked) || locked.PID != cmd.Process.Pid || locked.Dir != dir {
		t.Fatalf("got %v", err)
	}
	if want := fmt.Sprintf("%s is in use by process %d: stop it", dir, locked.PID); !strings.Contains(err.Error(), want) {
		t.Errorf("%q does not say %q", err, want)
	}
	for range 50 { // and the one that holds it goes on
		if !out.Scan() {
			t.Fatal("the child has died")
		}
	}
}

// The lock dies with its process, so that nobody has to remove it.
func TestKilledProcessLeavesNoLock(t *testing.T) {
	dir := t.TempDir()
	cmd, out, _ := startChild(t, dir)
	out.Scan()
	_ = cmd.Process.Kill()
	for out.Scan() {
	}
	_ = cmd.Wait()
	open(t, dir, journal.Options{})
}

// The binary layout is a promise to those who have folders: a change needs a new number.
func TestLayout(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, journal.Options{})
	addSync(t, j, []byte("hello"))
	j.Close()
	b := contents(t, dir)[dir+"/0000000000000000.log"]
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32([]byte(b[at:])) }
	if len(b) != 64+12+8+5+12 || b[:8] != "USHERJNL" || u32(8) != 1 ||
		u32(64+4) != 0xffffffff || u32(64+8) != 13 || u32(76+4) != 5 || b[84:89] != "hello" ||
		u32(89+4) != 0xffffffff || u32(89+8) != 0 {
		t.Errorf("%x", b)
	}
}
