package gateway

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/engine/memory"
)

// slowList is a directory whose list of instances comes when it is let go.
type slowList struct {
	affinity.Store
	calls   atomic.Int32
	entered chan struct{}
	release chan error
}

func (s *slowList) Instances(context.Context, string) ([]affinity.Instance, error) {
	s.calls.Add(1)
	select {
	case s.entered <- struct{}{}:
	default:
	}
	return nil, <-s.release
}

// TestNobodyQueuesForTheList: requests do not ask one after the other for a list that does not come or has nobody in it, as where
// all instances are named in the configuration.
func TestNobodyQueuesForTheList(t *testing.T) {
	for name, answer := range map[string]error{"empty": nil, "away": errors.New("away")} {
		d := &slowList{Store: memory.NewDirectory(nil), entered: make(chan struct{}, 1), release: make(chan error)}
		g, err := New(Options{Space: "s", Directory: d, Key: Key{Header: "X-Key"}})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		for round := range 2 {
			g.mu.Lock()
			g.listed = time.Time{} // a second has passed
			g.mu.Unlock()
			var all, begun sync.WaitGroup
			for range 50 {
				begun.Add(1)
				all.Go(func() { begun.Done(); g.instances(t.Context()) })
			}
			<-d.entered
			begun.Wait()
			time.Sleep(20 * time.Millisecond) // most of them are waiting by now: with fewer the test sees less
			done := make(chan struct{})
			go func() { all.Wait(); close(done) }()
			for waiting := true; waiting; {
				select {
				case d.release <- answer:
				case <-done:
					waiting = false
				}
			}
			if n := d.calls.Swap(0); n != 1 {
				t.Errorf("%s, round %d: %d calls", name, round, n)
			}
			for len(d.entered) > 0 {
				<-d.entered
			}
		}
	}
}
