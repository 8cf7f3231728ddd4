package server

import (
	"context"
	"fmt"
	"os"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const tracerName = "github.com/ushergo/usher"

// OTLP makes an exporter of traces, or nil when tracing is off: it is on when
// endpoint is given or the environment names one (OTEL_EXPORTER_OTLP_ENDPOINT,
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT). The other OTEL_EXPORTER_OTLP_* variables
// count as OpenTelemetry says.
func OTLP(ctx context.Context, endpoint string) (sdktrace.SpanExporter, error) {
	var opts []otlptracehttp.Option
	switch {
	case endpoint != "":
		opts = append(opts, otlptracehttp.WithEndpointURL(endpoint))
	case os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "":
		return nil, nil
	}
	exp, err := otlptracehttp.New(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("traces cannot be exported: %w; give --otlp as http://127.0.0.1:4318/v1/traces", err)
	}
	return exp, nil
}

// newTracing gives a provider for exp; nil means off, and costs nothing.
func newTracing(exp sdktrace.SpanExporter, version, node string) *sdktrace.TracerProvider {
	if exp == nil {
		return nil
	}
	res := resource.NewSchemaless(
		attribute.String("service.name", serviceName()),
		attribute.String("service.version", version),
		attribute.String("service.instance.id", node),
	)
	if fromEnv, err := resource.New(context.Background(), resource.WithFromEnv()); err == nil {
		if merged, err := resource.Merge(res, fromEnv); err == nil {
			res = merged
		}
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exp), sdktrace.WithResource(res))
}

func serviceName() string {
	if n := os.Getenv("OTEL_SERVICE_NAME"); n != "" {
		return n
	}
	return "usher"
}

// logSpan observes the engine's log: a span for the time in which an answer
// waits until what it rests on is durable.
func logSpan(tracer trace.Tracer) func(ctx context.Context, room string) func(error) {
	return func(ctx context.Context, room string) func(error) {
		if !trace.SpanContextFromContext(ctx).IsValid() {
			return func(error) {}
		}
		_, span := tracer.Start(ctx, "log sync", trace.WithAttributes(attribute.String("usher.room", room)))
		return func(err error) {
			if err != nil {
				span.SetStatus(codes.Error, err.Error())
			}
			span.End()
		}
	}
}
