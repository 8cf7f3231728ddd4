package web

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// statusWriter remembers what was answered.
type statusWriter struct {
	http.ResponseWriter
	start  time.Time
	status int
	within time.Duration // in which each piece must be taken; 0: the answer has a time as a whole
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if w.within > 0 {
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.within))
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush is for those who ask for an http.Flusher. What has left needs no deadline: the next piece of a stream may be
// hours away, and HTTP/2 would end the stream for one that passes.
func (w *statusWriter) Flush() {
	rc := http.NewResponseController(w.ResponseWriter)
	_ = rc.Flush()
	if w.within > 0 {
		_ = rc.SetWriteDeadline(time.Time{})
	}
}

// routeStat are a route's histograms by class of status: found once, not at each request.
type routeStat [6]prometheus.Observer

// begin starts to time and trace a request. Only a trusted proxy may say which trace it belongs to: a stranger could
// have everything of hers sampled, and write into a trace that is not hers.
func (s *Server) begin(rt *route, w http.ResponseWriter, r *http.Request, c *client) (*statusWriter, *http.Request, trace.Span) {
	sw := &statusWriter{ResponseWriter: w, start: time.Now()}
	if s.opts.Tracer == nil {
		return sw, r, nil
	}
	ctx := r.Context()
	if c.trusted {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
	}
	ctx, span := s.opts.Tracer.Start(ctx, r.Method+" "+rt.path, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("http.request.method", r.Method), attribute.String("http.route", rt.path)))
	return sw, r.WithContext(ctx), span
}

func (s *Server) end(rt *route, w *statusWriter, span trace.Span) {
	class := w.status / 100
	if class < 1 || class > 5 {
		class = 2 // an empty 200
	}
	if o := rt.stat[class]; o != nil {
		o.Observe(time.Since(w.start).Seconds())
	}
	if span != nil {
		span.SetAttributes(attribute.Int("http.response.status_code", w.status))
		if class == 5 {
			span.SetStatus(codes.Error, http.StatusText(w.status))
		}
		span.End()
	}
}
