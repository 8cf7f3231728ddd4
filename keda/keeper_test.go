package keda_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/ushergo/usher/internal/externalscaler"
	"github.com/ushergo/usher/keda"
)

// workers is a keeper without rooms.
type workers struct {
	rooms
	n    int64
	fail error
}

func (w *workers) Workers(context.Context) (int64, bool, error) { return w.n, w.n > 1, w.fail }

func TestWorkers(t *testing.T) {
	w := &workers{n: 3}
	_, c := serve(t, w, keda.Options{}, insecure.NewCredentials())
	ctx := t.Context()
	spec, err := c.GetMetricSpec(ctx, ref("metric", "workers"))
	if err != nil || spec.MetricSpecs[0].MetricName != "usher-keeper-workers" || spec.MetricSpecs[0].TargetSize != 1 {
		t.Fatal(spec, err)
	}
	m, err := c.GetMetrics(ctx, &pb.GetMetricsRequest{ScaledObjectRef: ref("metric", "workers"), MetricName: "usher-keeper-workers"})
	if err != nil || m.MetricValues[0].MetricValue != 3 {
		t.Fatal(m, err)
	}
	if a, err := c.IsActive(ctx, ref("metric", "workers")); err != nil || !a.Result {
		t.Fatal(a, err)
	}
	for _, wrong := range [][]string{{"metric", "workers", "room", "premiere"}, {"metric", "workers", "target", "5"}} {
		if _, err := c.GetMetricSpec(ctx, ref(wrong...)); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	w.fail = errors.New("the store is away")
	if _, err := c.IsActive(ctx, ref("metric", "workers")); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	_, without := serve(t, &rooms{}, keda.Options{}, insecure.NewCredentials())
	if _, err := without.IsActive(ctx, ref("metric", "workers")); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
}
