package keda_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/ushergo/usher/internal/externalscaler"
	"github.com/ushergo/usher/keda"
)

// rooms are those of a test.
type rooms struct {
	mu   sync.Mutex
	of   map[string]keda.Demand
	fail error
}

func (r *rooms) Demand(_ context.Context, room string) (keda.Demand, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, ok := r.of[room]
	if !ok && r.fail == nil {
		return d, keda.ErrNoRoom
	}
	return d, r.fail
}

func (r *rooms) set(room string, d keda.Demand) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[room] = d
}

// serve starts a server on a free port and gives a client of it.
func serve(t *testing.T, r keda.Rooms, opts keda.Options, creds credentials.TransportCredentials) (*keda.Server, pb.ExternalScalerClient) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := keda.New(r, opts)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		s.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, pb.NewExternalScalerClient(conn)
}

func ref(pairs ...string) *pb.ScaledObjectRef {
	m := map[string]string{"scalerAddress": "usher.usher:8082"}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return &pb.ScaledObjectRef{Name: "shop", Namespace: "shop", ScalerMetadata: m}
}

func TestMetrics(t *testing.T) {
	r := &rooms{of: map[string]keda.Demand{
		"premiere": {Waiting: 1234, Active: 600, Instances: 9},
		"quiet":    {Instances: 0},
		"plain":    {Waiting: 5, Instances: -1},
		"inside":   {Active: 1, Instances: 1},
	}}
	_, c := serve(t, r, keda.Options{}, insecure.NewCredentials())
	for _, tc := range []struct {
		ref    *pb.ScaledObjectRef
		name   string
		target int64
		value  int64
		active bool
	}{
		{ref("room", "premiere"), "usher-premiere-waiting", 100, 1234, true},
		{ref("room", "premiere", "metric", "waiting", "target", "25"), "usher-premiere-waiting", 25, 1234, true},
		{ref("room", "premiere", "metric", "instances"), "usher-premiere-instances", 1, 9, true},
		{ref("room", "quiet", "metric", "instances"), "usher-quiet-instances", 1, 0, false},
		{ref("room", "quiet"), "usher-quiet-waiting", 100, 0, false},
		{ref("room", "plain"), "usher-plain-waiting", 100, 5, true},
		{ref("room", "inside"), "usher-inside-waiting", 100, 0, true}, // scaling to zero would throw them out
	} {
		spec, err := c.GetMetricSpec(t.Context(), tc.ref)
		if err != nil {
			t.Fatal(err)
		}
		if len(spec.MetricSpecs) != 1 {
			t.Fatalf("%v", spec)
		}
		if m := spec.MetricSpecs[0]; m.MetricName != tc.name || m.TargetSize != tc.target || m.TargetSizeFloat != float64(tc.target) {
			t.Errorf("%v: %v", tc.ref.ScalerMetadata, m)
		}
		got, err := c.GetMetrics(t.Context(), &pb.GetMetricsRequest{ScaledObjectRef: tc.ref, MetricName: tc.name})
		if err != nil {
			t.Fatal(err)
		}
		if m := got.MetricValues[0]; len(got.MetricValues) != 1 || m.MetricName != tc.name || m.MetricValue != tc.value || m.MetricValueFloat != float64(tc.value) {
			t.Errorf("%v: %v", tc.ref.ScalerMetadata, got)
		}
		active, err := c.IsActive(t.Context(), tc.ref)
		if err != nil || active.Result != tc.active {
			t.Errorf("%v: active %v, %v", tc.ref.ScalerMetadata, active.GetResult(), err)
		}
	}
}

// What is not known is an error, never a zero.
func TestErrorsNameTheMend(t *testing.T) {
	r := &rooms{of: map[string]keda.Demand{"plain": {Waiting: 5, Instances: -1}}}
	_, c := serve(t, r, keda.Options{}, insecure.NewCredentials())
	for _, tc := range []struct {
		ref  *pb.ScaledObjectRef
		code codes.Code
		says string
	}{
		{ref(), codes.InvalidArgument, "ScaledObject shop/shop: metadata.room is missing"},
		{nil, codes.InvalidArgument, "metadata.room is missing"},
		{ref("room", "plain", "metric", "sessions"), codes.InvalidArgument, "use waiting, instances or workers"},
		{ref("room", "plain", "target", "many"), codes.InvalidArgument, "metadata.target"},
		{ref("room", "plain", "target", "0"), codes.InvalidArgument, "metadata.target"},
		{ref("room", "plain", "metric", "instances", "target", "5"), codes.InvalidArgument, "belongs to metric: waiting"},
		{ref("room", "plain", "metric", "instances"), codes.FailedPrecondition, "capacity.per_instance"},
		{ref("room", "nowhere"), codes.NotFound, `no room "nowhere"`},
	} {
		_, err := c.GetMetrics(t.Context(), &pb.GetMetricsRequest{ScaledObjectRef: tc.ref, MetricName: "usher-plain-waiting"})
		if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%v: %v, want %v …%s", tc.ref, err, tc.code, tc.says)
		}
	}
	if _, err := c.GetMetrics(t.Context(), &pb.GetMetricsRequest{ScaledObjectRef: ref("room", "plain"), MetricName: "another"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a metric of another trigger: %v", err)
	}
	r.mu.Lock()
	r.fail = errors.New("the engine is away")
	r.mu.Unlock()
	if _, err := c.IsActive(t.Context(), ref("room", "plain")); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the engine is away") {
		t.Errorf("%v", err)
	}
}

func TestStreamSaysChangesAlone(t *testing.T) {
	r := &rooms{of: map[string]keda.Demand{"premiere": {}}}
	s, c := serve(t, r, keda.Options{Every: time.Millisecond}, insecure.NewCredentials())
	stream, err := c.StreamIsActive(t.Context(), ref("room", "premiere"))
	if err != nil {
		t.Fatal(err)
	}
	next := func(want bool) {
		t.Helper()
		if m, err := stream.Recv(); err != nil || m.Result != want {
			t.Fatalf("%v %v, want %v", m, err, want)
		}
	}
	next(false)
	r.set("premiere", keda.Demand{Waiting: 1})
	next(true)
	r.set("premiere", keda.Demand{Waiting: 9, Active: 3})
	r.set("premiere", keda.Demand{Active: 1})
	r.set("premiere", keda.Demand{})
	next(false)
	stopped := make(chan struct{})
	go func() {
		s.Shutdown(context.Background()) // does not wait for KEDA to hang up
		close(stopped)
	}()
	if m, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("%v %v", m, err)
	}
	<-stopped
}

func TestStreamOfNoRoomEnds(t *testing.T) {
	_, c := serve(t, &rooms{}, keda.Options{}, insecure.NewCredentials())
	stream, err := c.StreamIsActive(t.Context(), ref("room", "nowhere"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.NotFound {
		t.Errorf("%v", err)
	}
	specs, err := c.StreamMetricSpec(t.Context(), ref("room", "nowhere"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := specs.Recv(); status.Code(err) != codes.Unimplemented || err == io.EOF { // KEDA then asks GetMetricSpec
		t.Errorf("%v", err)
	}
}

func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"usher.test"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	r := &rooms{of: map[string]keda.Demand{"premiere": {Waiting: 1}}}
	own := credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	_, c := serve(t, r, keda.Options{Credentials: own}, credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "usher.test"}))
	if a, err := c.IsActive(t.Context(), ref("room", "premiere")); err != nil || !a.Result {
		t.Errorf("%v %v", a, err)
	}
}
