package server

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
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
		if u, err := url.Parse(endpoint); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("--otlp %q is not an address; write it as http://127.0.0.1:4318/v1/traces", endpoint)
		}
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
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exp), sdktrace.WithResource(res), sdktrace.WithSampler(sampler()))
}

func serviceName() string {
	if n := os.Getenv("OTEL_SERVICE_NAME"); n != "" {
		return n
	}
	return "usher"
}

// asked samples the requests that somebody made, and drops what usher does by
// itself each second, which would be most of all traces. The share of requests
// follows OTEL_TRACES_SAMPLER where that names a ratio.
type asked struct{ share sdktrace.Sampler }

// ShouldSample implements sdktrace.Sampler.
func (a asked) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if p.Kind != trace.SpanKindServer {
		return sdktrace.NeverSample().ShouldSample(p)
	}
	return a.share.ShouldSample(p)
}

// Description implements sdktrace.Sampler.
func (a asked) Description() string { return "Asked{" + a.share.Description() + "}" }

func sampler() sdktrace.Sampler {
	share := sdktrace.AlwaysSample()
	if strings.HasSuffix(os.Getenv("OTEL_TRACES_SAMPLER"), "traceidratio") {
		if ratio, err := strconv.ParseFloat(os.Getenv("OTEL_TRACES_SAMPLER_ARG"), 64); err == nil {
			share = sdktrace.TraceIDRatioBased(ratio)
		}
	}
	return sdktrace.ParentBased(asked{share})
}
