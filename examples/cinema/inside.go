package cinema

import (
	"sync"
	"time"
)

const (
	insideFor = time.Minute
	insideMax = 20_000 // beyond it, newcomers are not counted: the count is decoration, memory is not
)

// inside counts the people seen lately. It is safe for concurrent use.
type inside struct {
	mu    sync.Mutex
	seen  map[string]time.Time
	swept time.Time
}

func newInside() *inside { return &inside{seen: map[string]time.Time{}} }

func (i *inside) saw(key string, now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, known := i.seen[key]; known || len(i.seen) < insideMax {
		i.seen[key] = now
	}
}

func (i *inside) gone(key string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.seen, key)
}

// count sweeps at most once a second, so that a page view never costs a walk
// over everybody.
func (i *inside) count(now time.Time) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if now.Sub(i.swept) >= time.Second || now.Before(i.swept) {
		i.swept = now
		for k, at := range i.seen {
			if now.Sub(at) > insideFor {
				delete(i.seen, k)
			}
		}
	}
	return len(i.seen)
}
