package room

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A node that no longer hears of the log while the store answers would tell visitors old news with a green face. So each
// node looks now and then whether the store has an event that has not arrived: a log that stays behind for behindFollow is
// followed anew, and one that stays behind for behindHealth makes the node unready.
const (
	behindProbe  = 2 // seconds
	behindFollow = 4 * time.Second
	behindHealth = 6 * time.Second
)

// behind watches one room's log for not arriving. Safe for concurrent use.
type behind struct {
	mu       sync.Mutex
	at       Cursor             // has arrived
	since    time.Time          // for so long there has been an event after it; zero: there is none
	followed time.Time          // when the log was last followed anew for it
	again    context.CancelFunc // ends the following that is under way
}

// following notes how to end the following that is under way.
func (b *behind) following(end context.CancelFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.again = end
}

// saw notes whether the store has an event after head that has not arrived.
func (b *behind) saw(missing bool, head Cursor, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !missing:
		b.since = time.Time{}
	case b.since.IsZero() || b.at != head: // it moves
		b.at, b.since = head, now
	case b.again != nil && now.Sub(b.since) > behindFollow && now.Sub(b.followed) > behindFollow:
		b.followed = now
		b.again()
	}
}

// err says that the log does not arrive.
func (b *behind) err(id string, head Cursor, now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since.IsZero() || b.at != head || now.Sub(b.since) <= behindHealth {
		return nil
	}
	return fmt.Errorf("%w: room %s: the store has events after %v that do not arrive here; following its log anew", ErrUnavailable, id, head)
}

// probe looks whether the log arrives.
func (r *Room) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	head := r.Head()
	events, _, err := r.rooms.store.Events(ctx, r.id, head, 1)
	if err != nil && !errors.Is(err, ErrTrimmed) {
		return // the store's own health says it
	}
	missing := len(events) > 0 || err != nil
	r.behind.saw(missing && r.Head() == head, head, time.Now())
}
