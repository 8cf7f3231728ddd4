//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package token

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// lock waits for the sole use of path, where the system has no lock that ends with its process: the file's
// existence is the lock.
func lock(path string) (unlock func(), err error) {
	for range 100 {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			return func() { _ = f.Close(); _ = os.Remove(path) }, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, fmt.Errorf("%s has been there for 5s; if no other usher is writing keys, remove it", path)
}
