package journal

import (
	"errors"
	"fmt"
	"time"

	"github.com/ushergo/usher/engine/memory/journal/disk"
)

var (
	// ErrUnknown says that nobody can tell yet whether a record will survive: the
	// caller left before the disk answered, or the journal was closed. It comes wrapped
	// together with the reason.
	ErrUnknown = errors.New("outcome unknown: the record is not yet on the disk")

	// ErrFull says that Options.MaxPending bytes already wait for the disk. Nothing was
	// appended.
	ErrFull = errors.New("journal: too much waits for the disk")

	// ErrClosed says that the journal was closed. Nothing was appended.
	ErrClosed = errors.New("journal: closed")

	// ErrRecordSize says that a record is empty or longer than MaxRecord. Nothing was
	// appended.
	ErrRecordSize = errors.New("journal: a record has 1 to 16777216 bytes")

	// ErrBeyondEnd says that a position lies behind the last record.
	ErrBeyondEnd = errors.New("journal: position is beyond the end")
)

// LockedError says that another process works on the folder.
type LockedError struct {
	Dir string
	PID int // 0 if it is not known
}

func (e *LockedError) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("%s is in use by %s: stop it, or use another folder", e.Dir, who)
}

// FolderError says that the folder cannot be used as it is. Nothing in it was changed.
type FolderError struct {
	Dir string
	Err error
}

func (e *FolderError) Error() string {
	mend := "make it writable for this user, or use another folder"
	if disk.IsFull(e.Err) {
		mend = "the disk is full; free some space and start again"
	}
	return fmt.Sprintf("cannot write in %s: %v: %s", e.Dir, e.Err, mend)
}

func (e *FolderError) Unwrap() error { return e.Err }

// LayoutError says that a file was written by another version. Nothing was changed.
type LayoutError struct {
	File        string
	Found, Want uint32
}

func (e *LayoutError) Error() string {
	return fmt.Sprintf("%s has layout %d, this version reads layout %d: start the version that wrote it, or use another folder; nothing was changed",
		e.File, e.Found, e.Want)
}

// CorruptError says that a file is damaged where an interrupted write cannot explain it.
// Nothing was changed.
type CorruptError struct {
	File   string
	Offset int64 // in the file
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is damaged at offset %d: %s; nothing was changed: restore the folder from a copy, or move it away to begin anew, and check the disk",
		e.File, e.Offset, e.Reason)
}

// TrimmedError says that records were asked for that have been deleted.
type TrimmedError struct {
	From, Floor Pos
}

func (e *TrimmedError) Error() string {
	return fmt.Sprintf("journal: records from position %d are gone, the oldest begin at %d", e.From, e.Floor)
}

// StallError says why nothing becomes durable at the moment. The journal retries, at
// least every second, and keeps what waits.
type StallError struct {
	Dir     string
	Err     error     // of the last attempt
	Since   time.Time // of the first
	Pending int64     // bytes that wait
	Free    uint64    // bytes free on the disk; meaningful if Err is about a full disk
}

func (e *StallError) Error() string {
	if disk.IsFull(e.Err) {
		return fmt.Sprintf("disk full: %d bytes free on %s, %d bytes wait since %s: free some space; it is retried every second and nothing that was answered is lost (%v)",
			e.Free, e.Dir, e.Pending, e.Since.UTC().Format(time.RFC3339), e.Err)
	}
	return fmt.Sprintf("disk fails: %d bytes wait for %s since %s: check the disk; it is retried every second and nothing that was answered is lost (%v)",
		e.Pending, e.Dir, e.Since.UTC().Format(time.RFC3339), e.Err)
}

func (e *StallError) Unwrap() error { return e.Err }
