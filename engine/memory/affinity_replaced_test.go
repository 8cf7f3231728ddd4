package memory_test

import (
	"context"
	"sync/atomic"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/engine/memory"
)

// replaced is a directory that can be exchanged for an empty one, as a restart does.
type replaced struct {
	p atomic.Pointer[memory.Directory]
}

func (r *replaced) Claim(ctx context.Context, c affinity.Claim) (affinity.Claimed, error) {
	return r.p.Load().Claim(ctx, c)
}

func (r *replaced) Refresh(ctx context.Context, f affinity.Refresh) (affinity.Refreshed, error) {
	return r.p.Load().Refresh(ctx, f)
}

func (r *replaced) Clear(ctx context.Context, c affinity.Clear) (affinity.Cleared, error) {
	return r.p.Load().Clear(ctx, c)
}

func (r *replaced) Get(ctx context.Context, space, key string) (affinity.Row, error) {
	return r.p.Load().Get(ctx, space, key)
}

func (r *replaced) Announce(ctx context.Context, a affinity.Announce) (affinity.Announced, error) {
	return r.p.Load().Announce(ctx, a)
}

func (r *replaced) Instances(ctx context.Context, space string) ([]affinity.Instance, error) {
	return r.p.Load().Instances(ctx, space)
}

func (r *replaced) Drain(ctx context.Context, d affinity.Drain) (bool, error) {
	return r.p.Load().Drain(ctx, d)
}
