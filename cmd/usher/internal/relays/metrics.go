package relays

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ushergo/usher/relay"
)

// metrics tell of relays. It is a prometheus.Collector, and makes an Observer for each relay.
type metrics struct {
	taken, failed, buried, gaps, lost, expired *prometheus.CounterVec
	took                                       *prometheus.HistogramVec
	relays                                     []*running

	lag, window, alarm, dead, deadBytes, deadAge *prometheus.Desc
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "usher_relay_" + name, Help: help}, append([]string{"relay"}, labels...))
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("usher_relay_"+name, help, append([]string{"relay"}, labels...), nil)
	}
	return &metrics{
		taken:   counter("events_total", "Events that the sink has taken, or that a handler dropped."),
		failed:  counter("failures_total", "Attempts that failed, by class.", "class"),
		buried:  counter("dead_letters_total", "Events that went to the dead letters."),
		gaps:    counter("gaps_total", "Gaps: events that the source no longer had."),
		lost:    counter("gap_events_total", "Events lost in gaps, as far as they could be counted."),
		expired: counter("dead_letters_expired_total", "Dead letters that were forgotten because of their age."),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "usher_relay_seconds", Help: "From an event to the sink's acknowledgement.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
		}, []string{"relay"}),
		lag:       desc("lag_seconds", "Age of the oldest event that was read and is not done; 0: none waits.", "partition"),
		window:    desc("window_events", "Events that were read and are not done.", "partition"),
		alarm:     desc("alarm", "1 while a partition does not move and somebody should look: dead_letters_full, gap, denied, stalled, source; or dead_letters.", "partition", "alarm"),
		dead:      desc("dead_letters", "Dead letters that wait."),
		deadBytes: desc("dead_letters_bytes", "Their bytes."),
		deadAge:   desc("dead_letters_oldest_seconds", "Age of the oldest dead letter; 0: there is none."),
	}
}

func (m *metrics) vectors() []prometheus.Collector {
	return []prometheus.Collector{m.taken, m.failed, m.buried, m.gaps, m.lost, m.expired, m.took}
}

// Describe implements prometheus.Collector.
func (rs *Relays) Describe(ch chan<- *prometheus.Desc) {
	m := rs.metrics
	for _, c := range m.vectors() {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{m.lag, m.window, m.alarm, m.dead, m.deadBytes, m.deadAge} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (rs *Relays) Collect(ch chan<- prometheus.Metric) {
	m := rs.metrics
	for _, c := range m.vectors() {
		c.Collect(ch)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), statusWait)
	defer cancel()
	for _, r := range m.relays {
		for _, l := range r.Lanes() {
			gauge(m.lag, l.Lag.Seconds(), r.ID(), l.Partition)
			gauge(m.window, float64(l.Window), r.ID(), l.Partition)
			if l.Alarm != "" {
				gauge(m.alarm, 1, r.ID(), l.Partition, l.Alarm)
			}
		}
		s, err := r.Letters().Stats(ctx, r.ID())
		if err != nil {
			continue // the engine's own figures tell that it does not answer
		}
		age := 0.0
		if !s.Oldest.IsZero() {
			age = time.Since(s.Oldest).Seconds()
		}
		gauge(m.dead, float64(s.Letters), r.ID())
		gauge(m.deadBytes, float64(s.Bytes), r.ID())
		gauge(m.deadAge, age, r.ID())
		if age > 300 {
			gauge(m.alarm, 1, r.ID(), "", relay.AlarmDead)
		}
	}
}

// of makes the observer of one relay.
func (m *metrics) of(id string) relay.Observer {
	for _, c := range []*prometheus.CounterVec{m.taken, m.buried, m.gaps, m.lost, m.expired} {
		c.WithLabelValues(id) // so that a zero is there to compare with
	}
	return &observer{m: m, id: id, taken: m.taken.WithLabelValues(id), took: m.took.WithLabelValues(id)}
}

type observer struct {
	m     *metrics
	id    string
	taken prometheus.Counter
	took  prometheus.Observer
}

func (o *observer) Taken(_ *relay.Event, after time.Duration) {
	o.taken.Inc()
	o.took.Observe(max(after, 0).Seconds())
}

func (o *observer) Failed(_ *relay.Event, c relay.Class) {
	o.m.failed.WithLabelValues(o.id, c.String()).Inc()
}

func (o *observer) Buried(*relay.Event) { o.m.buried.WithLabelValues(o.id).Inc() }

func (o *observer) Gap(g *relay.GapError) {
	o.m.gaps.WithLabelValues(o.id).Inc()
	o.m.lost.WithLabelValues(o.id).Add(float64(g.Lost))
}

func (o *observer) Expired(n int) { o.m.expired.WithLabelValues(o.id).Add(float64(n)) }
