package routes

import "github.com/prometheus/client_golang/prometheus"

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("usher_route_"+name, help, []string{"route"}, nil)
}

// Describe implements prometheus.Collector; what there is depends on the routes.
func (r *Routes) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (r *Routes) Collect(out chan<- prometheus.Metric) {
	for id, s := range r.Stats() {
		for _, m := range []struct {
			name, help string
			kind       prometheus.ValueType
			v          float64
		}{
			{"requests_total", "Requests brought to instances.", prometheus.CounterValue, float64(s.Requests)},
			{"resent_total", "Requests sent a second time, after a 421 or without a connection.", prometheus.CounterValue, float64(s.Resent)},
			{"not_owner_total", "Answers 421 of instances that did not have the session.", prometheus.CounterValue, float64(s.NotOwner)},
			{"evicted_total", "Rows of dead owners that were evicted.", prometheus.CounterValue, float64(s.Evicted)},
			{"placed_total", "Requests that asked an instance to build a session.", prometheus.CounterValue, float64(s.Placed)},
			{"refused_total", "Requests that nobody could serve.", prometheus.CounterValue, float64(s.Refused)},
			{"instances", "Instances known to live.", prometheus.GaugeValue, float64(s.Instances)},
		} {
			out <- prometheus.MustNewConstMetric(desc(m.name, m.help), m.kind, m.v, id)
		}
	}
}
