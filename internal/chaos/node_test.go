package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is for what happens at once on an idle machine.
const patience = 60 * time.Second

const (
	adminToken   = "a-token-of-the-chaos-tests"
	serviceToken = "a-service-token-of-the-chaos-tests"
)

var binaryDir string // "" while no test needed it

var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "usher-chaos-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "usher")
	cmd := exec.Command("go", "build", "-o", path, "github.com/ushergo/usher/cmd/usher")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// removeBinary is for the end of all tests.
func removeBinary() {
	if binaryDir != "" {
		_ = os.RemoveAll(binaryDir)
	}
}

// node is one usher process. Its methods are for the test's goroutine.
type node struct {
	t       testing.TB
	name    string
	config  string
	inside  *namespace // nil: in none of its own
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the process is gone
	public  string        // base URLs
	admin   string
	started time.Time

	mu    sync.Mutex
	log   strings.Builder
	lines chan map[string]any
}

// startNode starts usher serve and returns once it answers. config is the text of the file; its listeners are set here.
func startNode(t testing.TB, name, config string, inside *namespace) *node {
	t.Helper()
	n := &node{t: t, name: name, config: config, inside: inside}
	n.start()
	t.Cleanup(func() { n.kill() })
	return n
}

func (n *node) start() {
	n.t.Helper()
	n.launch()
	n.await()
}

// launch starts the process; await returns once it answers.
func (n *node) launch() {
	n.t.Helper()
	usher, err := binary()
	if err != nil {
		n.t.Fatal(err)
	}
	dir := n.t.TempDir()
	file := filepath.Join(dir, "usher.yaml")
	if err := os.WriteFile(file, []byte(n.config), 0o600); err != nil {
		n.t.Fatal(err)
	}
	host := "127.0.0.1"
	args := []string{usher}
	if n.inside != nil {
		host = n.inside.visitorsAddr
		args = append([]string{"ip", "netns", "exec", n.inside.name}, args...)
	}
	args = append(args, "serve", "--log-format", "json", "--config", file, "--data", filepath.Join(dir, "data"),
		"--listen", host+":0", "--admin-listen", host+":0")
	n.cmd = exec.Command(args[0], args[1:]...)
	n.cmd.Env = append(os.Environ(), "USHER_ADMIN_TOKEN="+adminToken, "USHER_SERVICE_TOKENS="+serviceToken)
	n.started = time.Now()
	out, err := n.cmd.StderrPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.ended, n.lines = make(chan struct{}), make(chan map[string]any, 100_000)
	ended, lines, cmd := n.ended, n.lines, n.cmd
	go func() {
		defer close(ended)
		in := bufio.NewScanner(out)
		for in.Buffer(nil, 1<<20); in.Scan(); {
			n.mu.Lock()
			n.log.WriteString(in.Text() + "\n")
			n.mu.Unlock()
			var line map[string]any
			if json.Unmarshal(in.Bytes(), &line) == nil {
				select {
				case lines <- line:
				default:
				}
			}
		}
		_ = cmd.Wait()
	}()
}

func (n *node) await() {
	n.t.Helper()
	for timeout := time.After(patience); ; {
		select {
		case line := <-n.lines:
			if line["msg"] == "usher is up" {
				n.public, n.admin = line["public"].(string), line["admin"].(string)
				return
			}
		case <-n.ended:
			n.t.Fatalf("%s ended:\n%s", n.name, n.text())
		case <-timeout:
			n.t.Fatalf("%s is not up:\n%s", n.name, n.text())
		}
	}
}

// text is what the node has logged, over all its lives.
func (n *node) text() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log.String()
}

func (n *node) signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.t.Fatal(err)
	}
}

// kill is kill -9, also of one that is stopped.
func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	<-n.ended
}

// stop is SIGTERM, and returns when the node has drained and ended.
func (n *node) stop() {
	n.t.Helper()
	n.signal(syscall.SIGTERM)
	select {
	case <-n.ended:
	case <-time.After(2 * patience):
		n.t.Fatalf("%s does not stop:\n%s", n.name, n.text())
	}
}

func hostPort(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.Host
}
