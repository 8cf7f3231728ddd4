package flight

import "time"

// One timer serves all flights of a group: it beats sixteen times per Timeout while there are any, and rests when
// there are none. Flights are stamped with the beat in which they start, so starting one reads no clock.

func (g *Group[K, V]) startTicks() {
	g.ticks = true
	if g.timer == nil {
		g.timer = time.AfterFunc(g.m.beat(), g.tick)
		return
	}
	g.timer.Reset(g.m.beat())
}

func (g *Group[K, V]) tick() {
	g.mu.Lock()
	timedOut := g.m.advance()
	var told []*flight[K, V]
	for _, f := range timedOut {
		if g.m.settle(f) {
			f.err = ErrTimeout
			told = append(told, f)
		}
	}
	todo := g.ready()
	if g.m.count() > 0 {
		g.timer.Reset(g.m.beat())
	} else {
		g.ticks = false
	}
	g.mu.Unlock()
	for _, f := range timedOut {
		f.ctx.end(&causeTimeout)
	}
	for _, f := range told {
		if f.done != nil {
			close(f.done)
		}
	}
	g.launch(todo)
}

// setRate wakes the group when the budget's rate allows the next start of a load that waits.
func (g *Group[K, V]) setRate() {
	if g.m.budget.pending == 0 || !g.m.budget.rated {
		return
	}
	now := g.now()
	at := g.m.budget.next(now)
	if at == 0 || (g.rateAt != 0 && g.rateAt <= at && g.rateAt > now) {
		return
	}
	g.rateAt = at
	d := time.Duration(at - now)
	if g.rate == nil {
		g.rate = time.AfterFunc(d, g.rateDue)
		return
	}
	g.rate.Reset(d)
}

func (g *Group[K, V]) rateDue() {
	g.mu.Lock()
	g.rateAt = 0
	g.m.grant(g.now())
	todo := g.ready()
	g.mu.Unlock()
	g.launch(todo)
}

func (g *Group[K, V]) stopTimers() {
	if g.timer != nil {
		g.timer.Stop()
	}
	if g.rate != nil {
		g.rate.Stop()
	}
	g.ticks, g.rateAt = false, 0
}
