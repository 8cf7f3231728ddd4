package origins

import (
	"bufio"
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

// program is one of the origins: how to start it for room, with its keys at jwks, and where it then serves.
type program struct {
	name  string
	start func(t *testing.T, room, jwks string) (url string)
}

var programs = []program{{"go", startGo}, {"express", startExpress}, {"nginx", startNginx}}

func startGo(t *testing.T, room, jwks string) string {
	bin := filepath.Join(t.TempDir(), "origin")
	if out, err := exec.Command("go", "build", "-o", bin, "./go").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return announced(t, exec.Command(bin, "-listen", "127.0.0.1:0", "-room", room, "-jwks", jwks))
}

func startExpress(t *testing.T, room, jwks string) string {
	node, err := exec.LookPath("node")
	if err != nil {
		absent(t, "node is not installed")
	}
	if _, err := os.Stat("express/node_modules/jose"); err != nil {
		absent(t, "npm packages are missing: run npm ci in examples/origins/express")
	}
	cmd := exec.Command(node, "server.js")
	cmd.Dir = "express"
	cmd.Env = append(os.Environ(), "PORT=0", "ROOM="+room, "JWKS="+jwks)
	return announced(t, cmd)
}

// startNginx runs the configuration of the example as it is, but for its addresses.
func startNginx(t *testing.T, room, jwks string) string {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		nginx = "/usr/sbin/nginx" // not on everybody's PATH
	}
	for _, need := range []string{nginx, "/usr/lib/nginx/modules/ngx_http_lua_module.so", "/usr/lib/" + multiarch(t) + "/lua/5.1/cjson.so"} {
		if _, err := os.Stat(need); err != nil {
			absent(t, "needs Debian's nginx, libnginx-mod-http-lua and lua-cjson: "+need+" is missing")
		}
	}
	conf, err := os.ReadFile("nginx/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	dir, addr := t.TempDir(), freePort(t)
	text := string(conf)
	for from, to := range map[string]string{"listen 127.0.0.1:9000;": "listen " + addr + ";",
		"http://127.0.0.1:8080/.usher/.well-known/jwks.json": jwks, `require("main")`: `require("` + room + `")`, `room = "main"`: `room = "` + room + `"`} {
		if strings.Count(text, from) != 1 {
			t.Fatalf("nginx.conf has not one %q", from)
		}
		text = strings.Replace(text, from, to, 1)
	}
	lua, err := os.ReadFile("nginx/admission.lua")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"nginx.conf": text, "admission.lua": string(lua)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	// Workers of a root's nginx run as another user, who has to find the file.
	if err := openTo(dir); err != nil {
		t.Fatal(err)
	}
	run(t, exec.Command(nginx, "-p", dir, "-c", "nginx.conf"), nil)
	url := "http://" + addr
	waitFor(t, url+"/health")
	return url
}

// openTo lets other users read what is in dir, up to the folder for temporary files.
func openTo(dir string) error {
	for path := dir; len(path) > len(filepath.Clean(os.TempDir())); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			return err
		}
	}
	return os.Chmod(filepath.Join(dir, "admission.lua"), 0o644)
}

func multiarch(t *testing.T) string {
	found, _ := filepath.Glob("/usr/lib/*/lua/5.1/cjson.so")
	if len(found) == 0 {
		return "?"
	}
	return strings.Split(found[0], "/")[3]
}

// absent skips a test whose server is missing, or fails it where none may be.
func absent(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("USHER_TEST_ALL") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

func freePort(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// announced starts a program that prints the address it serves on.
func announced(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	address := make(chan string, 1)
	run(t, cmd, func(line string) {
		if _, url, ok := strings.Cut(line, "origin on "); ok {
			address <- url
		}
	})
	select {
	case url := <-address:
		return url
	case <-time.After(time.Minute):
		t.Fatal("the origin did not start")
		return ""
	}
}

// run starts cmd and ends it with the test; its output becomes part of a failed test's.
func run(t *testing.T, cmd *exec.Cmd, onLine func(string)) {
	t.Helper()
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var output []string
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			mu.Lock()
			output = append(output, lines.Text())
			mu.Unlock()
			if onLine != nil {
				onLine(lines.Text())
			}
		}
	}()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait(); w.Close() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				t.Errorf("the origin ended badly: %v", err)
			}
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			t.Error("the origin did not end when told to")
		}
		<-read
		if t.Failed() {
			mu.Lock()
			defer mu.Unlock()
			t.Logf("output:\n%s", strings.Join(output[max(0, len(output)-20):], "\n"))
		}
	})
}

func waitFor(t *testing.T, url string) {
	t.Helper()
	var last error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get(url)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
			err = fmt.Errorf("status %d", resp.StatusCode)
		}
		last = err
	}
	t.Fatalf("the origin did not start: %v", last)
}
