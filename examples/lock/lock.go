// Package lock is a named lock across machines: one caller at a time does the work, and stops when the lock is lost.
package lock

import (
	"context"
	"errors"

	"github.com/ushergo/usher/lease"
)

// Do waits for the lock, does the work, and gives the lock back. work's context ends when the lock is lost. work gives its
// fence to whatever it writes to, which refuses smaller ones: a process that was stopped does not know what it has lost.
func Do(ctx context.Context, w *lease.Worker, name string, work func(ctx context.Context, fence uint64) error) (err error) {
	lock, err := w.Acquire(ctx, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release(context.WithoutCancel(ctx))) }() // also when work panics
	held, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(lock.Context(), func() { cancel(context.Cause(lock.Context())) })()
	return work(held, lock.Fence())
}
