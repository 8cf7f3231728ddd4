package svc

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ushergo/usher/gate"
)

// GateMetrics are a gate's figures for Prometheus. It is a gate.Observer; Watch adds the gauges once the gate is made.
// Keys are no labels: they are as many as there are rows.
type GateMetrics struct {
	reg       prometheus.Registerer
	wait      *prometheus.HistogramVec
	expired   prometheus.Counter
	reclaimed prometheus.Counter
}

var _ gate.Observer = (*GateMetrics)(nil)

// NewGateMetrics registers them.
func NewGateMetrics(reg prometheus.Registerer) *GateMetrics {
	m := &GateMetrics{
		reg: reg,
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "usher_gate_wait_seconds", Help: "Time from an acquire to its answer, by outcome.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60},
		}, []string{"outcome"}),
		expired:   prometheus.NewCounter(prometheus.CounterOpts{Name: "usher_gate_expired_total", Help: "Releases that came after the lease had ended: permits that expired while held."}),
		reclaimed: prometheus.NewCounter(prometheus.CounterOpts{Name: "usher_gate_reclaimed_total", Help: "Permits taken back from crashed or late holders."}),
	}
	reg.MustRegister(m.wait, m.expired, m.reclaimed)
	return m
}

// Watch adds the gauges held and waiting of this node's gate.
func (m *GateMetrics) Watch(g *gate.Gate) {
	m.reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "usher_gate_held", Help: "Permits granted by this node and held."}, func() float64 { return float64(g.Stats().Held) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "usher_gate_waiting", Help: "Acquires waiting on this node."}, func() float64 { return float64(g.Stats().Waiting) }),
	)
}

// Acquired implements gate.Observer.
func (m *GateMetrics) Acquired(_ string, waited time.Duration, err error) {
	outcome := "error"
	switch {
	case err == nil:
		outcome = "granted"
	case errors.Is(err, gate.ErrFull):
		outcome = "full"
	case errors.Is(err, gate.ErrSettled):
		outcome = "settled"
	}
	m.wait.WithLabelValues(outcome).Observe(waited.Seconds())
}

// Released implements gate.Observer.
func (m *GateMetrics) Released(_ string, err error) {
	if errors.Is(err, gate.ErrExpired) {
		m.expired.Inc()
	}
}

// Reclaimed implements gate.Observer.
func (m *GateMetrics) Reclaimed(_ string, n int) { m.reclaimed.Add(float64(n)) }
