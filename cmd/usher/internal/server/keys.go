package server

import (
	"context"
	"time"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/token"
)

// keepKeys takes over what others store. Keys that have gone from Redis (it was emptied, or lost the write) are put back by
// whoever holds them, or the next node to start would make new ones, and no ticket would be valid at both.
func (s *Server) keepKeys(ctx context.Context) {
	every, store := time.Minute, token.Store(nil)
	if s.engine.redis.client != nil && s.cfg.Keys.Inline.Empty() && s.cfg.Keys.Dir == "" {
		every, store = 5*time.Second, redis.NewKeyStore(s.engine.redis.client)
	}
	s.keys.Watch(ctx, every, func(err error) {
		if store != nil && ctx.Err() == nil {
			call, cancel := context.WithTimeout(ctx, every)
			defer cancel()
			if text, loadErr := store.Load(call); loadErr == nil && text == "" {
				if back, swapErr := store.Swap(call, "", s.keys.Export()); swapErr == nil && back {
					s.log.Warn("the signing keys had gone from Redis, and were put back; what else has gone? See docs/durability.md")
					return
				}
			}
		}
		s.log.Error("the keys could not be read again; those in use stay", "err", err)
	})
}
