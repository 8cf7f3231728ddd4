package affinity_test

import (
	"context"
	"testing"

	"github.com/ushergo/usher/affinity"
)

// onReady looks at the moment at which the directory has said ready and the owner has not heard it.
type onReady struct {
	affinity.Store
	look func()
}

func (s onReady) Refresh(ctx context.Context, r affinity.Refresh) (affinity.Refreshed, error) {
	got, err := s.Store.Refresh(ctx, r)
	if len(r.Items) > 0 && r.Items[0].Ready {
		s.look()
	}
	return got, err
}

// Whoever reads a ready row goes to its owner at once, and must not be told that it has nothing: the row would be evicted
// and a second session built.
func TestOwnerHasWhatTheDirectorySays(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var o *affinity.Owner[*thing]
		looked := false
		o = w.owner("a", onReady{w.dir, func() {
			row, _ := w.dir.Get(t.Context(), "s", "k")
			if looked = true; row.State != affinity.Ready || o.Owns("k") != row.Generation {
				t.Errorf("the directory says %+v, the owner %d", row, o.Owns("k"))
			}
		}}, nil)
		defer o.Close()
		w.must(o, "k")
		if !looked {
			t.Error("nobody looked")
		}
	})
}
