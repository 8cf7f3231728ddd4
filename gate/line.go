package gate

import (
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// recheck is how soon a line asks the store even if nobody woke it: a lost message costs no
	// more than that (cases/gate 8).
	recheck = 950 * time.Millisecond
	// tryTime bounds one call of a line.
	tryTime = 5 * time.Second
	// side is how many of a line's heads are asked for at once when that many permits are free.
	side = 32
)

// line is those who wait for one key on this node, first come first served. It has one
// goroutine, which asks the store for the heads; nobody else who waits costs anything.
type line struct {
	gate    *Gate
	key     string
	waiters *list.List    // of *waiter, by seq; guarded by the shard's lock
	poked   chan struct{} // something may have come free, or the head has changed
}

type waiter struct {
	request
	seq      uint64
	deadline time.Time
	done     chan outcome  // answered once, after leaving the line
	at       *list.Element // nil once it has left the line
	refused  error         // what the first try said
}

// waits reports whether somebody waits for key: then nobody goes past.
func (g *Gate) waits(key string) bool {
	sh := g.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.lines[key]
	return l != nil && l.waiters.Len() > 0
}

// poke wakes a key's line.
func (g *Gate) poke(key string) {
	sh := g.shard(key)
	sh.mu.Lock()
	l := sh.lines[key]
	sh.mu.Unlock()
	if l != nil {
		l.poke()
	}
}

func (l *line) poke() {
	select {
	case l.poked <- struct{}{}:
	default:
	}
}

// wait joins the line and waits for an answer, the deadline, ctx or Close.
func (g *Gate) wait(ctx context.Context, key string, w *waiter) (*Permit, error) {
	left := time.Until(w.deadline)
	if err := g.join(key, w); err != nil {
		return nil, err
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	var why error
	select {
	case o := <-w.done:
		if o.permit != nil && ctx.Err() != nil { // at the same moment: the caller does not want it
			g.pass(o.permit)
			return nil, ctx.Err()
		}
		return o.permit, o.err
	case <-ctx.Done():
		why = ctx.Err()
	case <-g.ctx.Done():
		why = ErrClosed
	case <-timer.C:
		if why = w.refused; why == nil {
			why = &FullError{Key: key}
		}
	}
	if g.leave(key, w) {
		return nil, why
	}
	o := <-w.done // was answered before it could leave
	if o.permit == nil {
		return nil, o.err
	}
	if errors.Is(why, ErrFull) { // late by nothing: take it
		return o.permit, nil
	}
	g.pass(o.permit)
	return nil, why
}

// pass gives a permit back that its waiter no longer wants (cases/gate 7).
func (g *Gate) pass(p *Permit) {
	g.forget(p.key, p.id)
	g.abandon(p.key, p.id, p.n)
}

func (g *Gate) join(key string, w *waiter) error {
	sh := g.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.closed {
		return ErrClosed
	}
	l := sh.lines[key]
	if l == nil {
		if g.opts.MaxWaiting < 1 {
			return &FullError{Key: key, Crowded: true}
		}
		l = &line{gate: g, key: key, waiters: list.New(), poked: make(chan struct{}, 1)}
		sh.lines[key] = l
		g.wg.Go(l.run)
	} else if l.waiters.Len() >= g.opts.MaxWaiting {
		return &FullError{Key: key, Crowded: true}
	}
	// By when they came, not by when the store's first refusal arrived.
	at := l.waiters.Back()
	for at != nil && at.Value.(*waiter).seq > w.seq {
		at = at.Prev()
	}
	if at == nil {
		w.at = l.waiters.PushFront(w)
	} else {
		w.at = l.waiters.InsertAfter(w, at)
	}
	return nil
}

// leave reports whether w was still in line.
func (g *Gate) leave(key string, w *waiter) bool {
	sh := g.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if w.at == nil {
		return false
	}
	l := sh.lines[key]
	first := l.waiters.Front() == w.at
	l.waiters.Remove(w.at)
	w.at = nil
	if first || l.waiters.Len() == 0 {
		l.poke()
	}
	return true
}

// answer hands o to w, unless w has left.
func (l *line) answer(w *waiter, o outcome) bool {
	sh := l.gate.shard(l.key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if w.at == nil {
		return false
	}
	l.waiters.Remove(w.at)
	w.at = nil
	w.done <- o
	return true
}

// heads returns the first of the line and those after it for whom n permits are enough too; the line ends where
// nobody waits.
func (l *line) heads(n int) (ws []*waiter) {
	sh := l.gate.shard(l.key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for e := l.waiters.Front(); e != nil; e = e.Next() {
		w := e.Value.(*waiter)
		if n -= w.cmd.N; n < 0 && len(ws) > 0 {
			break
		}
		ws = append(ws, w)
	}
	if len(ws) == 0 {
		delete(sh.lines, l.key)
	}
	return ws
}

// run serves the line until nobody waits.
func (l *line) run() {
	ctx, cancel := context.WithCancel(l.gate.ctx)
	defer cancel()
	// Aside, for a store that is away must not keep the line from saying so.
	watching := make(chan error, 1)
	watch := func() { go func() { watching <- l.gate.store.Watch(ctx, l.key, l.poke) }() }
	watch()
	watched := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	n := 1
	for {
		if ctx.Err() != nil {
			l.answerAll(outcome{err: ErrClosed})
		}
		ws := l.heads(n)
		if len(ws) == 0 {
			return
		}
		var pause time.Duration
		n, pause = l.serve(ctx, ws)
		if n > 0 {
			continue
		}
		n = 1
		if !watched { // no messages yet: ask more often
			pause = min(pause, recheck/8)
		}
		timer.Reset(pause)
		select {
		case <-l.poked:
		case err := <-watching: // from here on nothing is missed; what came before is asked for now
			if watched = err == nil; !watched {
				if ctx.Err() == nil {
					l.gate.opts.Logger.Warn("no messages about this key; asking again and again", "key", l.key, "err", err)
				}
				select { // not at once: the store is away
				case <-ctx.Done():
				case <-l.poked:
				case <-timer.C:
				}
				watch()
			}
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// serve asks the store for some heads, side by side, and answers them. It returns how many to
// ask for at once now, or 0 and how long to wait at most.
func (l *line) serve(ctx context.Context, ws []*waiter) (int, time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	out := make([]outcome, len(ws))
	ask := func(i int) {
		ws[i].cmd.Patience = max(patience(time.Until(ws[i].deadline)), time.Millisecond)
		out[i] = l.gate.try(ctx, l.key, &ws[i].request)
	}
	var wg sync.WaitGroup
	for i := 1; i < len(ws); i++ {
		wg.Go(func() { ask(i) })
	}
	ask(0)
	wg.Wait()
	inOrder(ws, out)

	free, pause := int64(side), recheck
	for i, o := range out {
		var full *FullError
		switch {
		case errors.As(o.err, &full):
			free = 0
			if full.After > 0 {
				pause = min(pause, full.After)
			}
		case o.permit != nil:
			free = min(free, o.free)
			if o.next > 0 {
				pause = min(pause, o.next)
			}
			if !l.answer(ws[i], o) {
				l.gate.pass(o.permit) // and its release wakes the line
			}
		case l.gate.ctx.Err() != nil: // closed: the loop's next turn says so
			free, pause = 0, 0
		default:
			if errors.Is(o.err, context.DeadlineExceeded) { // ours, not the waiter's
				o.err = fmt.Errorf("%w: the engine did not answer within %v", ErrUnknown, tryTime)
			}
			if errors.Is(o.err, ErrSettled) || errors.Is(o.err, ErrUnavailable) || errors.Is(o.err, ErrNotSet) {
				l.answerAll(o)
			} else {
				l.answer(ws[i], o)
			}
		}
	}
	return int(min(max(free, 0), side)), max(pause, time.Millisecond)
}

// inOrder gives what was granted to those who came first. Side by side one asks in no order, and another node may have taken a
// permit meanwhile; permits that are alike and whose ids nobody chose can change hands.
func inOrder(ws []*waiter, out []outcome) {
	for i := range ws {
		if out[i].permit != nil || !isFull(out[i].err) || ws[i].given {
			continue
		}
		for j := i + 1; j < len(ws); j++ {
			if out[j].permit != nil && !ws[j].given && ws[j].cmd.N == ws[i].cmd.N && ws[j].cmd.Lease == ws[i].cmd.Lease {
				out[i], out[j] = out[j], out[i]
				rand.Read(ws[j].cmd.ID[:]) // its own is the other's now
				break
			}
		}
	}
}

// answerAll sends everybody away: what the store said is so for all.
func (l *line) answerAll(o outcome) {
	sh := l.gate.shard(l.key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for e := l.waiters.Front(); e != nil; e = l.waiters.Front() {
		w := l.waiters.Remove(e).(*waiter)
		w.at = nil
		w.done <- o
	}
}
