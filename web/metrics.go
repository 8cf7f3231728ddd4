package web

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/ushergo/usher/room"
)

// httpMetrics are those of the HTTP side. It is also the collector of what rooms are at the moment.
type httpMetrics struct {
	s        *Server
	duration *prometheus.HistogramVec
	limited  *prometheus.CounterVec
}

var (
	descWaiting  = prometheus.NewDesc("usher_room_waiting", "Living waiters.", []string{"room"}, nil)
	descActive   = prometheus.NewDesc("usher_room_active", "Admitted tickets whose session has not ended.", []string{"room"}, nil)
	descLimit    = prometheus.NewDesc("usher_room_limit", "Sessions allowed at one moment; absent where there is no limit.", []string{"room"}, nil)
	descAdmitted = prometheus.NewDesc("usher_room_admitted_total", "Tickets ever admitted.", []string{"room"}, nil)
	descIssued   = prometheus.NewDesc("usher_room_tickets_issued_total", "Tickets ever issued: the last seq.", []string{"room"}, nil)
	descState    = prometheus.NewDesc("usher_room_state", "1 for the state that the room is in: open, paused, closed, not_open or prequeue.", []string{"room", "state"}, nil)
	descRevision = prometheus.NewDesc("usher_room_revision", "Revision of the room's configuration.", []string{"room"}, nil)
	descStreams  = prometheus.NewDesc("usher_http_event_streams", "Event streams open on this node.", nil, nil)
	descEngine   = prometheus.NewDesc("usher_engine_up", "1 while the engine takes commands.", nil, nil)
	descDraining = prometheus.NewDesc("usher_node_draining", "1 while this node is being stopped.", nil, nil)
	descBuild    = prometheus.NewDesc("usher_build_info", "Always 1; the labels say what runs.", []string{"version", "node"}, nil)
)

func newHTTPMetrics(s *Server) (*httpMetrics, error) {
	m := &httpMetrics{
		s: s,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "usher_http_request_duration_seconds",
			Help:    "Time to answer a request, by listener, method, route and class of status. Event streams are not timed.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}}, []string{"listener", "method", "route", "code"}),
		limited: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "usher_http_enter_limited_total",
			Help: "Enters refused because one address asked for too many new tickets."}, []string{"room"}),
	}
	reg := s.opts.Registry
	for _, c := range []prometheus.Collector{m.duration, m.limited, m} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		var already prometheus.AlreadyRegisteredError
		if err := reg.Register(c); err != nil && !errors.As(err, &already) {
			return nil, err
		}
	}
	return m, nil
}

// time gives each route its histograms.
func (m *httpMetrics) time(listener string, routes ...*route) {
	for _, rt := range routes {
		if rt.stream {
			continue
		}
		for class := 1; class <= 5; class++ {
			rt.stat[class] = m.duration.WithLabelValues(listener, rt.method, rt.path, strconv.Itoa(class)+"xx")
		}
	}
}

// Describe implements prometheus.Collector.
func (m *httpMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descWaiting, descActive, descLimit, descAdmitted, descIssued, descState, descRevision, descStreams, descEngine, descDraining, descBuild} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *httpMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, rm := range m.s.opts.Rooms.List() {
		id, sum := rm.ID(), rm.Summary()
		gauge(descWaiting, float64(sum.Waiting), id)
		gauge(descActive, float64(sum.Active), id)
		if sum.Limit != room.Unlimited {
			gauge(descLimit, float64(sum.Limit), id)
		}
		gauge(descRevision, float64(sum.Revision), id)
		now := room.EffectiveState(sum.State, sum.Phase)
		for _, st := range []string{"open", "paused", "closed", "not_open", "prequeue"} {
			gauge(descState, float64(oneIf(st == now)), id, st)
		}
		ch <- prometheus.MustNewConstMetric(descAdmitted, prometheus.CounterValue, float64(sum.AdmittedTotal), id)
		ch <- prometheus.MustNewConstMetric(descIssued, prometheus.CounterValue, float64(sum.LastSeq), id)
	}
	gauge(descStreams, float64(m.s.streams.count()))
	gauge(descEngine, float64(oneIf(m.s.opts.Rooms.Health() == nil)))
	gauge(descDraining, float64(oneIf(m.s.isDraining())))
	gauge(descBuild, 1, m.s.opts.Version, m.s.opts.NodeID)
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}
