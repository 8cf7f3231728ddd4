package apitest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// tools gives the programs that go.mod names, built once for each version of them. Under USHER_TEST_ALL=1 they are built
// when missing, which takes minutes; else the test is skipped.
func tools(t *testing.T) (apiserver, etcd string) {
	t.Helper()
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sum.Write(b)
	}
	io.WriteString(sum, runtime.Version()+runtime.GOARCH)
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "usher-apitest", hex.EncodeToString(sum.Sum(nil))[:16])
	apiserver, etcd = filepath.Join(dir, "kube-apiserver"), filepath.Join(dir, "etcd")
	for out, pkg := range map[string]string{apiserver: "k8s.io/kubernetes/cmd/kube-apiserver", etcd: "go.etcd.io/etcd/server/v3"} {
		if _, err := os.Stat(out); err == nil {
			continue
		}
		if os.Getenv("USHER_TEST_ALL") != "1" {
			t.Skipf("%s is not built yet, and takes minutes to; USHER_TEST_ALL=1 builds it", pkg)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		part := fmt.Sprintf("%s.%d", out, os.Getpid())
		cmd := exec.Command("go", append(append([]string{"build", "-ldflags=-s -w"}, hasty()...), "-o", part, pkg)...)
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, b)
		}
		if err := os.Rename(part, out); err != nil {
			t.Fatal(err)
		}
		t.Logf("built %s in %v", pkg, time.Since(began).Round(time.Second))
	}
	return apiserver, etcd
}

// hasty compiles without optimising and without tables for debuggers: a quarter less work, and the servers are quick
// enough. The standard library is left as it is, for everybody has it compiled.
func hasty() []string {
	var flags []string
	for _, of := range []string{"k8s.io", "sigs.k8s.io", "github.com", "go.etcd.io", "google.golang.org", "go.opentelemetry.io", "cel.dev"} {
		flags = append(flags, "-gcflags="+of+"/...=-N -l -dwarf=false")
	}
	return flags
}

// freePort finds one; who takes it has to be started again with another when somebody was faster.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// process is a program under test.
type process struct {
	*exec.Cmd
	mu   sync.Mutex
	said bytes.Buffer
	gone chan struct{}
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.Write(b)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// run starts a program that ends with the test.
func run(t *testing.T, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(name, args...), gone: make(chan struct{})}
	p.Env = append(os.Environ(), env...)
	p.Stdout, p.Stderr = p, p
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.Wait()
		close(p.gone)
	}()
	t.Cleanup(func() {
		p.end()
		if t.Failed() {
			text := p.text()
			t.Logf("%s said:\n…%s", filepath.Base(name), text[max(0, len(text)-6000):])
		}
	})
	return p
}

// end stops it, gently first.
func (p *process) end() {
	_ = p.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(20 * time.Second):
		_ = p.Process.Kill()
		<-p.gone
	}
}

// cluster is a running API server.
type cluster struct {
	url       string
	ca        []byte // PEM
	apiserver *process
	client    *http.Client
}

const masterToken = "token-of-the-tests-administrator"

func startCluster(t *testing.T) *cluster {
	t.Helper()
	apiserver, etcd := tools(t)
	for try := 1; ; try++ {
		c, err := tryCluster(t, apiserver, etcd)
		if err == nil {
			return c
		}
		if try == 3 {
			t.Fatal(err)
		}
		t.Logf("once more: %v", err)
	}
}

func tryCluster(t *testing.T, apiserver, etcd string) (*cluster, error) {
	t.Helper()
	dir := t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	signing := file("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	tokens := file("tokens.csv", masterToken+`,administrator,1,"system:masters"`+"\n")

	client, peer, secure := freePort(t), freePort(t), freePort(t)
	store := run(t, nil, etcd, "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=http://127.0.0.1:"+client, "--advertise-client-urls=http://127.0.0.1:"+client,
		"--listen-peer-urls=http://127.0.0.1:"+peer, "--initial-advertise-peer-urls=http://127.0.0.1:"+peer, "--initial-cluster=default=http://127.0.0.1:"+peer)
	certs := filepath.Join(dir, "certs")
	api := run(t, nil, apiserver, "--etcd-servers=http://127.0.0.1:"+client, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port="+secure,
		"--cert-dir="+certs, "--service-account-key-file="+signing, "--service-account-signing-key-file="+signing,
		"--service-account-issuer=https://kubernetes.default.svc", "--token-auth-file="+tokens, "--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none")
	c := &cluster{url: "https://127.0.0.1:" + secure, apiserver: api}
	ended := func(p *process) bool {
		select {
		case <-p.gone:
			return true
		default:
			return false
		}
	}
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if ended(store) || ended(api) {
			text := store.text() + api.text()
			store.end()
			api.end()
			return nil, fmt.Errorf("a server ended at once:\n…%s", text[max(0, len(text)-3000):])
		}
		if time.Now().After(deadline) {
			return nil, errors.New("the API server is not ready within three minutes")
		}
		if c.client == nil {
			if c.ca, err = os.ReadFile(filepath.Join(certs, "apiserver.crt")); err != nil {
				continue
			}
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(c.ca)
			c.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}, Timeout: time.Minute}
		}
		if code, _ := c.do("GET", "/readyz", "", nil); code == 200 {
			return c, nil
		}
	}
}

// do asks as the administrator.
func (c *cluster) do(method, path, kind string, body []byte) (int, []byte) {
	req, err := http.NewRequestWithContext(context.Background(), method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, []byte(err.Error())
	}
	req.Header.Set("Authorization", "Bearer "+masterToken)
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, b
}

// must asks, and wants a 2xx.
func (c *cluster) must(t *testing.T, method, path, kind string, doc any) []byte {
	t.Helper()
	var body []byte
	if doc != nil {
		var err error
		if body, err = json.Marshal(doc); err != nil {
			t.Fatal(err)
		}
	}
	code, b := c.do(method, path, kind, body)
	if code/100 != 2 {
		t.Fatalf("%s %s: %d %s", method, path, code, b)
	}
	return b
}

// eventually waits for what is bound to come.
func eventually(t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	last := ""
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var done bool
		if done, last = ok(); done {
			return
		}
	}
	t.Fatalf("%s: not within 90 s, %s", what, last)
}

// has says whether text has all of parts.
func has(text string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}
