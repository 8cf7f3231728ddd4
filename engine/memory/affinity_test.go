package memory_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/affinitytest"
	"github.com/ushergo/usher/engine/memory"
)

func TestDirectory(t *testing.T) {
	affinitytest.TestStore(t, func(*testing.T) affinitytest.Fixture {
		var skip atomic.Int64
		now := func() int64 { return time.Now().UnixMicro() + skip.Load() }
		f := &replaced{}
		f.p.Store(memory.NewDirectory(now))
		return affinitytest.Fixture{
			Store: f, Advance: func(d time.Duration) { skip.Add(d.Microseconds()) },
			Forget: func() { f.p.Store(memory.NewDirectory(now)) },
		}
	})
}

var _ affinity.Store = (*replaced)(nil)
