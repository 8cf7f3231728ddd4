package server

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/instances"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/web"
)

func (s *Server) openRooms(ctx context.Context, observer *web.Observer, registry *prometheus.Registry) error {
	began := time.Now()
	s.pods = newPods(s.log)
	counts := newCounts(instances.Static(1), s.pods, s.log)
	options := room.Options{Logger: s.log, Observer: observer}
	if nodes := s.engine.nodes; nodes != nil {
		counts = newCounts(nodes, s.pods, s.log)
		options.Leads, options.Discover = nodes.Owns, 2*time.Second
	}
	options.Instances = counts.count
	registry.MustRegister(counts)
	var err error
	if s.rooms, err = room.Open(ctx, s.engine.rooms, options); err != nil {
		return err
	}
	for i := range s.cfg.Rooms {
		if err := s.applyRoom(ctx, &s.cfg.Rooms[i]); err != nil {
			return err
		}
	}
	s.log.Debug("rooms are ready", "rooms", len(s.rooms.List()), "took", time.Since(began))
	return nil
}

// applyRoom makes the room as the file says, if the file says something new.
func (s *Server) applyRoom(ctx context.Context, r *config.Room) error {
	if err := s.leadsBack(r.Origin); err != nil {
		return fmt.Errorf("room %s: %w", r.ID, err)
	}
	wanted := r.RoomConfig()
	if err := s.pods.check(wanted.Instances); err != nil {
		return fmt.Errorf("room %s: %w", r.ID, err)
	}
	applied, err := s.rooms.ApplyFile(ctx, wanted)
	if err != nil {
		return fmt.Errorf("room %s: %w", r.ID, err)
	}
	s.warnStands(wanted, applied)
	return nil
}
