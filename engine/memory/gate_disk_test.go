package memory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/engine/memory/journal/disk/faultdisk"
	"github.com/ushergo/usher/gate"
)

// TestGateFullDisk: what has to be written is refused or left unknown, what need not goes on, and all works again once
// the disk does. No fence is given out that a restart could give out again.
func TestGateFullDisk(t *testing.T) {
	disk := faultdisk.New(1)
	now := int64(1_000_000_000)
	open := func() *memory.Gates {
		s, err := memory.OpenGates("/data", memory.GateOptions{FS: disk, Now: func() int64 { return now }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	s := open()
	n := 0
	acquire := func() (gate.Result, error) {
		n++
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		return s.Do(ctx, "k", &gate.Command{Op: gate.OpAcquire, ID: gate.ID{byte(n), 1}, N: 1, Lease: time.Hour, Permits: gate.MaxLimit})
	}
	r, err := acquire()
	if err != nil || r.Err != nil {
		t.Fatal(err, r.Err)
	}
	last := r.Fence
	disk.SetCapacity(1)
	set := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := s.Do(ctx, "set", &gate.Command{Op: gate.OpSet, Permits: 3})
		return err
	}
	if err := set(); !errors.Is(err, gate.ErrUnknown) && !errors.Is(err, gate.ErrUnavailable) {
		t.Errorf("Set on a full disk: %v", err)
	}
	if r, err = acquire(); err != nil || r.Err != nil { // its fence is reserved
		t.Errorf("acquire on a full disk: %v, %v", err, r.Err)
	}
	last = max(last, r.Fence)
	now += 10 * time.Minute.Microseconds() // beyond what is reserved
	if _, err := acquire(); !errors.Is(err, gate.ErrUnknown) && !errors.Is(err, gate.ErrUnavailable) {
		t.Errorf("a fence that is not reserved was given out: %v", err)
	}
	if s.Health() == nil {
		t.Error("healthy on a full disk")
	}
	disk.SetCapacity(0)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if r, err = acquire(); err == nil && set() == nil && s.Health() == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the disk is well again: %v, %v", err, s.Health())
		}
	}
	last = max(last, r.Fence)
	disk.PowerLoss()
	now = 1
	s = open()
	if r, err = acquire(); err != nil || r.Err != nil || r.Fence <= last {
		t.Errorf("%v, %v, fence %d after %d", err, r.Err, r.Fence, last)
	}
	if r, err := s.Do(t.Context(), "set", &gate.Command{Op: gate.OpStatus}); err != nil || r.Limit != 3 {
		t.Errorf("%+v, %v", r, err)
	}
}
