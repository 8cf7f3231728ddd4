// Package disk is the little of a file system that a journal needs, as an interface,
// so that a test can put a disk in its place that fills up, loses writes and dies.
//
// [OS] is the real one. Package faultdisk has the other.
package disk

import (
	"errors"
	"fmt"
	"io"
)

// FS opens, names and lists files. It is safe for concurrent use.
//
// Errors wrap those of package os ([io/fs.ErrNotExist] and so on) where they apply.
type FS interface {
	// MkdirAll makes dir and its parents, for this user alone, and makes their
	// names durable.
	MkdirAll(dir string) error

	// Create makes an empty file for reading and writing, or empties an existing one.
	// The name is durable only after SyncDir.
	Create(name string) (File, error)

	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)

	// OpenRead opens an existing file for reading.
	OpenRead(name string) (File, error)

	// Rename gives a file another name in the same folder, replacing what has it.
	// A reader of the replaced file keeps it until it closes it.
	Rename(from, to string) error

	// Remove deletes a file. A reader that has it open keeps it until it closes it.
	Remove(name string) error

	// List returns the names in dir, sorted.
	List(dir string) ([]string, error)

	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error

	// Lock makes this process the only one that holds name, until the returned closer
	// is closed or the process dies. It does not wait: if somebody else holds name the
	// error is a *HeldError.
	Lock(name string) (io.Closer, error)

	// Free returns how many bytes this user may still write below dir.
	Free(dir string) (uint64, error)
}

// File is an open file. Its methods may be called concurrently, Close excepted.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer

	// Sync makes contents and size durable.
	//
	// After an error nothing is known about what was written since the last Sync that
	// succeeded: the system may have dropped it and still show it to readers, and a
	// second Sync may then succeed without having written anything.
	Sync() error

	// Truncate cuts the file to size bytes.
	Truncate(size int64) error

	// Size returns the size in bytes.
	Size() (int64, error)
}

// HeldError says that another process, or another part of this one, holds a lock.
type HeldError struct {
	Name string
	PID  int // of the holder; 0 if it is not known
}

func (e *HeldError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is locked by another process", e.Name)
	}
	return fmt.Sprintf("%s is locked by process %d", e.Name, e.PID)
}

// IsFull reports whether err means that the disk, or this user's share of it, is full.
func IsFull(err error) bool {
	for _, full := range fullErrors {
		if errors.Is(err, full) {
			return true
		}
	}
	return false
}
