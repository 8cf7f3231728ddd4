package memory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/engine/memory/journal/disk/faultdisk"
	"github.com/ushergo/usher/lease"
)

// TestLeaseDisk: on a full disk nothing changes hands, and workers live on; after a power loss, with a clock that went back
// to 1970, what was answered is there, and fences go on above.
func TestLeaseDisk(t *testing.T) {
	disk := faultdisk.New(1)
	now := int64(1_000_000_000)
	open := func() *memory.Leases {
		s, err := memory.OpenLeases("/data", "test", memory.LeaseOptions{FS: disk, Now: func() int64 { return now }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	s := open()
	ctx := t.Context()
	var me lease.Owner
	join := func(name string) {
		t.Helper()
		j, err := s.Join(ctx, lease.Join{Worker: name, Token: "t"})
		if err != nil || !j.OK {
			t.Fatal(j, err)
		}
		me = j.Owner
	}
	get := func(id string) lease.Row {
		t.Helper()
		rows, err := s.Get(ctx, []string{id})
		if err != nil || len(rows) != 1 {
			t.Fatal(rows, err)
		}
		return rows[0]
	}
	start := func(id string) lease.Row {
		t.Helper()
		r, err := s.Put(ctx, lease.Put{ID: id, Desired: lease.Started})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	take := func(r lease.Row) (lease.Row, error) {
		ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		got, err := s.Take(ctx, lease.Take{ID: r.ID, From: r.Owner, Fence: r.Fence, To: me})
		if err == nil && !got.OK {
			t.Fatalf("take %+v: %+v", r, got)
		}
		return got.Row, err
	}
	join("a")
	r, err := take(start("x"))
	if err != nil {
		t.Fatal(err)
	}
	gone, err := take(start("gone"))
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := s.Delete(ctx, "gone"); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if ok, err := s.Flush(ctx, []lease.Cursor{{ID: "x", Owner: me, Fence: r.Fence, Cursor: "17"}}); err != nil || !ok[0] {
		t.Fatal(ok, err)
	}
	start("y")

	disk.SetCapacity(1)
	y := get("y")
	if _, err := take(y); !errors.Is(err, lease.ErrUnknown) && !errors.Is(err, lease.ErrUnavailable) {
		t.Errorf("a take on a full disk: %v", err)
	}
	if ok, err := s.Beat(ctx, lease.Beat{Owner: me, Beat: 1}); err != nil || !ok {
		t.Errorf("a beat on a full disk: %v %v", ok, err)
	}
	disk.SetCapacity(0)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if y, err = take(get("y")); err == nil && s.Health() == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the disk is well again: %v, %v", err, s.Health())
		}
	}
	disk.PowerLoss()
	now = 1
	s = open()
	if got := get("x"); got.Cursor != "17" || got.Fence != r.Fence || got.Owner != r.Owner {
		t.Errorf("after the power loss: %+v, was %+v", got, r)
	}
	if got := get("y"); got.Fence != y.Fence {
		t.Errorf("after the power loss: %+v, was %+v", got, y)
	}
	if ok, err := s.Beat(ctx, lease.Beat{Owner: me, Beat: 2}); err != nil || ok {
		t.Errorf("a worker of before lives: %v %v", ok, err)
	}
	join("b")
	if again, err := take(get("x")); err != nil || again.Fence <= r.Fence {
		t.Errorf("fence %d after %d: %v", again.Fence, r.Fence, err)
	}
	if again, err := take(start("gone")); err != nil || again.Fence <= gone.Fence {
		t.Errorf("fence %d after %d of the one deleted: %v", again.Fence, gone.Fence, err)
	}
}
