package memory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ushergo/usher/affinity"
)

// Directory is a directory of sessions (affinity.Store) in the memory of one process: for one usher in front of several
// instances, and for tests. Nothing of it is kept on disk. After a restart it is empty and generations go on above the old
// ones, because they follow the clock; owners hear that their rows are gone and close their sessions.
type Directory struct {
	now func() int64

	mu     sync.Mutex
	spaces map[string]*directorySpace
}

type directorySpace struct {
	machine affinity.Space
	ops     int
}

var _ affinity.Store = (*Directory)(nil)

// NewDirectory makes an empty directory. now is its clock, µs since 1970; nil: a clock that goes on evenly when the
// machine's clock is set.
func NewDirectory(now func() int64) *Directory {
	if now == nil {
		start := time.Now()
		now = func() int64 { return start.UnixMicro() + time.Since(start).Microseconds() }
	}
	return &Directory{now: now, spaces: make(map[string]*directorySpace)}
}

// maxSpaces bounds what strangers can make; names come from configuration.
const maxSpaces = 10_000

func (d *Directory) in(ctx context.Context, bad error, space string, f func(m *affinity.Space, now int64)) error {
	if bad != nil {
		return bad
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", affinity.ErrUnavailable, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	sp := d.spaces[space]
	if sp == nil {
		if len(d.spaces) >= maxSpaces {
			return fmt.Errorf("%w: more than %d spaces", affinity.ErrUnavailable, maxSpaces)
		}
		sp = new(directorySpace)
		d.spaces[space] = sp
	}
	now := d.now()
	f(&sp.machine, now)
	if sp.ops++; sp.ops%64 == 0 {
		sp.machine.Sweep(now, 256)
	}
	return nil
}

// Claim implements affinity.Store.
func (d *Directory) Claim(ctx context.Context, c affinity.Claim) (out affinity.Claimed, err error) {
	err = d.in(ctx, c.Check(), c.Space, func(m *affinity.Space, now int64) { out = m.Claim(c, now) })
	return out, err
}

// Refresh implements affinity.Store.
func (d *Directory) Refresh(ctx context.Context, r affinity.Refresh) (out affinity.Refreshed, err error) {
	err = d.in(ctx, r.Check(), r.Space, func(m *affinity.Space, now int64) { out = m.Refresh(r, now) })
	return out, err
}

// Clear implements affinity.Store.
func (d *Directory) Clear(ctx context.Context, c affinity.Clear) (out affinity.Cleared, err error) {
	err = d.in(ctx, c.Check(), c.Space, func(m *affinity.Space, now int64) { out = m.Clear(c, now) })
	return out, err
}

// Get implements affinity.Store.
func (d *Directory) Get(ctx context.Context, space, key string) (row affinity.Row, err error) {
	err = d.in(ctx, affinity.CheckKey(space, key), space, func(m *affinity.Space, now int64) { row = m.Get(key, now) })
	return row, err
}

// Announce implements affinity.Store.
func (d *Directory) Announce(ctx context.Context, a affinity.Announce) (out affinity.Announced, err error) {
	err = d.in(ctx, a.Check(), a.Space, func(m *affinity.Space, now int64) { out = m.Announce(a, now) })
	return out, err
}

// Instances implements affinity.Store.
func (d *Directory) Instances(ctx context.Context, space string) (list []affinity.Instance, err error) {
	err = d.in(ctx, affinity.CheckSpace(space), space, func(m *affinity.Space, now int64) { list = m.Instances(now) })
	return list, err
}

// Drain implements affinity.Store.
func (d *Directory) Drain(ctx context.Context, x affinity.Drain) (known bool, err error) {
	err = d.in(ctx, x.Check(), x.Space, func(m *affinity.Space, now int64) { known = m.Drain(x, now) })
	return known, err
}

// Forget makes a space empty, as a restart does.
func (d *Directory) Forget(space string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.spaces, space)
}
