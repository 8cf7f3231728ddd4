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
	descInsts    = prometheus.NewDesc("usher_room_instances", "Living instances that the limit goes by; absent without capacity.per_instance.", []string{"room"}, nil)
	descAdmitted = prometheus.NewDesc("usher_room_admitted_total", "Tickets ever admitted.", []string{"room"}, nil)
	descIssued   = prometheus.NewDesc("usher_room_tickets_issued_total", "Tickets ever issued: the last seq.", []string{"room"}, nil)
	descState    = prometheus.NewDesc("usher_room_state", "1 for the state that the room is in: open, paused, closed, not_open or prequeue.", []string{"room", "state"}, nil)
	descRevision = prometheus.NewDesc("usher_room_revision", "Revision of the room's configuration.", []string{"room"}, nil)
	descStreams  = prometheus.NewDesc("usher_http_event_streams", "Event streams open on this node.", nil, nil)
	descPushed   = prometheus.NewDesc("usher_push_connections", "Connections by which visitors are told, by transport: ws, sse, poll.", []string{"transport"}, nil)
	descSlow     = prometheus.NewDesc("usher_push_slow_connections", "Connections that are being waited for, since they did not take at once what was written.", nil, nil)
	descSlowed   = prometheus.NewDesc("usher_push_slow_total", "Writes that a peer did not take at once.", nil, nil)
	descClosed   = prometheus.NewDesc("usher_push_closed_total", "Connections closed, by code (docs/push.md); 1000 is also whoever went away.", []string{"code"}, nil)
	descFrames   = prometheus.NewDesc("usher_push_frames_total", "Writes to connections, each of which may hold several messages.", nil, nil)
	descBytes    = prometheus.NewDesc("usher_push_bytes_total", "Bytes written to connections.", nil, nil)
	descResets   = prometheus.NewDesc("usher_push_resets_total", "Returns from a cursor that nobody remembers: started again from what is true.", nil, nil)
	descCost     = prometheus.NewDesc("usher_push_frame_seconds", "What one write costs lately, in time of the goroutine that writes.", nil, nil)
	descPace     = prometheus.NewDesc("usher_push_pace", "0: everything at its own beat; 1: stats ride with places; 2: places by how near the turn is.", nil, nil)
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
	for _, d := range []*prometheus.Desc{descWaiting, descActive, descLimit, descInsts, descAdmitted, descIssued, descState, descRevision, descStreams, descPushed, descSlow, descSlowed,
		descClosed, descFrames, descBytes, descResets, descCost, descPace, descEngine, descDraining, descBuild} {
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
		if sum.Config.Capacity.PerInstance > 0 {
			gauge(descInsts, float64(sum.Instances), id)
		}
		gauge(descRevision, float64(sum.Revision), id)
		now := room.EffectiveState(sum.State, sum.Phase)
		for _, st := range []string{"open", "paused", "closed", "not_open", "prequeue"} {
			gauge(descState, float64(oneIf(st == now)), id, st)
		}
		ch <- prometheus.MustNewConstMetric(descAdmitted, prometheus.CounterValue, float64(sum.AdmittedTotal), id)
		ch <- prometheus.MustNewConstMetric(descIssued, prometheus.CounterValue, float64(sum.LastSeq), id)
	}
	m.pushed(ch, gauge)
	gauge(descEngine, float64(oneIf(m.s.opts.Rooms.Health() == nil)))
	gauge(descDraining, float64(oneIf(m.s.isDraining())))
	gauge(descBuild, 1, m.s.opts.Version, m.s.opts.NodeID)
}

// pushed tells of the hub.
func (m *httpMetrics) pushed(ch chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string)) {
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	f := m.s.streams.hub.Figures()
	gauge(descStreams, float64(f.Conns))
	for _, name := range []string{"ws", "sse", "poll"} {
		gauge(descPushed, float64(f.Transports[name]), name)
	}
	for code, n := range f.Closed {
		count(descClosed, n, strconv.Itoa(int(code)))
	}
	gauge(descSlow, float64(f.Slow))
	count(descSlowed, f.Slowed)
	count(descFrames, f.Frames)
	count(descBytes, f.Bytes)
	count(descResets, f.Reset)
	gauge(descCost, f.FrameCost.Seconds())
	gauge(descPace, float64(f.Level))
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}
