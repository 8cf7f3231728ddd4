// Package affinitymetrics shows owners, their locks and gateways to Prometheus.
//
//	registry.MustRegister(affinitymetrics.Owner("browsers", owner), affinitymetrics.Gateway("browsers", gw.Stats))
//
// No key of a session is in a metric.
package affinitymetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/keylock"
)

// figure is one value.
type figure struct {
	name, help string
	kind       prometheus.ValueType
	label, is  string // besides the space's; "": none
	v          float64
}

// collector makes its figures when it is asked.
type collector struct {
	label, value string
	figures      func() []figure
}

// Describe implements prometheus.Collector.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range c.figures() {
		out <- c.desc(f)
	}
}

func (c collector) desc(f figure) *prometheus.Desc {
	labels := []string{}
	if f.label != "" {
		labels = append(labels, f.label)
	}
	return prometheus.NewDesc("usher_"+f.name, f.help, labels, prometheus.Labels{c.label: c.value})
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	for _, f := range c.figures() {
		var labels []string
		if f.label != "" {
			labels = append(labels, f.is)
		}
		out <- prometheus.MustNewConstMetric(c.desc(f), f.kind, f.v, labels...)
	}
}

func counter(name, help string, v uint64) figure {
	return figure{name: name, help: help, kind: prometheus.CounterValue, v: float64(v)}
}

func gauge(name, help string, v int) figure {
	return figure{name: name, help: help, kind: prometheus.GaugeValue, v: float64(v)}
}

func (f figure) with(label, is string) figure {
	f.label, f.is = label, is
	return f
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Source is an affinity.Owner.
type Source interface {
	Stats() affinity.Stats
	Locks() *keylock.Locks
}

// Owner shows an instance's sessions and their lock.
func Owner(space string, o Source) prometheus.Collector {
	return collector{"space", space, func() []figure {
		s := o.Stats()
		all := []figure{
			gauge("affinity_sessions", "Sessions that live here.", s.Sessions),
			gauge("affinity_building", "Sessions that are being built.", s.Building),
			gauge("affinity_draining", "1 while no new sessions are taken.", truth(s.Draining)),
			gauge("affinity_directory_up", "0 while the directory does not answer.", truth(!s.Away)),
			counter("affinity_builds_total", "Builds of sessions.", s.Built).with("result", "ok"),
			counter("affinity_builds_total", "Builds of sessions.", s.Failed).with("result", "failed"),
			counter("affinity_elsewhere_total", "Uses that were another instance's to serve (421).", s.Elsewhere),
		}
		for reason, n := range s.Ended {
			all = append(all, counter("affinity_ended_total", "Sessions that ended.", n).with("reason", reason))
		}
		return append(all, locks(o.Locks().Stats())...)
	}}
}

// Locks shows locks that belong to no owner.
func Locks(space string, l *keylock.Locks) prometheus.Collector {
	return collector{"space", space, func() []figure { return locks(l.Stats()) }}
}

func locks(s keylock.Stats) []figure {
	return []figure{
		gauge("keylock_held", "Keys that are held.", s.Held),
		gauge("keylock_waiting", "Callers that wait for a key.", s.Waiting),
		gauge("keylock_late", "Tasks that hang: their hold was ended by force, and they have not come back.", s.Late),
		counter("keylock_granted_total", "Holds.", s.Granted),
		counter("keylock_forced_total", "Holds that were ended by force. Each cost its session.", s.Forced),
		counter("keylock_refused_total", "Callers who did not get a key.", s.Full).with("reason", "full"),
		counter("keylock_refused_total", "Callers who did not get a key.", s.Expired).with("reason", "wait"),
	}
}

// Gateway shows what a gateway or a peer does. stats is its Stats.
func Gateway(route string, stats func() gateway.Stats) prometheus.Collector {
	return collector{"route", route, func() []figure {
		s := stats()
		return []figure{
			counter("route_requests_total", "Requests brought to instances.", s.Requests),
			counter("route_resent_total", "Requests sent a second time, after a 421 or without a connection.", s.Resent),
			counter("route_not_owner_total", "Answers 421 of instances that did not have the session.", s.NotOwner),
			counter("route_evicted_total", "Rows of dead owners that were evicted.", s.Evicted),
			counter("route_placed_total", "Requests that asked an instance to build a session.", s.Placed),
			counter("route_refused_total", "Requests that nobody could serve.", s.Refused),
			gauge("route_instances", "Instances known to live.", s.Instances),
			gauge("route_running", "Requests and sockets that hang on instances now.", s.Running),
			gauge("route_sessions", "Sessions that the instances have, as they announced.", s.Sessions),
		}
	}}
}
