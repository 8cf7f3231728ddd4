package flight

// A load that asks for other keys of its group can close a ring: A's load waits for B, B's for A. Such waits, which
// only loads make, are kept as edges from flight to flight; a wait that would close a ring is refused.

// loadAbove is the nearest running load of this group among c and those above it, and whether one of them loads key.
// Under the lock.
func (g *Group[K, V]) loadAbove(c carrier, key K) (nearest *flight[K, V], recursive bool) {
	for ; c != nil; c = c.above() {
		lc, ok := c.(*loadContext[K, V])
		if !ok || lc.g != g {
			continue
		}
		f := lc.flight()
		if f == nil {
			continue
		}
		if f.key == key {
			return nil, true
		}
		if nearest == nil {
			nearest = f
		}
	}
	return nearest, false
}

// ring notes that the load p waits for f, unless that closes a ring: then it answers true. Under the lock.
func (g *Group[K, V]) ring(p, f *flight[K, V]) bool {
	if g.reaches(f, p, make(map[*flight[K, V]]bool)) {
		return true
	}
	if g.edges == nil {
		g.edges = make(map[*flight[K, V]][]*flight[K, V])
	}
	g.edges[p] = append(g.edges[p], f)
	p.ringed, f.ringed = true, true // they are not used again: the edge may outlive them
	return false
}

// reaches: f waits, directly or not, for p.
func (g *Group[K, V]) reaches(f, p *flight[K, V], seen map[*flight[K, V]]bool) bool {
	if f == p {
		return true
	}
	if seen[f] {
		return false
	}
	seen[f] = true
	if f.state == queued { // it waits for the end of the flight before it
		if cur := g.m.flights[f.key]; cur != nil && g.reaches(cur, p, seen) {
			return true
		}
	}
	for _, n := range g.edges[f] {
		if g.reaches(n, p, seen) {
			return true
		}
	}
	return false
}

// unring takes the edge away again.
func (g *Group[K, V]) unring(p, f *flight[K, V]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	es := g.edges[p]
	for i := range es {
		if es[i] == f {
			es[i] = es[len(es)-1]
			es = es[:len(es)-1]
			break
		}
	}
	if len(es) == 0 {
		delete(g.edges, p)
	} else {
		g.edges[p] = es
	}
}
