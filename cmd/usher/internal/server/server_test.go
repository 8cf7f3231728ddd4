package server_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/ushergo/usher/cmd/usher/internal/server"
	"github.com/ushergo/usher/config"
)

const adminToken = "the-admin-token-of-server-tests"

// configure gives a configuration on free ports with one API room.
func configure(t *testing.T, dir string) *config.Config {
	t.Helper()
	c := config.Default()
	c.Public.Listen, c.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Admin.Token = config.NewSecret(adminToken)
	c.Engine.Dir = dir
	r := config.DefaultRoom()
	r.ID = "premiere"
	r.Match = []config.Match{{Host: "tickets.test", Path: "/"}}
	r.Capacity.Active = 1
	c.Rooms = []config.Room{r}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// journal is a log that a test may read.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

func start(t *testing.T, c *config.Config, opts ...server.Option) (*server.Server, *journal) {
	t.Helper()
	j := &journal{}
	s, err := server.Start(context.Background(), c, slog.New(slog.NewTextHandler(j, nil)), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s, j
}

func stop(t *testing.T, s *server.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Errorf("shutdown: %v", err)
	}
}

type visit struct {
	Ticket   string
	TicketID string `json:"ticket_id"`
	State    string
	Place    int64
}

// enter takes a place by the API; ticket is presented when not empty.
func enter(t *testing.T, client *http.Client, base, ticket string) visit {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, base+"/v1/rooms/premiere/enter", nil)
	if err != nil {
		t.Fatal(err)
	}
	if ticket != "" {
		req.Header.Set("Authorization", "Bearer "+ticket)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v visit
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil || resp.StatusCode > 202 {
		t.Fatalf("enter: %d %v", resp.StatusCode, err)
	}
	return v
}

func TestRestartKeepsPlaces(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s, _ := start(t, configure(t, dir))
	in := enter(t, http.DefaultClient, s.PublicURL(), "")
	first := enter(t, http.DefaultClient, s.PublicURL(), "")
	second := enter(t, http.DefaultClient, s.PublicURL(), "")
	if in.State != "admitted" || first.Place != 1 || second.Place != 2 {
		t.Fatalf("%+v %+v %+v", in, first, second)
	}
	http.DefaultClient.CloseIdleConnections()
	stop(t, s)

	s, _ = start(t, configure(t, dir))
	for ticket, want := range map[string]visit{in.Ticket: in, first.Ticket: first, second.Ticket: second} {
		got := enter(t, http.DefaultClient, s.PublicURL(), ticket)
		if got.TicketID != want.TicketID || got.State != want.State || got.Place != want.Place {
			t.Errorf("before %+v, after %+v", want, got)
		}
	}
}

// One trace leads from the HTTP call through the room's command to the log, and
// tells no secret.
func TestOneTraceFromEnterToLog(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	kept := &keep{InMemoryExporter: spans}
	s, _ := start(t, configure(t, filepath.Join(t.TempDir(), "data")), server.Spans(kept), server.Version("test"))
	v := enter(t, http.DefaultClient, s.PublicURL(), "")
	http.DefaultClient.CloseIdleConnections()
	stop(t, s)

	byID := map[string]tracetest.SpanStub{}
	var leaf tracetest.SpanStub
	for _, span := range kept.all {
		byID[span.SpanContext.SpanID().String()] = span
		if span.Name == "log sync" {
			leaf = span
		}
		if text := fmt.Sprintf("%+v", span); strings.Contains(text, v.Ticket) {
			t.Errorf("the ticket's secret is in span %s", span.Name)
		}
	}
	if leaf.Name == "" {
		t.Fatalf("no span of the log among %d", len(kept.all))
	}
	for _, span := range kept.all {
		if !span.Parent.IsValid() && !strings.Contains(span.Name, "/") {
			t.Errorf("%s is a trace of its own: nobody asked for it", span.Name)
		}
	}
	var path []string
	for at := leaf; ; {
		path = append(path, at.Name)
		if at.SpanContext.TraceID() != leaf.SpanContext.TraceID() {
			t.Errorf("%s is in another trace", at.Name)
		}
		parent, ok := byID[at.Parent.SpanID().String()]
		if !ok {
			break
		}
		at = parent
	}
	if len(path) != 3 || !strings.Contains(path[1], "enter") || !strings.Contains(path[2], "/enter") {
		t.Errorf("from the log upward: %v", path)
	}
}

// keep holds spans beyond the exporter's shutdown, which forgets them.
type keep struct {
	*tracetest.InMemoryExporter
	all tracetest.SpanStubs
}

func (k *keep) Shutdown(ctx context.Context) error {
	k.all = k.GetSpans()
	return k.InMemoryExporter.Shutdown(ctx)
}

// certify writes a certificate for 127.0.0.1 and its key, and returns the pool
// that trusts it.
func certify(t *testing.T, cert, key, name string) *x509.CertPool {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	err = errors.Join(
		os.WriteFile(cert, certPEM, 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return pool
}

func TestTLSAndItsReload(t *testing.T) {
	dir := t.TempDir()
	files := config.TLS{Cert: filepath.Join(dir, "c.pem"), Key: filepath.Join(dir, "k.pem")}
	pool := certify(t, files.Cert, files.Key, "first")
	c := configure(t, filepath.Join(dir, "data"))
	c.Public.TLS = files
	s, _ := start(t, c)
	if !strings.HasPrefix(s.PublicURL(), "https://127.0.0.1:") {
		t.Fatal(s.PublicURL())
	}
	peer := func(pool *x509.CertPool) string {
		t.Helper()
		conn, err := tls.Dial("tcp", s.Addr(), &tls.Config{RootCAs: pool})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	if got := peer(pool); got != "first" {
		t.Errorf("certificate of %s", got)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	if v := enter(t, client, s.PublicURL(), ""); v.State != "admitted" {
		t.Errorf("%+v", v)
	}
	client.CloseIdleConnections()

	pool = certify(t, files.Cert, files.Key, "second")
	if err := s.Reload(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	if got := peer(pool); got != "second" {
		t.Errorf("after the reload: certificate of %s", got)
	}
	if err := os.WriteFile(files.Key, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Reload(context.Background(), c); err == nil || !strings.Contains(err.Error(), files.Key) {
		t.Errorf("a broken key: %v", err)
	}
	if got := peer(pool); got != "second" {
		t.Errorf("after a broken reload: certificate of %s", got)
	}
}

// A start that fails leaves no port and no folder held.
func TestFailedStartLeavesNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	free.Close()
	dir := filepath.Join(t.TempDir(), "data")
	c := configure(t, dir)
	c.Public.Listen, c.Admin.Listen = addr, taken.Addr().String()
	_, err = server.Start(context.Background(), c, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "--admin-listen (admin.listen)") {
		t.Fatalf("got %v", err)
	}
	again, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatalf("the public port is still held: %v", err)
	}
	again.Close()

	// A failure further on: the keys are a file where a folder should be.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "keys"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c = configure(t, dir)
	if _, err := server.Start(context.Background(), c, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "keys") {
		t.Fatalf("got %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "keys")); err != nil {
		t.Fatal(err)
	}
	start(t, configure(t, dir)) // and now it can
}

// Streams are told when to come back, ready says 503, and the log has no secret.
func TestShutdownTellsStreams(t *testing.T) {
	c := configure(t, filepath.Join(t.TempDir(), "data"))
	c.Node.Drain = 2 * time.Second
	s, j := start(t, c)
	enter(t, http.DefaultClient, s.PublicURL(), "")
	waiting := enter(t, http.DefaultClient, s.PublicURL(), "")

	req, err := http.NewRequest(http.MethodGet, s.PublicURL()+"/v1/rooms/premiere/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+waiting.Ticket)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("events: %d", resp.StatusCode)
	}
	buf := make([]byte, 1) // the stream is on once its first byte is here
	if _, err := resp.Body.Read(buf); err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 1)
	go func() {
		var text bytes.Buffer
		_, _ = text.ReadFrom(resp.Body) // until the server ends it
		heard <- text.String()
	}()
	stop(t, s)
	if got := <-heard; !strings.Contains(got, "RECONNECT_SOON") || !strings.Contains(got, "after_ms") {
		t.Errorf("the stream heard %q", got)
	}
	if log := j.String(); strings.Contains(log, waiting.Ticket) || strings.Contains(log, adminToken) {
		t.Errorf("a secret is in the log:\n%s", log)
	}
	if err := s.Wait(); err != nil {
		t.Errorf("wait: %v", err)
	}
}
