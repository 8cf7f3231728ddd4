package deploy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// program finds one, or skips the test; under USHER_TEST_ALL=1 it fails it.
func program(t *testing.T, name string, elsewhere ...string) string {
	t.Helper()
	for _, p := range append([]string{name}, elsewhere...) {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	if os.Getenv("USHER_TEST_ALL") == "1" {
		t.Fatalf("%s is not installed; tools/install does it", name)
	}
	t.Skipf("%s is not installed", name)
	return ""
}

// dockerBuild is the line by which the Dockerfile makes the binary.
func dockerBuild(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if cmd, ok := strings.CutPrefix(strings.TrimSpace(line), "RUN "); ok && strings.Contains(cmd, "go build") {
			return cmd
		}
	}
	t.Fatal("the Dockerfile builds nothing")
	return ""
}

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "usher-deploy-*")
	return dir, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := built(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// static gives the binary as the Dockerfile builds it, once for all tests.
func static(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds usher")
	}
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "usher")
	if _, err := os.Stat(bin); err == nil {
		return bin
	}
	line := strings.Replace(dockerBuild(t), "-o /usher ", "-o "+bin+" ", 1)
	if !strings.Contains(line, bin) {
		t.Fatalf("the Dockerfile does not build /usher: %s", line)
	}
	cmd := exec.Command("sh", "-c", line)
	cmd.Dir = ".."
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, b)
	}
	return bin
}

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

// start runs a program until the test ends, which it must do well when told to.
func start(t *testing.T, cmd *exec.Cmd) *output {
	t.Helper()
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.ExitCode() != 143 && exit.ExitCode() != -1 {
				t.Errorf("%s ended badly: %v", cmd.Path, err)
			}
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			t.Errorf("%s did not end when told to", cmd.Path)
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", cmd.Path, out.text())
		}
	})
	return out
}

// eventually waits for what is bound to come.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

const adminToken = "the-admin-token-of-deploy-tests"

// node is a running usher.
type node struct {
	public, admin string // base URLs
	cmd           *exec.Cmd
}

// serve starts one with that configuration; chroot, where it is not empty, is all that it sees.
func serve(t *testing.T, bin, dir, chroot, conf string) *node {
	t.Helper()
	file := filepath.Join(dir, "usher.yaml")
	if err := os.WriteFile(file, []byte("admin: {listen: \"127.0.0.1:0\"}\n"+conf), 0o644); err != nil {
		t.Fatal(err)
	}
	n := &node{cmd: exec.Command(bin, "serve", "--config", file, "--log-format", "json")}
	if chroot != "" {
		n.cmd.Path, n.cmd.Args = "/usher", []string{"/usher", "serve", "--config", "/usher.yaml", "--log-format", "json"}
		n.cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: chroot, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		n.cmd.Dir = "/"
	}
	n.cmd.Env = []string{"USHER_ADMIN_TOKEN=" + adminToken, "USHER_SERVICE_TOKENS=" + adminToken + "-service"}
	out := start(t, n.cmd)
	eventually(t, "usher is up", func() bool {
		for line := range strings.Lines(out.text()) {
			var said struct{ Msg, Public, Admin string }
			if json.Unmarshal([]byte(line), &said) == nil && said.Msg == "usher is up" {
				n.public, n.admin = said.Public, said.Admin
				return true
			}
		}
		return false
	})
	return n
}

// ask sends one request and reads the answer.
func ask(t *testing.T, method, url, body string, header ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// free is an address that nobody had a moment ago; who takes it tries again where somebody was faster.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr())
}
