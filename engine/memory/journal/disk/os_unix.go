//go:build linux || darwin || freebsd

package disk

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	errNotDir  = unix.ENOTDIR
	fullErrors = [...]error{unix.ENOSPC, unix.EDQUOT}
)

// Lock uses flock: the kernel drops it with the process, however that ends, so no
// stale lock is left for an operator to remove.
func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &os.PathError{Op: "flock", Path: name, Err: err}
		}
		held := &HeldError{Name: name}
		var buf [32]byte
		n, _ := f.ReadAt(buf[:], 0)
		held.PID, _ = strconv.Atoi(strings.TrimSpace(string(buf[:n])))
		return nil, held
	}
	// The number is for people; on a full disk the lock holds without it.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

func (osFS) Free(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}
