package svc

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ushergo/usher/gate"
)

// GateMetrics are the figures of one or more gates for Prometheus. It is a gate.Observer; Watch adds a gate, once it is
// made, to the gauges. Safe for concurrent use.
// Keys are no labels: they are as many as there are rows.
type GateMetrics struct {
	wait      *prometheus.HistogramVec
	expired   prometheus.Counter
	reclaimed prometheus.Counter

	mu    sync.Mutex
	gates []Stater
}

// Stater has the figures of a gate, as *gate.Gate, or the sum of several.
type Stater interface{ Stats() gate.Stats }

var _ gate.Observer = (*GateMetrics)(nil)

// NewGateMetrics registers them.
func NewGateMetrics(reg prometheus.Registerer) *GateMetrics {
	m := &GateMetrics{
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "usher_gate_wait_seconds", Help: "Time from an acquire to its answer, by outcome.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60},
		}, []string{"outcome"}),
		expired:   prometheus.NewCounter(prometheus.CounterOpts{Name: "usher_gate_expired_total", Help: "Releases that came after the lease had ended: permits that expired while held."}),
		reclaimed: prometheus.NewCounter(prometheus.CounterOpts{Name: "usher_gate_reclaimed_total", Help: "Permits taken back from crashed or late holders."}),
	}
	reg.MustRegister(m.wait, m.expired, m.reclaimed,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "usher_gate_held", Help: "Permits granted by this node and held."},
			func() float64 { return float64(m.sum().Held) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "usher_gate_waiting", Help: "Acquires waiting on this node."},
			func() float64 { return float64(m.sum().Waiting) }),
	)
	return m
}

// Watch adds a gate to the gauges held and waiting.
func (m *GateMetrics) Watch(g Stater) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gates = append(m.gates, g)
}

func (m *GateMetrics) sum() (all gate.Stats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range m.gates {
		s := g.Stats()
		all.Held += s.Held
		all.Waiting += s.Waiting
	}
	return all
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
