package kedatest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start runs usher with a room of one session, and gives the addresses of its public listener and of its scaler.
func start(t *testing.T) (public, scaler string) {
	t.Helper()
	dir := t.TempDir()
	bin, file := filepath.Join(dir, "usher"), filepath.Join(dir, "usher.yaml")
	build := exec.Command("go", "build", "-o", bin, "./cmd/usher")
	build.Dir = filepath.Join("..", "..", "..")
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	if err := os.WriteFile(file, []byte(`
public: {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0"}
keda: {listen: "127.0.0.1:0"}
engine: {dir: `+filepath.Join(dir, "data")+`}
rooms:
  - id: premiere
    capacity: {active: 10, per_instance: 1}
    instances: {source: static, fallback: 1}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	var out output
	cmd := exec.Command(bin, "serve", "--config", file, "--log-format", "json")
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("usher: %v", err)
		}
		if t.Failed() {
			t.Log(out.text())
		}
	})
	for deadline := time.Now().Add(time.Minute); public == "" || scaler == ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("usher is not up:\n%s", out.text())
		}
		for line := range strings.Lines(out.text()) {
			var said struct{ Msg, Public, Listen string }
			_ = json.Unmarshal([]byte(line), &said)
			switch said.Msg {
			case "usher is up":
				public = said.Public
			case "KEDA is answered":
				scaler = said.Listen
			}
		}
	}
	return public, scaler
}

func TestKEDAsOwnClient(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs usher")
	}
	public, scaler := start(t)
	conn, err := grpc.NewClient(scaler, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin":{}}]}`)) // as KEDA connects
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c, ctx := pb.NewExternalScalerClient(conn), t.Context()
	ref := func(metric string) *pb.ScaledObjectRef {
		return &pb.ScaledObjectRef{Name: "shop", Namespace: "shop", ScalerMetadata: map[string]string{"scalerAddress": scaler, "room": "premiere", "metric": metric}}
	}
	value := func(metric string) float64 {
		t.Helper()
		spec, err := c.GetMetricSpec(ctx, ref(metric))
		if err != nil || len(spec.MetricSpecs) != 1 {
			t.Fatalf("%v %v", spec, err)
		}
		got, err := c.GetMetrics(ctx, &pb.GetMetricsRequest{ScaledObjectRef: ref(metric), MetricName: spec.MetricSpecs[0].MetricName})
		if err != nil || len(got.MetricValues) != 1 {
			t.Fatalf("%v %v", got, err)
		}
		return got.MetricValues[0].MetricValueFloat
	}
	if a, err := c.IsActive(ctx, ref("waiting")); err != nil || a.Result {
		t.Fatalf("active before anybody came: %v %v", a, err)
	}
	stream, err := c.StreamIsActive(ctx, ref("waiting"))
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.Result {
		t.Fatalf("%v %v", m, err)
	}
	for range 8 {
		resp, err := http.Post(public+"/v1/rooms/premiere/enter", "application/json", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	if m, err := stream.Recv(); err != nil || !m.Result {
		t.Fatalf("%v %v", m, err)
	}
	for deadline := time.Now().Add(time.Minute); value("waiting") != 7; time.Sleep(20 * time.Millisecond) { // one of eight is inside
		if time.Now().After(deadline) {
			t.Fatalf("%v waiting, want 7", value("waiting"))
		}
	}
	if n := value("instances"); n < 1 || n > 10 {
		t.Errorf("%v instances recommended", n)
	}
	_, err = c.GetMetrics(ctx, &pb.GetMetricsRequest{ScaledObjectRef: &pb.ScaledObjectRef{ScalerMetadata: map[string]string{"room": "nowhere"}}, MetricName: "usher-nowhere-waiting"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("%v", err)
	}
	specs, err := c.StreamMetricSpec(ctx, ref("waiting"))
	if err == nil {
		_, err = specs.Recv()
	}
	if status.Code(err) != codes.Unimplemented { // KEDA then asks GetMetricSpec
		t.Errorf("%v", err)
	}
}
