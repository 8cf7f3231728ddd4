package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ushergo/usher/instances"
	"github.com/ushergo/usher/room"
)

// settling is how long after the start a source that has never answered may stay silent before the fallback counts.
const settling = 10 * time.Second

// counts counts the living instances of each room, by the source it names.
type counts struct {
	log   *slog.Logger
	start time.Time
	nodes *instances.Counter
	pods  *pods

	mu   sync.Mutex
	said map[string]instances.State // by room, what was logged last
}

func newCounts(nodes instances.Source, pods *pods, log *slog.Logger) *counts {
	return &counts{log: log, start: time.Now(), nodes: instances.NewCounter(nodes), pods: pods, said: map[string]instances.State{}}
}

// count is room.Options.Instances.
func (c *counts) count(ctx context.Context, conf room.Config) (int64, bool) {
	var r instances.Reading
	switch conf.Instances.Source {
	case "static":
		return conf.Instances.Fallback, true
	case "kubernetes":
		r = c.pods.count(ctx, conf.Instances)
	default:
		r = c.nodes.Count(ctx, conf.Instances.Fallback)
	}
	if r.State == instances.Fallback && time.Since(c.start) < settling {
		return 0, false
	}
	c.tell(conf.ID, r)
	return r.Count, true
}

// tell logs a change of where a room's count comes from.
func (c *counts) tell(id string, r instances.Reading) {
	c.mu.Lock()
	before := c.said[id]
	c.said[id] = r.State
	c.mu.Unlock()
	switch {
	case before == r.State:
	case r.State == instances.Counted:
		c.log.Info("the room's instances are counted again", "room", id, "instances", r.Count)
	default:
		c.log.Error("the room's limit goes by another number than its living instances", "room", id, "state", r.State.String(), "err", r.Err)
	}
}
