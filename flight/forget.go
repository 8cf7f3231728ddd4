package flight

import "context"

// Forget parts the load of key that runs now from all who call from now on: they get a load that begins after this
// call, behind the real end of the old one. Who waited before gets the old load's value, marked as superseded; it is
// not filled (Options.Fill), and when Forget returns no older Fill of this key is running. What is remembered of the
// key's failures goes too. A load of a not shareable key belongs to its one caller and is not touched.
func (g *Group[K, V]) Forget(key K) {
	g.lock()
	defer g.mu.Unlock()
	f := g.m.forget(key)
	for f != nil && f.filling {
		g.filled.Wait()
	}
}

// ForgetAll is Forget for all keys at once, those whose first load is running included.
func (g *Group[K, V]) ForgetAll() {
	g.lock()
	defer g.mu.Unlock()
	g.m.forgetAll()
	epoch := g.m.epoch
	for g.fillingBefore(epoch) {
		g.filled.Wait()
	}
}

func (g *Group[K, V]) fillingBefore(epoch uint64) bool {
	for _, l := range []*list[K, V]{&g.m.running, &g.m.late} {
		for f := l.head; f != nil; f = f.next {
			if f.filling && f.epoch < epoch {
				return true
			}
		}
	}
	return false
}

// Close refuses further calls and those that wait for their turn, with ErrClosed, and waits until every load has
// really returned, those that all callers have left included. When ctx ends first, the loads are cancelled and Close
// returns a *CloseError that says how many still run; it may be called again to wait for them.
func (g *Group[K, V]) Close(ctx context.Context) error {
	g.lock()
	g.m.close()
	todo := g.ready()
	g.mu.Unlock()
	g.launch(todo)

	stop := context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.idle.Broadcast()
	})
	defer stop()

	g.mu.Lock()
	defer g.mu.Unlock()
	for g.m.count() > 0 && ctx.Err() == nil {
		g.idle.Wait()
	}
	n := g.m.count()
	if n == 0 {
		g.stopTimers()
		return nil
	}
	for _, l := range []*list[K, V]{&g.m.running, &g.m.late} {
		for f := l.head; f != nil; f = f.next {
			f.ctx.end(&causeClosed)
		}
	}
	return &CloseError{Running: n, Err: ctx.Err()}
}
