package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/ushergo/usher/cmd/usher/internal/server"
	"github.com/ushergo/usher/config"
	pb "github.com/ushergo/usher/internal/externalscaler"
)

// eventually waits for what is bound to come.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// pods are what a Kubernetes API server says of three ready pods, until it is told to refuse. The real one is in
// deploy/kubernetes/apitest; this is about what the node makes of the answers.
type pods struct {
	refuse atomic.Bool
	cut    chan struct{} // ends the open watch
}

func (p *pods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case p.refuse.Load():
		w.WriteHeader(403)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden","message":"pods is forbidden"}`)
	case r.URL.Path != "/api/v1/namespaces/shop/pods" || r.URL.Query().Get("labelSelector") != "app=shop":
		w.WriteHeader(404)
	case r.URL.Query().Get("watch") == "true":
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		select {
		case <-p.cut:
		case <-r.Context().Done():
		}
	default:
		var items []any
		for i := range 3 {
			items = append(items, map[string]any{"metadata": map[string]any{"name": fmt.Sprint("p", i)},
				"status": map[string]any{"phase": "Running", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}})
		}
		json.NewEncoder(w).Encode(map[string]any{"kind": "PodList", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": "7"}, "items": items})
	}
}

func TestLimitFollowsPods(t *testing.T) {
	p := &pods{cut: make(chan struct{})}
	api := httptest.NewServer(p)
	defer api.Close()
	defer api.CloseClientConnections()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c","namespace":"usher"}}]}`, api.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", kubeconfig)
	c := configure(t, t.TempDir())
	c.Rooms[0].Capacity = config.Capacity{Active: 100, PerInstance: 2}
	c.Rooms[0].Instances = config.Instances{Source: "kubernetes", Selector: "app=shop", Namespace: "shop", Fallback: 1}
	s, log := start(t, c)
	limit := func() int64 {
		rm, _ := s.Rooms().Lookup("premiere")
		return rm.Summary().Limit
	}
	eventually(t, "a limit for three pods", func() bool { return limit() == 6 })
	p.refuse.Store(true)
	close(p.cut)
	eventually(t, "the missing rule in the log", func() bool {
		return strings.Contains(log.String(), "may not list pods in namespace shop") && strings.Contains(log.String(), "the last count, 3, holds")
	})
	if n := limit(); n != 6 {
		t.Errorf("limit %d while the last count holds, want 6", n)
	}
	p.refuse.Store(false)
	eventually(t, "counting again", func() bool { return strings.Contains(log.String(), "counted again") })
}

func TestKubernetesNeedsACluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	c := configure(t, t.TempDir())
	c.Rooms[0].Instances = config.Instances{Source: "kubernetes", Selector: "app=shop"}
	s, err := server.Start(t.Context(), c, slog.New(slog.DiscardHandler))
	if err == nil {
		stop(t, s)
		t.Fatal("started where there is no cluster")
	}
	if !strings.Contains(err.Error(), "room premiere: kubernetes: usher does not run in a pod") || !strings.Contains(err.Error(), "KUBECONFIG") {
		t.Errorf("%v", err)
	}
}

func TestKEDAIsAnswered(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "TLS"}[secure], func(t *testing.T) {
			dir := t.TempDir()
			c := configure(t, filepath.Join(dir, "data"))
			c.Keda.Listen = "127.0.0.1:0"
			c.Rooms[0].Capacity = config.Capacity{Active: 100, PerInstance: 1}
			c.Rooms[0].Instances = config.Instances{Source: "static", Fallback: 1}
			creds := insecure.NewCredentials()
			if secure {
				c.Keda.TLS = config.TLS{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
				creds = credentials.NewClientTLSFromCert(certify(t, c.Keda.TLS.Cert, c.Keda.TLS.Key, "scaler"), "")
			}
			s, _ := start(t, c)
			conn, err := grpc.NewClient(s.ScalerAddr(), grpc.WithTransportCredentials(creds))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			client := pb.NewExternalScalerClient(conn)
			value := func(metric string) int64 {
				r, err := client.GetMetrics(t.Context(), &pb.GetMetricsRequest{MetricName: "usher-premiere-" + metric,
					ScaledObjectRef: &pb.ScaledObjectRef{ScalerMetadata: map[string]string{"room": "premiere", "metric": metric}}})
				if err != nil {
					t.Fatal(err)
				}
				return r.MetricValues[0].MetricValue
			}
			stream, err := client.StreamIsActive(t.Context(), &pb.ScaledObjectRef{ScalerMetadata: map[string]string{"room": "premiere"}})
			if err != nil {
				t.Fatal(err)
			}
			if m, err := stream.Recv(); err != nil || m.Result {
				t.Fatalf("nobody is there: %v %v", m, err)
			}
			rm, _ := s.Rooms().Lookup("premiere")
			eventually(t, "a limit for one instance", func() bool { return rm.Summary().Limit == 1 })
			for range 4 {
				enter(t, http.DefaultClient, s.PublicURL(), "")
			}
			if m, err := stream.Recv(); err != nil || !m.Result {
				t.Fatalf("one is inside: %v %v", m, err)
			}
			eventually(t, "three waiters", func() bool { return value("waiting") == 3 })
			if n := value("instances"); n < 1 {
				t.Errorf("%d instances", n)
			}
			_, err = client.IsActive(t.Context(), &pb.ScaledObjectRef{ScalerMetadata: map[string]string{"room": "nowhere"}})
			if status.Code(err) != codes.NotFound {
				t.Errorf("%v", err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := s.Shutdown(ctx); err != nil { // with a stream that would never end by itself
				t.Error(err)
			}
			if _, err := stream.Recv(); err == nil {
				t.Error("the stream outlives the server")
			}
		})
	}
}
