package push

import (
	"math/rand/v2"
	"time"
)

// pace is how often places are told now. A frame costs about 10 µs and nearly all of it is the kernel's, so the only
// saving is to send fewer.
type pace struct {
	level   int     // 0: stats and places on their own beat; 1: stats ride with places; 2: by place
	stretch float64 // level 2: longer still
	cost    float64 // of a frame, ns
	frames  int64
	spent   int64
}

const (
	hiddenEvery = 45 * time.Second // a tab that nobody looks at
	longest     = 15 * time.Second
)

// meter reads what frames have cost since the hub began: ns of shards' time, and their number.
func (h *Hub) meter() (spent, frames int64) {
	for _, s := range h.shards {
		spent += s.spent.Load()
		frames += s.frames.Load()
	}
	return spent, frames
}

// repace measures what frames cost and decides how many there may be.
func (h *Hub) repace() {
	old := h.pace.Load()
	p := pace{cost: old.cost, stretch: 1}
	p.spent, p.frames = h.opts.meter(h)
	if n := p.frames - old.frames; n >= 100 {
		p.cost += (float64(p.spent-old.spent)/float64(n) - p.cost) / 4
	}
	// What telling everybody everything would take of the machine.
	conns, procs := float64(h.conns.Load()), float64(h.opts.procs)
	share := func(perSecond float64) float64 { return conns * perSecond * p.cost / 1e9 / procs }
	switch {
	case share(1/h.opts.StatsEvery.Seconds()) <= h.opts.CPUShare:
	case share(1/h.opts.RankEvery.Seconds()) <= h.opts.CPUShare:
		p.level = 1
	default:
		p.level = 2
		// With everybody in one line, 1 % are told each 2 s, 9 % each 5 s, 40 % each 10 s, the rest each 15 s.
		p.stretch = max(1, share(0.01/2+0.09/5+0.4/10+0.5/15)/h.opts.CPUShare)
	}
	h.pace.Store(&p)
}

// rankEvery is how often a connection is told its place.
func (p *pace) rankEvery(c *Conn, o *Options) time.Duration {
	if c.has(hidden) {
		return hiddenEvery
	}
	if p.level < 2 {
		return o.RankEvery
	}
	every := longest
	switch {
	case c.place <= 0:
		every = 10 * time.Second
	case c.place*100 <= c.waiting || c.place <= 20:
		every = o.RankEvery
	case c.place*10 <= c.waiting:
		every = 5 * time.Second
	case c.place*2 <= c.waiting:
		every = 10 * time.Second
	}
	if p.stretch > 1 && every > o.RankEvery {
		every = min(time.Duration(float64(every)*p.stretch), time.Minute)
	}
	return every
}

// statsEvery is how often a connection is told stats that changed. What the operator says does not wait for it.
func (p *pace) statsEvery(c *Conn, o *Options) time.Duration {
	if p.level == 0 && !c.has(hidden) {
		return o.StatsEvery
	}
	return p.rankEvery(c, o)
}

func jitter(d time.Duration) time.Duration { return rand.N(d + 1) }
