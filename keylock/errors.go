package keylock

import "errors"

var (
	// ErrFull: as many callers as may wait for the key are waiting. Nothing was changed.
	ErrFull = errors.New("keylock: too many callers wait for this key; try again later, or raise MaxWaiting")
	// ErrWait: the key was not free within MaxWait. Nothing was changed.
	ErrWait = errors.New("keylock: the key did not become free in time; whoever holds it works longer than MaxWait")
	// ErrReentry: the caller's context belongs to a hold of the same key, which it would wait for forever. Use the
	// hold there is: pass on what you have instead of going through the entrance again.
	ErrReentry = errors.New("keylock: this caller holds the key already and would wait for itself; use the hold it has")
	// ErrForced: the hold was ended by force, because it lasted longer than MaxHold. It is the cause of the hold's
	// context, and what Release says. Whatever it was using must not be used by others.
	ErrForced = errors.New("keylock: the hold lasted longer than MaxHold and was ended by force")
	// ErrReleased: the hold was released before. Nothing was changed.
	ErrReleased = errors.New("keylock: released before")
)
