//go:build !(linux || darwin || freebsd)

package disk

import (
	"errors"
	"io"
)

var (
	errNotDir  = errors.New("not a directory")
	fullErrors = [...]error{}
)

// Lock refuses: without a lock that dies with its process two of them could write one
// folder.
func (osFS) Lock(string) (io.Closer, error) { return nil, errors.ErrUnsupported }

func (osFS) Free(string) (uint64, error) { return 0, errors.ErrUnsupported }
