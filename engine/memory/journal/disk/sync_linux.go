package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

// Sync is fdatasync: it writes the size too when that has changed, and spares the rest
// of the inode.
func (f osFile) Sync() error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
		return nil
	}
}
