package leader_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/examples/leader"
	"github.com/ushergo/usher/lease"
)

func TestOneLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := memory.OpenLeases("", "offices", memory.LeaseOptions{Now: func() int64 { return time.Now().UnixMicro() }})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = store.Close() }()
		terms := make(chan uint64, 100)
		leaders := 0
		for range 3 {
			w, err := lease.New(store, lease.Options{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- leader.Run(ctx, w, "chair", func(ctx context.Context, term uint64) error {
					if leaders++; leaders != 1 {
						t.Errorf("%d lead", leaders)
					}
					defer func() { leaders-- }()
					terms <- term
					select {
					case <-ctx.Done():
						return nil
					case <-time.After(time.Minute):
						return errors.New("tired")
					}
				})
			}()
			defer func() {
				cancel()
				if err := <-done; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				_ = w.Close(context.Background())
			}()
		}
		time.Sleep(10*time.Minute + 30*time.Second)
		if n := len(terms); n < 10 {
			t.Errorf("%d terms in ten minutes", n)
		}
		for last := uint64(0); len(terms) > 0; {
			term := <-terms
			if term <= last {
				t.Errorf("term %d after %d", term, last)
			}
			last = term
		}
	})
}
