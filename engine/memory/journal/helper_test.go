package journal_test

import (
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/engine/memory/journal"
)

type atomicPos struct{ v atomic.Int64 }

func (a *atomicPos) load() journal.Pos { return journal.Pos(a.v.Load()) }

func (a *atomicPos) raise(p journal.Pos) {
	for {
		old := a.v.Load()
		if int64(p) <= old || a.v.CompareAndSwap(old, int64(p)) {
			return
		}
	}
}

// pollTick fires soon: for loops that look whether the disk has died.
func pollTick() <-chan time.Time { return time.After(time.Millisecond) }
