package affinity_test

import (
	"context"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
)

// TestCloseWaitsForBuilds: a session whose build was under way when its owner was closed is closed too before Close returns, or
// a process that ends then leaves a browser behind.
func TestCloseWaitsForBuilds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		begun, closed := make(chan struct{}), make(chan struct{})
		o := w.owner("a", w.dir, func(o *affinity.Options[*thing]) {
			o.Build = func(ctx context.Context, _ string, fence uint64) (*thing, error) {
				close(begun)
				<-ctx.Done()
				time.Sleep(2 * time.Second) // it was nearly there
				return &thing{gen: fence}, nil
			}
			o.Close = func(*thing, error) { time.Sleep(time.Second); close(closed) }
		})
		used := make(chan error, 1)
		go func() { _, err := w.visit(o, "k"); used <- err }()
		<-begun
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		select {
		case <-closed:
		default:
			t.Error("Close returned before the session of an unfinished build was closed")
		}
		if err := <-used; err == nil {
			t.Error("a session was lent after Close")
		}
	})
}
