package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	said map[string]saying // by room
}

// saying is what was logged last of a room, and when it was counted last.
type saying struct {
	state instances.State
	at    time.Time
}

func newCounts(nodes instances.Source, pods *pods, log *slog.Logger) *counts {
	return &counts{log: log, start: time.Now(), nodes: instances.NewCounter(nodes), pods: pods, said: map[string]saying{}}
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
	before := c.said[id].state
	c.said[id] = saying{r.State, time.Now()}
	c.mu.Unlock()
	switch {
	case before == r.State:
	case r.State == instances.Counted:
		c.log.Info("the room's instances are counted again", "room", id, "instances", r.Count)
	default:
		c.log.Error("the room's limit goes by another number than its living instances", "room", id, "state", r.State.String(), "err", r.Err)
	}
}

var descCounted = prometheus.NewDesc("usher_room_instances_state",
	"1 for where the count of living instances came from: counted, held or fallback. Told by the node that leads the room.", []string{"room", "state"}, nil)

// Describe implements prometheus.Collector.
func (c *counts) Describe(ch chan<- *prometheus.Desc) { ch <- descCounted }

// Collect implements prometheus.Collector.
func (c *counts) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, s := range c.said {
		if time.Since(s.at) > 10*time.Second { // deleted, or another node leads it
			continue
		}
		for _, state := range []instances.State{instances.Counted, instances.Held, instances.Fallback} {
			v := 0.0
			if state == s.state {
				v = 1
			}
			ch <- prometheus.MustNewConstMetric(descCounted, prometheus.GaugeValue, v, id, state.String())
		}
	}
}
