package memory_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/gate"
)

// TestGateVictim is the process that TestGateFencesSurviveKill kills.
func TestGateVictim(t *testing.T) {
	dir := os.Getenv("USHER_GATE_DIR")
	if dir == "" {
		t.Skip("only as a child of TestGateFencesSurviveKill")
	}
	s, err := memory.OpenGates(dir, memory.GateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		if _, err := s.Do(t.Context(), "set", &gate.Command{Op: gate.OpSet, Permits: int64(n)}); err != nil {
			t.Fatal(err)
		}
		c := &gate.Command{Op: gate.OpAcquire, N: 1, Lease: time.Minute, Permits: gate.MaxLimit}
		c.ID[0], c.ID[1], c.ID[2] = byte(n), byte(n>>8), 1
		r, err := s.Do(t.Context(), "k", c)
		if err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
		fmt.Println("drew", n, r.Fence)
	}
}

// TestGateFencesSurviveKill: kill -9, and a clock that went back to 1970 meanwhile: fences go on above, limits are kept.
func TestGateFencesSurviveKill(t *testing.T) {
	dir := t.TempDir()
	for round := range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestGateVictim$", "-test.v")
		cmd.Env = append(os.Environ(), "USHER_GATE_DIR="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var last, limit uint64
		drawn := 0
		for lines := bufio.NewScanner(out); lines.Scan(); {
			f := strings.Fields(lines.Text())
			if len(f) != 3 || f[0] != "drew" {
				continue
			}
			limit, _ = strconv.ParseUint(f[1], 10, 64)
			last, _ = strconv.ParseUint(f[2], 10, 64)
			if drawn++; drawn == 50 {
				_ = cmd.Process.Kill() // what it wrote until then is read all the same
			}
		}
		_ = cmd.Wait()
		if drawn < 50 {
			t.Fatalf("the child drew %d fences", drawn)
		}
		s, err := memory.OpenGates(dir, memory.GateOptions{Now: func() int64 { return 1 }})
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Do(t.Context(), "k", &gate.Command{Op: gate.OpAcquire, N: 1, Lease: time.Minute, Permits: 1})
		if err != nil || r.Err != nil || r.Fence <= last {
			t.Errorf("round %d: %v, %v, fence %d after %d", round, err, r.Err, r.Fence, last)
		}
		// The last Set may have been under way.
		if r, err := s.Do(t.Context(), "set", &gate.Command{Op: gate.OpStatus}); err != nil || r.Limit < int64(limit) || r.Limit > int64(limit)+1 {
			t.Errorf("round %d: limit %d after %d, %v", round, r.Limit, limit, err)
		}
		// A permit from before cannot settle.
		if r, err := s.Do(t.Context(), "k", &gate.Command{Op: gate.OpSettle, Fence: last, TTL: time.Second}); err != nil || !errors.Is(r.Err, gate.ErrStale) {
			t.Errorf("round %d: settled by a permit from before: %v, %v", round, err, r.Err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
