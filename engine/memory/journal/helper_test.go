package journal_test

import (
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory/journal"
	"github.com/ushergo/usher/engine/memory/journal/disk/faultdisk"
)

type atomicPos struct{ v atomic.Int64 }

func (a *atomicPos) load() journal.Pos { return journal.Pos(a.v.Load()) }

func (a *atomicPos) raise(p journal.Pos) {
	for {
		old := a.v.Load()
		if int64(p) <= old || a.v.CompareAndSwap(old, int64(p)) {
			return
		}
	}
}

// pollTick fires soon: for loops that look whether the disk has died.
func pollTick() <-chan time.Time { return time.After(time.Millisecond) }

func readFile(t *testing.T, d *faultdisk.Disk, name string) []byte {
	t.Helper()
	f, err := d.OpenRead(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return b
}

func writeFile(t *testing.T, d *faultdisk.Disk, name string, b []byte) {
	t.Helper()
	f, err := d.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}
