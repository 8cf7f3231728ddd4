package room

import (
	"context"
	"errors"
	"time"
)

// What a room needs where several nodes share a store.

// discover follows rooms that other nodes make.
func (rs *Rooms) discover() {
	tick := time.NewTicker(rs.opts.Discover)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-rs.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(rs.ctx, 10*time.Second)
		ids, err := rs.store.Rooms(ctx)
		for _, id := range ids {
			if _, ok := rs.Lookup(id); !ok && err == nil {
				_, err = rs.Get(ctx, id)
			}
		}
		cancel()
		if err != nil && rs.ctx.Err() == nil && !errors.Is(err, ErrNotFound) {
			rs.opts.Logger.Debug("rooms of other nodes cannot be looked for now", "err", err)
		}
	}
}

// oneInstance is the default of Options.Instances.
func oneInstance(_ context.Context, c Config) (int64, bool) {
	if c.Instances.Source == "static" {
		return c.Instances.Fallback, true
	}
	return 1, true
}

// countInstances tells the store how many instances there are, if that changes anything.
func (r *Room) countInstances(ctx context.Context) error {
	s := r.Summary()
	if s.Config.Capacity.PerInstance == 0 {
		return nil
	}
	n, ok := r.rooms.opts.Instances(ctx, s.Config)
	if !ok || n == s.Instances {
		return nil
	}
	_, err := r.change(ctx, &Command{Op: OpInstances, Instances: n})
	return err
}

// waits answers for a waiter from the mirror. Not while the mirror may be behind for longer than a message takes, nor
// while signs of life do not reach the store: a node that is cut off must not comfort whom the others give up.
func (r *Room) waits(ref Ref) (Result, bool) {
	if r.unfollowed.Load() || r.unheard.Load() {
		return Result{}, false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if !r.mirror.waits(ref.Seq) {
		return Result{}, false
	}
	return Result{At: r.mirror.At, Cursor: r.mirror.Cursor, View: View{Ref: ref, State: Waiting, Pos: ref.Seq}}, true
}
