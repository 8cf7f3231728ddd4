package roomlog

import (
	"sync"

	"github.com/ushergo/usher/room"
)

// tailMax is how many fresh events a reader keeps for itself; one that is further behind reads the engine's log.
const tailMax = 4096

// tail holds the latest events of a room, without a gap. Safe for concurrent use.
type tail struct {
	news chan struct{} // something came since it was last taken from

	mu     sync.Mutex
	events []room.Event
}

func newTail() *tail { return &tail{news: make(chan struct{}, 1)} }

// put takes what a room tells its listeners; nil says that something may have been missed.
func (t *tail) put(events []room.Event) {
	t.mu.Lock()
	switch n := len(t.events); {
	case len(events) == 0:
		t.events = nil
	case n > 0 && !follows(t.events[n-1], events[0]):
		t.events = append([]room.Event(nil), events...)
	default:
		t.events = append(t.events, events...)
	}
	if over := len(t.events) - tailMax; over > 0 {
		t.events = append([]room.Event(nil), t.events[over+tailMax/4:]...)
	}
	t.mu.Unlock()
	select {
	case t.news <- struct{}{}:
	default:
	}
}

func follows(a, b room.Event) bool { return a.Epoch == b.Epoch && a.N+1 == b.N }

// after returns up to max events that follow right behind a cursor; none if it does not know them all.
func (t *tail) after(at room.Cursor, max int) []room.Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.events) == 0 || at.Epoch != t.events[0].Epoch || at.N+1 < t.events[0].N {
		return nil
	}
	i := at.N + 1 - t.events[0].N
	if i >= uint64(len(t.events)) {
		return nil
	}
	rest := t.events[i:]
	return append([]room.Event(nil), rest[:min(len(rest), max)]...)
}
