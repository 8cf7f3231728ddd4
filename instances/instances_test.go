package instances_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/instances"
)

func TestLastCountHoldsThenFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n int64
		var fails error
		c := instances.NewCounter(instances.Func(func(context.Context) (int64, error) { return n, fails }))
		gone := errors.New("no route to host")
		for _, step := range []struct {
			after time.Duration
			n     int64
			err   error
			want  int64
			state instances.State
			says  string
		}{
			{0, 0, gone, 2, instances.Fallback, "could never be counted; instances.fallback, 2, is used: no route to host"},
			{time.Second, 7, nil, 7, instances.Counted, ""},
			{59 * time.Second, 0, gone, 7, instances.Held, "for 59s now; the last count, 7, holds for 1s more: no route to host"},
			{time.Second - 1, 0, gone, 7, instances.Held, "no route to host"},
			{1, 0, gone, 2, instances.Fallback, "for 1m0s now; instances.fallback, 2, is used: no route to host"},
			{time.Hour, 0, gone, 2, instances.Fallback, "for 1h1m0s now"},
			{time.Second, 0, nil, 0, instances.Counted, ""}, // nobody lives: a count like any other
			{30 * time.Second, 0, gone, 0, instances.Held, "the last count, 0,"},
			{time.Second, -1, nil, 0, instances.Held, "the source counted -1"},
			{time.Second, 5, nil, 5, instances.Counted, ""},
		} {
			time.Sleep(step.after)
			n, fails = step.n, step.err
			r := c.Count(t.Context(), 2)
			if r.Count != step.want || r.State != step.state {
				t.Errorf("after %v: %d %v, want %d %v", step.after, r.Count, r.State, step.want, step.state)
			}
			var silent *instances.SilentError
			switch {
			case step.says == "" && r.Err != nil:
				t.Errorf("after %v: unexpected error %v", step.after, r.Err)
			case step.says == "":
			case !errors.As(r.Err, &silent) || !strings.Contains(r.Err.Error(), step.says):
				t.Errorf("after %v: error %v, want …%s…", step.after, r.Err, step.says)
			case step.err != nil && !errors.Is(r.Err, gone):
				t.Errorf("after %v: the source's own error is lost: %v", step.after, r.Err)
			}
		}
	})
}

// Rooms that share a source share its last count, and not its fallback.
func TestEachRoomHasItsOwnFallback(t *testing.T) {
	c := instances.NewCounter(instances.Func(func(context.Context) (int64, error) { return 0, context.DeadlineExceeded }))
	for _, fallback := range []int64{0, 1, 40} {
		if r := c.Count(t.Context(), fallback); r.Count != fallback || r.State != instances.Fallback {
			t.Errorf("fallback %d: %+v", fallback, r)
		}
	}
	if r := instances.NewCounter(instances.Static(3)).Count(t.Context(), 9); r != (instances.Reading{Count: 3}) {
		t.Errorf("static: %+v", r)
	}
}
