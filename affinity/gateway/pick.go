package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ushergo/usher/affinity"
)

type cachedRow struct {
	row affinity.Row
	at  time.Time
}

// maxRows bounds the cache.
const maxRows = 100_000

// aim is where a request goes.
type aim struct {
	call
	addr  string
	pulse *pulse
	local bool // it is this very instance
}

var errNobody = errors.New("gateway: no instance can take a new session")

// aimOf is the owner that a row names. Where the session is still being built the request does not ask for its generation:
// it waits there, and its answer 421 is no reason to evict the row.
func aimOf(row affinity.Row, key string) aim {
	a := aim{call: call{row.Owner, row.Generation, key}, addr: row.Addr}
	if row.State == affinity.Building {
		a.gen = 0
	}
	return a
}

// aimAt finds the owner of a key, or who shall build. A row whose owner is dead is evicted on the way. avoid: an instance
// that would not build.
func (g *Gateway) aimAt(ctx context.Context, key, avoid string, fresh bool) (aim, error) {
	for range 3 {
		row, err := g.row(ctx, key, fresh)
		if err != nil {
			return aim{}, err
		}
		if row.State == affinity.None {
			return g.place(ctx, key, avoid)
		}
		a := aimOf(row, key)
		if g.self != nil && row.Owner == g.self.id {
			a.local = true
			return a, nil
		}
		if in, ok := g.instance(ctx, row.Owner.Instance); ok {
			if in.Owner.Epoch > row.Owner.Epoch {
				g.evict(ctx, key, row, "a later start of the instance lives")
				fresh = true
				continue
			}
			if in.Owner.Epoch == row.Owner.Epoch && in.Addr != "" {
				a.addr = in.Addr
			}
		}
		if a.addr == "" {
			return aim{}, fmt.Errorf("gateway: instance %s says no address", row.Owner.Instance)
		}
		a.pulse = g.pulse(a.owner, a.addr)
		if g.alive(ctx, a.pulse) {
			return a, nil
		}
		g.evict(ctx, key, row, "the owner is dead")
		fresh = true
	}
	return aim{}, fmt.Errorf("%w: owners of %q die as they are found", affinity.ErrUnavailable, key)
}

// row reads the directory, or what is known of it. While it does not answer, what was known is believed until the row's
// expiry.
func (g *Gateway) row(ctx context.Context, key string, fresh bool) (affinity.Row, error) {
	g.mu.Lock()
	c, ok := g.rows[key]
	g.mu.Unlock()
	age := time.Since(c.at)
	if ok && !fresh && age < g.opts.CacheFor {
		return c.row, nil
	}
	call, cancel := context.WithTimeout(ctx, g.opts.CallTimeout)
	defer cancel()
	began := time.Now()
	row, err := g.opts.Directory.Get(call, g.opts.Space, key)
	if err != nil {
		if ok && !fresh && age < c.row.Left {
			return c.row, nil
		}
		if !errors.Is(err, affinity.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", affinity.ErrUnavailable, err)
		}
		return row, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if row.State != affinity.Ready { // who builds may fail, and nobody is nobody only now
		delete(g.rows, key)
		return row, nil
	}
	if len(g.rows) >= maxRows {
		clear(g.rows)
	}
	g.rows[key] = cachedRow{row, began}
	return row, nil
}

func (g *Gateway) forget(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.rows, key)
}

// evict takes a row away if it is still the same.
func (g *Gateway) evict(ctx context.Context, key string, row affinity.Row, why string) {
	g.forget(key)
	ctx, cancel := context.WithTimeout(ctx, g.opts.CallTimeout)
	defer cancel()
	got, err := g.opts.Directory.Clear(ctx, affinity.Clear{Space: g.opts.Space, Key: key, Owner: row.Owner, Generation: row.Generation})
	if err == nil && got.Cleared {
		g.evicted.Add(1)
		g.log.Info("a session's row was evicted", "instance", row.Owner.Instance, "generation", row.Generation, "why", why)
	}
}

// instances lists the living ones, at most a second old, or older while the directory is away.
func (g *Gateway) instances(ctx context.Context) []affinity.Instance {
	g.mu.Lock()
	list, age := g.list, time.Since(g.listed)
	g.mu.Unlock()
	if age < time.Second {
		return list
	}
	if list != nil && !g.listing.TryLock() { // somebody asks
		return list
	} else if list == nil {
		g.listing.Lock()
	}
	defer g.listing.Unlock()
	g.mu.Lock()
	list, age = g.list, time.Since(g.listed)
	g.mu.Unlock()
	if age < time.Second { // somebody has asked
		return list
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.opts.CallTimeout)
	defer cancel()
	began := time.Now()
	got, err := g.opts.Directory.Instances(ctx, g.opts.Space)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listed = time.Now()
	if err == nil {
		g.recount(got, began)
		g.list = got
	}
	if g.list == nil {
		g.list = []affinity.Instance{} // which is known: nobody waits for the next one
	}
	return g.list
}

// recount forgets the placements that an instance has counted itself: it has announced itself again since, for it lives for
// longer than was said before. Those that announce nothing are counted anew each time. Called with mu held.
func (g *Gateway) recount(got []affinity.Instance, began time.Time) {
	expiry := make(map[string]time.Time, len(got))
	for _, in := range got {
		id := in.Owner.Instance
		if at, ok := g.expiry[id]; !ok || began.Add(in.Left).After(at) {
			delete(g.placed, id)
		}
		expiry[id] = g.listed.Add(in.Left) // at the latest
	}
	for id := range g.placed {
		if _, ok := expiry[id]; !ok {
			delete(g.placed, id)
		}
	}
	g.expiry = expiry
}

func (g *Gateway) instance(ctx context.Context, id string) (affinity.Instance, bool) {
	for _, in := range g.instances(ctx) {
		if in.Owner.Instance == id {
			return in, true
		}
	}
	return affinity.Instance{}, false
}

// place chooses the living instance with the fewest sessions.
func (g *Gateway) place(ctx context.Context, key, avoid string) (aim, error) {
	tried := map[string]bool{avoid: avoid != ""}
	for {
		var best *affinity.Instance
		least := 0
		for _, list := range [][]affinity.Instance{g.instances(ctx), g.opts.Static} {
			for i := range list {
				in := &list[i]
				if tried[in.Owner.Instance] || in.Draining || in.Addr == "" {
					continue
				}
				g.mu.Lock()
				n := in.Sessions + g.placed[in.Owner.Instance]
				g.mu.Unlock()
				if most := in.Max; most > 0 && n >= most || most == 0 && g.opts.MaxSessions > 0 && n >= g.opts.MaxSessions {
					continue
				}
				if best == nil || n < least {
					best, least = in, n
				}
			}
		}
		if best == nil {
			return aim{}, errNobody
		}
		tried[best.Owner.Instance] = true
		a := aim{call: call{owner: best.Owner, key: key}, addr: best.Addr, local: g.self != nil && best.Owner == g.self.id}
		if !a.local {
			if a.pulse = g.pulse(a.owner, a.addr); !g.alive(ctx, a.pulse) {
				continue
			}
		}
		g.mu.Lock()
		g.placed[best.Owner.Instance]++
		g.mu.Unlock()
		g.placements.Add(1)
		return a, nil
	}
}
