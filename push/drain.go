package push

import (
	"context"
	"time"
)

// Drain takes on nobody more, tells each connection when to come back, and closes it with CodeRestart, at perSecond
// (0: 1,500) a second. If that would not fit ctx's deadline it is faster. It returns when all are closed, or with
// ctx's error.
func (h *Hub) Drain(ctx context.Context, perSecond int) error {
	h.draining.Store(true)
	if perSecond <= 0 {
		perSecond = 1500
	}
	rate := float64(perSecond)
	n := h.conns.Load()
	if at, ok := ctx.Deadline(); ok {
		if left := time.Until(at).Seconds() * 0.8; left > 0 && float64(n)/left > rate {
			rate = float64(n) / left
			h.opts.Logger.Warn("more connections than the rate lets go within the time: closing them faster", "conns", n, "per_second", int(rate))
		}
	}
	// Whoever is told to come back later than that would be more patient than need be: the others take rate a second.
	window := min(time.Second+time.Duration(float64(n)/rate*float64(time.Second)/2), 30*time.Second)
	const step = 10 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	start := time.Now()
	gone := 0.0
	for i := 0; h.conns.Load() > 0; i++ {
		due := time.Since(start).Seconds()*rate - gone
		if due > rate { // never more than a second's worth at once
			gone += due - rate
			due = rate
		}
		// Shards hold about the same number; one that is empty passes its turn on.
		for k, empty := int(due), 0; k > 0 && empty < len(h.shards); i++ {
			each := max(1, k/len(h.shards))
			n := h.shards[i%len(h.shards)].sendAway(min(each, k), window)
			if n == 0 {
				empty++
				continue
			}
			empty = 0
			k -= n
			gone += float64(n)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-h.done:
			return ErrClosed
		}
	}
	return nil
}

// sendAway tells up to k connections to come back within window, and closes them.
func (s *shard) sendAway(k int, window time.Duration) int {
	reply := make(chan int, 1)
	s.post(op{kind: opCall, call: func(s *shard) {
		n := 0
		for _, c := range s.tickets { // in an order that differs each time
			for c != nil && n < k {
				next := c.next
				if c.closing == 0 {
					s.farewell(c, time.Second+jitter(window))
					n++
				}
				c = next
			}
			if n >= k {
				break
			}
		}
		reply <- n
	}})
	select {
	case n := <-reply:
		return n
	case <-s.hub.done:
		return 0
	}
}

// farewell says on every topic when to come back.
func (s *shard) farewell(c *Conn, after time.Duration) {
	after = after.Round(time.Millisecond)
	body := appendSoon(nil, after.Milliseconds())
	head := c.room.Head()
	for t := range topics {
		if !c.wants(t) {
			continue
		}
		m := Message{Topic: t, Of: c.ticket.Name, Cursor: head, Body: body, Retry: after}
		if t == TopicStats {
			m.Of = c.room.id
		}
		if c.has(dirty) {
			m.Cursor = Cursor{} // something before it may still be unsaid
		}
		c.last = c.codec.AppendMessage(c.last, &m, c.subs[t])
		if !c.codec.Topical() {
			break
		}
	}
	c.closing, c.after = CodeRestart, after
	s.flush(c)
}
