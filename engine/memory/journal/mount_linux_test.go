package journal_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ushergo/usher/engine/memory/journal"
)

// mount mounts a small file system of its own, or skips.
func mount(t *testing.T, data string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, data); err != nil {
		msg := "needs the right to mount a tmpfs (root): " + err.Error()
		if os.Getenv("USHER_TEST_ALL") == "1" {
			t.Fatal(msg)
		}
		t.Skip(msg)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

func TestRealDiskFull(t *testing.T) {
	root := mount(t, "size=1m,mode=700")
	dir := filepath.Join(root, "room")
	filler := filepath.Join(root, "filler")
	if err := os.WriteFile(filler, make([]byte, 300_000), 0o600); err != nil {
		t.Fatal(err)
	}
	j := open(t, dir, journal.Options{SegmentBytes: 100_000, MaxPending: 20_000})
	n, answered := 0, 0
	var last journal.Pos
	for j.Err() == nil {
		pos, err := j.Append(record(n))
		if err == nil {
			n, last = n+1, pos
			ctx, cancel := context.WithCancel(t.Context())
			go func(j *journal.Journal) { // leave when the journal says that it stands still
				for j.Err() == nil && ctx.Err() == nil {
					<-pollTick()
				}
				cancel()
			}(j)
			err = j.Sync(ctx, pos)
			cancel()
		}
		if err == nil {
			answered = n
		} else if !errors.Is(err, journal.ErrUnknown) {
			t.Fatal(err)
		}
	}
	err := j.Err()
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "disk full: 0 bytes free on "+dir) {
		t.Errorf("health: %v", err)
	}
	for j.Ready() == nil {
		last = add(t, j, record(n))
		n++
	}
	if _, err := j.Append(record(n)); err != journal.ErrFull {
		t.Errorf("append: %v", err)
	}
	if got := len(replay(t, j, 0)); got < answered || got > n {
		t.Errorf("readers see %d records, %d were answered", got, answered)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := j.Sync(t.Context(), last); err != nil {
		t.Fatalf("with space again: %v", err)
	}
	if err := j.Err(); err != nil {
		t.Errorf("health with space again: %v", err)
	}
	j.Close()
	j = open(t, dir, journal.Options{})
	if got := len(replay(t, j, 0)); got != n {
		t.Errorf("%d records, want %d", got, n)
	}
}

func TestStartOnAFullDisk(t *testing.T) {
	root := mount(t, "size=64k,mode=700")
	if err := os.WriteFile(filepath.Join(root, "filler"), make([]byte, 1<<16), 0o600); !errors.Is(err, syscall.ENOSPC) {
		// Whatever fits, fits.
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := journal.Open(filepath.Join(root, "room"), journal.Options{})
	if !errors.As(err, new(*journal.FolderError)) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("got %v", err)
	}
}

func TestRealReadOnlyFolder(t *testing.T) {
	root := mount(t, "size=1m,mode=700")
	dir := filepath.Join(root, "room")
	j := open(t, dir, journal.Options{})
	addSync(t, j, record(0))
	j.Close()
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Join(root, "other")} {
		_, err := journal.Open(d, journal.Options{})
		if !errors.As(err, new(*journal.FolderError)) || !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "cannot write in "+d) {
			t.Errorf("%s: %v", d, err)
		}
	}
}
