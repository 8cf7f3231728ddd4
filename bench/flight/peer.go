package main

import (
	"context"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/viccon/sturdyc"
	xsync "golang.org/x/sync/singleflight"
	"resenje.org/singleflight"

	"github.com/ushergo/usher/flight"
)

// A peer is one way to share a load. get answers as soon as ctx ends, where the peer can; forget makes the next get
// load again, where the peer keeps values.
type peer struct {
	name   string
	make   func() (get getter, forget func(key string))
	leaves bool // a caller can leave on her own context
}

type getter func(ctx context.Context, key string, load func(context.Context) (int, error)) (int, error)

func none(string) {}

func peers() []peer {
	return []peer{
		{"flight", func() (getter, func(string)) {
			g := flight.New(flight.Options[string, int]{MaxWaitersPerKey: 1 << 20, MaxWaiters: 1 << 20, Backoff: flight.Backoff{Off: true}})
			return func(ctx context.Context, key string, load func(context.Context) (int, error)) (int, error) {
				return g.Do(ctx, key, load)
			}, none
		}, true},
		{"x/sync Do", func() (getter, func(string)) {
			var g xsync.Group
			return func(ctx context.Context, key string, load func(context.Context) (int, error)) (int, error) {
				v, err, _ := g.Do(key, func() (any, error) { return load(ctx) })
				n, _ := v.(int)
				return n, err
			}, none
		}, false},
		{"x/sync DoChan + select", func() (getter, func(string)) {
			var g xsync.Group
			return func(ctx context.Context, key string, load func(context.Context) (int, error)) (int, error) {
				c := g.DoChan(key, func() (any, error) { return load(context.WithoutCancel(ctx)) })
				select {
				case r := <-c:
					n, _ := r.Val.(int)
					return n, r.Err
				case <-ctx.Done():
					return 0, ctx.Err()
				}
			}, none
		}, true},
		{"resenje", func() (getter, func(string)) {
			var g singleflight.Group[string, int]
			return func(ctx context.Context, key string, load func(context.Context) (int, error)) (int, error) {
				v, _, err := g.Do(ctx, key, load)
				return v, err
			}, none
		}, true},
		{"sturdyc (a cache)", func() (getter, func(string)) {
			c := sturdyc.New[int](100_000, 10, time.Hour, 10)
			return func(ctx context.Context, key string, load func(context.Context) (int, error)) (int, error) {
				return c.GetOrFetch(ctx, key, load)
			}, c.Delete
		}, false},
		{"otter (a cache)", func() (getter, func(string)) {
			c := otter.Must(&otter.Options[string, int]{MaximumSize: 100_000})
			return func(ctx context.Context, key string, load func(context.Context) (int, error)) (int, error) {
				return c.Get(ctx, key, otter.LoaderFunc[string, int](func(ctx context.Context, _ string) (int, error) { return load(ctx) }))
			}, func(key string) { c.Invalidate(key) }
		}, false},
	}
}
