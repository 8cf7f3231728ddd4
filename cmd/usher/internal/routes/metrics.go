package routes

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ushergo/usher/affinity/affinitymetrics"
)

// Describe implements prometheus.Collector; what there is depends on the routes.
func (r *Routes) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (r *Routes) Collect(out chan<- prometheus.Metric) {
	for _, m := range r.now.Load().of {
		affinitymetrics.Gateway(m.conf.ID, m.g.Stats).Collect(out)
	}
}
