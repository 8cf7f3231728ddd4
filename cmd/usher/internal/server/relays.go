package server

import (
	"context"
	"io"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ushergo/usher/cmd/usher/internal/relays"
	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/relay"
)

// carriers are the relays of this node, with what is closed after them.
type carriers struct {
	*relays.Relays
	dead io.Closer // nil: nothing to close
}

// openRelays makes the relay: section's relays. They begin at once: nothing of a room's log may be let go of before they
// have said what they need.
func (s *Server) openRelays(ctx context.Context, reg prometheus.Registerer) error {
	if len(s.cfg.Relay) == 0 {
		return nil
	}
	dead, closer, err := s.engine.openDeadLetters(s)
	if err != nil {
		return err
	}
	s.relays = &carriers{dead: closer}
	s.relays.Relays, err = relays.Open(ctx, relays.Options{
		Relays: s.cfg.Relay, Egress: s.cfg.Egress.Allow, Logger: s.log, Stdout: os.Stdout,
		Log: s.engine.rooms, Rooms: s.rooms, Dead: dead, Leases: s.engine.leases(s),
	})
	if err != nil {
		return err
	}
	reg.MustRegister(s.relays)
	s.relays.Run()
	return nil
}

func (c *carriers) close() error {
	if c == nil {
		return nil
	}
	var err error
	if c.Relays != nil {
		err = c.Relays.Close()
	}
	if c.dead != nil {
		if cerr := c.dead.Close(); err == nil {
			err = cerr
		}
	}
	return err
}

func (e *engine) openDeadLetters(s *Server) (relay.DeadLetters, io.Closer, error) {
	if e.redis.client != nil {
		return redis.NewDeadLetters(e.redis.client), nil, nil
	}
	d, err := memory.OpenDeadLetters(s.cfg.Engine.Dir, memory.DeadLetterOptions{Logger: s.log, NoSync: s.cfg.Engine.Durability == "none"})
	return d, d, err
}

// leases opens spaces of leases that all nodes of this engine share.
func (e *engine) leases(s *Server) func(context.Context, string) (lease.Store, io.Closer, error) {
	return func(_ context.Context, space string) (lease.Store, io.Closer, error) {
		if e.redis.client != nil {
			l, err := redis.NewLeases(e.redis.client, space)
			return l, nil, err
		}
		l, err := memory.OpenLeases(s.cfg.Engine.Dir, space, memory.LeaseOptions{Logger: s.log, NoSync: s.cfg.Engine.Durability == "none"})
		return l, l, err
	}
}
