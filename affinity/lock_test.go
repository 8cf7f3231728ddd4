package affinity_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/keylock"
)

func TestForcedReleaseRetiresTheSession(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o := w.owner("a", w.dir, func(o *affinity.Options[*thing]) {
			o.Locks = keylock.Options{MaxHold: 10 * time.Second}
		})
		defer o.Close()
		hung := make(chan *thing, 1)
		leave := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			ended <- o.Use(t.Context(), "k", func(ctx context.Context, s affinity.Session[*thing]) error {
				s.Value.inside.Add(1)
				hung <- s.Value
				<-leave // it does not hear its context
				return nil
			})
		}()
		old := <-hung
		next := w.must(o, "k") // waits for the forced release
		if next == old || next.gen <= old.gen {
			t.Error("the session of a hung task was handed on")
		}
		synctest.Wait()
		if !errors.Is(why(old), keylock.ErrForced) {
			t.Errorf("closed: %v", why(old))
		}
		close(leave)
		if err := <-ended; !errors.Is(err, keylock.ErrForced) {
			t.Errorf("got %v", err)
		}
		if w.must(o, "k") != next {
			t.Error("the late release changed something")
		}
	})
}

func TestLoginSingleFlightAloneIsNotEnough(t *testing.T) {
	// What many build first: one login for each account, shared by all who ask. It lets them in together.
	share := func(use func(key string, f func(*thing))) (together bool) {
		var most, now atomic.Int32
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				use("k", func(*thing) {
					n := now.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					time.Sleep(time.Second)
					now.Add(-1)
				})
			})
		}
		wg.Wait()
		return most.Load() > 1
	}
	inBubble(t, func(t *testing.T, w *world) {
		var asked atomic.Bool
		var one *thing
		ready := make(chan struct{})
		if !share(func(_ string, f func(*thing)) {
			if asked.CompareAndSwap(false, true) { // the single flight: one logs in, the others wait for it
				time.Sleep(time.Second)
				one = new(thing)
				close(ready)
			}
			<-ready
			f(one)
		}) {
			t.Error("single flight kept callers apart; then nobody needs the lock")
		}
		o := w.owner("a", w.dir, nil)
		defer o.Close()
		if share(func(key string, f func(*thing)) {
			if err := o.Use(t.Context(), key, func(_ context.Context, s affinity.Session[*thing]) error { f(s.Value); return nil }); err != nil {
				t.Error(err)
			}
		}) {
			t.Error("two callers used one session at once")
		}
	})
}
