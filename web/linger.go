package web

import (
	"sync"
	"time"

	"github.com/ushergo/usher/room"
)

// linger remembers, for half a minute to a minute, tickets whose session the origin has ended. The page that ended it,
// "thank you", still wants its style sheet and its pictures: what belongs to a page passes with such a ticket, the
// next page does not. They hold no slot; a page's last files are the price of freeing it at once.
type linger struct {
	mu          sync.Mutex
	now, before map[room.ID]struct{}
	turned      time.Time
}

const (
	lingerTurn = 30 * time.Second
	maxLinger  = 100_000 // a turn; beyond it pages end without their files
)

func (l *linger) turn(now time.Time) {
	switch since := now.Sub(l.turned); {
	case since >= 2*lingerTurn:
		l.now, l.before, l.turned = map[room.ID]struct{}{}, nil, now
	case since >= lingerTurn:
		l.now, l.before, l.turned = map[room.ID]struct{}{}, l.now, l.turned.Add(lingerTurn)
	}
}

func (l *linger) add(id room.ID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn(now)
	if len(l.now) < maxLinger {
		l.now[id] = struct{}{}
	}
}

func (l *linger) has(id room.ID, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn(now)
	_, ok := l.now[id]
	if !ok {
		_, ok = l.before[id]
	}
	return ok
}
