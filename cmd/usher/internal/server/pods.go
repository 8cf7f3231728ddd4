package server

import (
	"context"
	"log/slog"
	"sync"

	"github.com/ushergo/usher/instances"
	"github.com/ushergo/usher/instances/kubernetes"
	"github.com/ushergo/usher/room"
)

// pods counts for rooms with instances.source kubernetes. The API server is looked for when the first such room is
// there: from the file at the start, which then fails where usher is in no cluster, or later by the admin API.
type pods struct {
	log *slog.Logger

	mu       sync.Mutex
	closed   bool
	cluster  *kubernetes.Cluster
	counters map[podSet]*instances.Counter
}

// podSet is what rooms have to agree in to be counted together.
type podSet struct{ namespace, selector string }

func newPods(log *slog.Logger) *pods {
	return &pods{log: log, counters: map[podSet]*instances.Counter{}}
}

// check says what is wrong with a room's source, without asking the API server.
func (p *pods) check(in room.Instances) error {
	if in.Source != "kubernetes" {
		return nil
	}
	_, err := p.counter(podSet{in.Namespace, in.Selector})
	return err
}

// count is never an error: what cannot be counted is held, or falls back.
func (p *pods) count(ctx context.Context, in room.Instances) instances.Reading {
	c, err := p.counter(podSet{in.Namespace, in.Selector})
	if err != nil {
		c = instances.NewCounter(instances.Func(func(context.Context) (int64, error) { return 0, err }))
	}
	return c.Count(ctx, in.Fallback)
}

func (p *pods) counter(set podSet) (*instances.Counter, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.counters[set]; c != nil {
		return c, nil
	}
	if p.cluster == nil {
		cluster, err := kubernetes.Open(kubernetes.Options{Logger: p.log})
		if err != nil {
			return nil, err
		}
		if p.closed {
			cluster.Close()
		}
		p.cluster = cluster
	}
	source, err := p.cluster.Pods(set.namespace, set.selector)
	if err != nil {
		return nil, err
	}
	c := instances.NewCounter(source)
	p.counters[set] = c
	return c, nil
}

func (p *pods) close() {
	p.mu.Lock()
	p.closed = true
	cluster := p.cluster
	p.mu.Unlock()
	if cluster != nil {
		cluster.Close()
	}
}
