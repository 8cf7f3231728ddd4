package web_test

import (
	"context"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/ushergo/usher/web"
)

// One trace leads from the visitor's click through the engine to the log, and says nothing secret.
func TestTraceFromEnterToLog(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	s := build(t, func(o *web.Options) { o.Tracer = provider.Tracer("usher") }, config("premiere", 1))
	exporter.Reset()
	const remote = "4bf92f3577b34da6a3ce929d0e0e4736"
	r := s.do("POST", "/v1/rooms/premiere/enter", `{"request_id":"`+requestID+`"}`, "Traceparent", "00-"+remote+"-00f067aa0ba902b7-01")
	r.is(t, 200, "")
	secret := r.secret(t)
	var spans tracetest.SpanStubs
	eventually(t, "the spans are exported", func() bool {
		spans = spans[:0]
		for _, span := range exporter.GetSpans() {
			if span.SpanContext.TraceID().String() == remote {
				spans = append(spans, span)
			}
		}
		return len(spans) == 3
	})
	byName := map[string]tracetest.SpanStub{}
	for _, span := range spans {
		byName[span.Name] = span
		for _, a := range span.Attributes {
			if v := a.Value.String(); strings.Contains(v, secret) || strings.Contains(v, requestID) || strings.HasPrefix(v, "eyJ") {
				t.Errorf("%s: a secret in %s", span.Name, a.Key)
			}
		}
	}
	http, engine, log := byName["POST /v1/rooms/{room}/enter"], byName["engine enter"], byName["log sync"]
	if http.Parent.SpanID().String() != "00f067aa0ba902b7" || engine.Parent.SpanID() != http.SpanContext.SpanID() || log.Parent.SpanID() != engine.SpanContext.SpanID() {
		t.Errorf("%+v", spans)
	}
	attributes := map[string]string{}
	for _, span := range spans {
		for _, a := range span.Attributes {
			attributes[string(a.Key)] = a.Value.String()
		}
	}
	for k, want := range map[string]string{"http.response.status_code": "200", "usher.room": "premiere", "usher.op": "enter", "usher.ticket_id": r.doc(t)["ticket_id"].(string)} {
		if attributes[k] != want {
			t.Errorf("%s is %q, want %q", k, attributes[k], want)
		}
	}
	if attributes["usher.log.cursor"] == "" {
		t.Error("the trace does not lead into the log")
	}
	// A refusal is traced too.
	exporter.Reset()
	s.do("GET", "/v1/rooms/premiere/nothing", "").is(t, 404, "not_found")
	eventually(t, "the refusal is exported", func() bool {
		for _, span := range exporter.GetSpans() {
			if span.Name == "GET other" {
				return true
			}
		}
		return false
	})
}

// A stranger neither names her trace nor decides that it is kept.
func TestStrangersNameNoTraces(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	s := build(t, func(o *web.Options) { o.Tracer, o.TrustedProxies = provider.Tracer("usher"), nil }, config("premiere", 1))
	exporter.Reset()
	s.do("POST", "/v1/rooms/premiere/enter", "", "Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").is(t, 200, "")
	s.do("GET", "/v1/rooms/premiere/now", "", "Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").is(t, 200, "")
	if spans := exporter.GetSpans(); len(spans) != 0 {
		t.Errorf("%d spans, the first is %s", len(spans), spans[0].Name)
	}
}
