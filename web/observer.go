package web

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/ushergo/usher/room"
)

// Observer turns what rooms do into metrics and traces. Give the same one to room.Open and to New. Safe for
// concurrent use.
type Observer struct {
	tracer   trace.Tracer
	commands [len(opNames)]prometheus.Observer
	sync     prometheus.Histogram
	failures *prometheus.CounterVec
	events   *prometheus.CounterVec
	ended    *prometheus.CounterVec
	etaError *prometheus.HistogramVec
	etaHits  *prometheus.CounterVec

	mu    sync.Mutex
	rooms map[string]*stays
}

var _ room.Observer = (*Observer)(nil)

// opNames are the values of the label op.
var opNames = [...]string{"tick", "enter", "status", "heard", "claim", "renew", "leave", "configure", "state", "instances"}

// NewObserver makes an Observer whose metrics are registered in reg. tracer nil: no traces.
func NewObserver(reg prometheus.Registerer, tracer trace.Tracer) *Observer {
	durations := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	o := &Observer{
		tracer: tracer,
		sync: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "usher_engine_sync_duration_seconds",
			Help:    "Time an answer waited for the log to be durable.",
			Buckets: durations}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "usher_engine_failures_total",
			Help: "Commands that the engine could not answer, by op and outcome (unavailable: nothing was done; unknown: it may have been done)."},
			[]string{"op", "outcome"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "usher_room_events_total",
			Help: "Events of the room's log that this node has seen, by type."}, []string{"room", "type"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "usher_room_ended_total",
			Help: "Tickets that ended, by reason and by what they were before (waiting or admitted)."}, []string{"room", "from", "reason"}),
		etaError: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "usher_eta_error_ratio",
			Help:    "How far the first wait told to a visitor was from the actual one: |actual - middle of the range| / middle of the range.",
			Buckets: []float64{.05, .1, .2, .3, .5, .75, 1, 2, 5}}, []string{"room"}),
		etaHits: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "usher_eta_predictions_total",
			Help: "Waits that were told and came to pass: within the range, earlier or later."}, []string{"room", "outcome"}),
		rooms: map[string]*stays{},
	}
	commands := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "usher_engine_command_duration_seconds",
		Help:    "Time from handing a command to the engine to its durable answer, by op.",
		Buckets: durations}, []string{"op"})
	for i, name := range opNames {
		o.commands[i] = commands.WithLabelValues(name)
	}
	reg.MustRegister(commands, o.sync, o.failures, o.events, o.ended, o.etaError, o.etaHits)
	return o
}

// Begin implements room.Observer.
func (o *Observer) Begin(ctx context.Context, id string, op room.Op) (context.Context, func(room.Result, error)) {
	start := time.Now()
	name, seconds := "other", prometheus.Observer(nil)
	if int(op) < len(opNames) {
		name, seconds = opNames[op], o.commands[op]
	}
	var span trace.Span
	if o.tracer != nil {
		ctx, span = o.tracer.Start(ctx, "engine "+name, trace.WithAttributes(attribute.String("usher.room", id), attribute.String("usher.op", name)))
	}
	return ctx, func(res room.Result, err error) {
		if seconds != nil {
			seconds.Observe(time.Since(start).Seconds())
		}
		if err != nil {
			o.failures.WithLabelValues(name, outcome(err)).Inc()
		}
		if span != nil {
			endSpan(span, res, err)
		}
	}
}

// OnSync times and traces an answer's wait for the log to be durable; it fits engine/memory's option of that name.
func (o *Observer) OnSync(ctx context.Context, id string) func(error) {
	start := time.Now()
	var span trace.Span
	if o.tracer != nil {
		_, span = o.tracer.Start(ctx, "log sync", trace.WithAttributes(attribute.String("usher.room", id)))
	}
	return func(err error) {
		o.sync.Observe(time.Since(start).Seconds())
		if span != nil {
			if err != nil {
				span.RecordError(err)
				span.SetStatus(codes.Error, outcome(err))
			}
			span.End()
		}
	}
}

// endSpan closes the engine's span with what the command did.
func endSpan(span trace.Span, res room.Result, err error) {
	switch {
	case err != nil:
		span.RecordError(err)
		span.SetStatus(codes.Error, outcome(err))
	case res.Err != nil:
		span.SetAttributes(attribute.String("usher.answer", res.Err.Error()))
	case res.View.Seq != 0:
		span.SetAttributes(attribute.String("usher.ticket_id", res.View.ID.String()), attribute.String("usher.state", res.View.State.String()))
	}
	if err == nil {
		span.SetAttributes(attribute.String("usher.log.cursor", res.Cursor.String()))
	}
	span.End()
}

func outcome(err error) string {
	switch {
	case errors.Is(err, room.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, room.ErrNotFound):
		return "not_found"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return "unknown"
}

// Events implements room.Observer.
func (o *Observer) Events(id string, events []room.Event) {
	st := o.stays(id)
	st.mu.Lock()
	for i := range events {
		st.see(&events[i])
	}
	st.mu.Unlock()
	for i := range events {
		e := &events[i]
		o.events.WithLabelValues(id, e.Type.String()).Inc()
		if e.Type == room.Left || e.Type == room.Expired || e.Type == room.Abandoned {
			from := "waiting"
			if e.WasActive {
				from = "admitted"
			}
			o.ended.WithLabelValues(id, from, e.Reason.String()).Inc()
		}
	}
}

// ETA implements room.Observer.
func (o *Observer) ETA(id string, predicted room.ETA, actual time.Duration) {
	mid := math.Max(float64(predicted.LowS+predicted.HighS)/2, 1)
	o.etaError.WithLabelValues(id).Observe(math.Abs(actual.Seconds()-mid) / mid)
	switch {
	case actual.Seconds() < float64(predicted.LowS):
		o.etaHits.WithLabelValues(id, "earlier").Inc()
	case actual.Seconds() > float64(predicted.HighS)+1: // the range is in whole seconds
		o.etaHits.WithLabelValues(id, "later").Inc()
	default:
		o.etaHits.WithLabelValues(id, "within").Inc()
	}
}

// stays measures how long admitted visitors stay in one room.
type stays struct {
	mu      sync.Mutex
	since   map[room.ID]int64 // decision time of the admission, µs
	mean    float64           // seconds, weighted towards recent ends
	count   uint64
	entered uint64
	out     uint64 // waiters who left or were abandoned
}

// maxStays bounds the memory for a room in which everybody passes.
const maxStays = 200_000

func (o *Observer) stays(id string) *stays {
	o.mu.Lock()
	defer o.mu.Unlock()
	st := o.rooms[id]
	if st == nil {
		st = &stays{since: map[room.ID]int64{}}
		o.rooms[id] = st
	}
	return st
}

// see is called with mu held.
func (st *stays) see(e *room.Event) {
	switch e.Type {
	case room.Entered:
		st.entered++
	case room.Admitted:
		if len(st.since) < maxStays {
			st.since[e.ID] = e.At
		}
	case room.Left, room.Expired, room.Abandoned:
		if !e.WasActive {
			st.out++
			return
		}
		at, ok := st.since[e.ID]
		if !ok {
			return // admitted before this process began
		}
		delete(st.since, e.ID)
		st.count++
		stay := float64(e.At-at) / 1e6
		st.mean += (stay - st.mean) / float64(min(st.count, 200))
	}
}

// forget drops what is kept of a room that has been deleted, and its series.
func (o *Observer) forget(id string) {
	o.mu.Lock()
	delete(o.rooms, id)
	o.mu.Unlock()
	of := prometheus.Labels{"room": id}
	o.events.DeletePartialMatch(of)
	o.ended.DeletePartialMatch(of)
	o.etaError.DeletePartialMatch(of)
	o.etaHits.DeletePartialMatch(of)
}

// stay is the measured mean stay in seconds; ok is false before anybody has left.
func (o *Observer) stay(id string) (seconds float64, ok bool) {
	st := o.stays(id)
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.mean, st.count > 0
}

// flows are the numbers of tickets issued, and of waiters who gave up, since the process began.
func (o *Observer) flows(id string) (entered, out uint64) {
	st := o.stays(id)
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.entered, st.out
}
