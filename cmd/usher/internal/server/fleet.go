package server

import (
	"context"
	"time"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/web"
)

// describe is what the other nodes are told of this one.
func (s *Server) describe() redis.Node {
	node := redis.Node{ID: s.node, Version: s.version, StartedAt: s.start.UTC(), Draining: s.leaving.Load()}
	if front := s.shown.Load(); front != nil {
		self := front.Self()
		node.Draining, node.Ready, node.Streams = node.Draining || self.Draining, self.Ready, self.Streams
	}
	return node
}

// drainAsked is called when another node's admin API asks this one to drain.
func (s *Server) drainAsked() {
	s.leaving.Store(true)
	if front := s.shown.Load(); front != nil {
		front.DrainSoon()
	}
}

// fleet shows the nodes to the admin API.
type fleet struct{ nodes *redis.Nodes }

// Nodes implements web.Fleet.
func (f fleet) Nodes(ctx context.Context) ([]web.Node, error) {
	list, err := f.nodes.List(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]web.Node, 0, len(list))
	for _, n := range list {
		out = append(out, web.Node{
			ID: n.ID, Self: n.Self, Version: n.Version, StartedAt: n.StartedAt.Format(time.RFC3339), Alive: n.Alive(),
			HeardMS: n.Age.Milliseconds(), Draining: n.Draining, Ready: n.Ready && n.Alive(), Streams: n.Streams,
		})
	}
	return out, nil
}

// Drain implements web.Fleet.
func (f fleet) Drain(ctx context.Context, id string) (bool, error) { return f.nodes.Drain(ctx, id) }
