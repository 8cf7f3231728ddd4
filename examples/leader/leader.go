// Package leader is leader election: of all processes that take part, one leads at a time, and another when it ends.
package leader

import (
	"context"

	"github.com/ushergo/usher/lease"
)

// Run takes part until ctx ends. lead is called while this process leads, and its context ends when it does not any more; the
// term grows with each leader: give it to those who are led, and let them refuse smaller ones. An error of lead's gives the
// office up; this process then stands again.
func Run(ctx context.Context, w *lease.Worker, office string, lead func(ctx context.Context, term uint64) error) error {
	for {
		lock, err := w.Acquire(ctx, office)
		if err != nil {
			return err
		}
		leading, resign := context.WithCancel(ctx)
		stop := context.AfterFunc(lock.Context(), resign)
		_ = lead(leading, lock.Fence())
		stop()
		resign()
		_ = lock.Release(context.WithoutCancel(ctx)) // lost, or given back later: others lead then
	}
}
