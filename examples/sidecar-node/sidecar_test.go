package sidecarnode_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

func need(t *testing.T, program, pkg string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("USHER_TEST_ALL") == "1" {
			t.Fatalf("%s is missing: apt-get install %s", program, pkg)
		}
		t.Skipf("needs %s, which is not installed", program)
	}
}

// run starts a program that ends with the test, and returns the first line of what it says in which the word is.
func run(t *testing.T, word string, env []string, name string, args ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() { kill(cmd) })
	br := bufio.NewReader(r)
	line := ""
	for all := ""; line == "" || !strings.Contains(line, word); all += line {
		if line, err = br.ReadString('\n'); err != nil {
			t.Fatalf("%s does not say %q: %v\n%s", name, word, err, all)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, br); r.Close() }()
	return cmd, strings.TrimSpace(line)
}

func kill(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// startRedis starts a Redis on a port below those that the system hands out to others, and returns its address.
func startRedis(t *testing.T) string {
	t.Helper()
	for try := range 20 {
		port := fmt.Sprint(10_000 + rand.IntN(20_000))
		cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { kill(cmd) })
		for sc := bufio.NewScanner(out); sc.Scan(); {
			if strings.Contains(sc.Text(), "Ready to accept connections") {
				go func() { _, _ = io.Copy(io.Discard, out) }()
				return "127.0.0.1:" + port
			}
		}
		t.Logf("try %d: port %s is taken", try, port)
	}
	t.Fatal("no port for Redis")
	return ""
}

// ownIP is a loopback address that nobody else uses: a port of it that a process left refuses connections.
func ownIP() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1"
	}
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}

type answer struct{ PID, Views int }

func ask(url string) (a answer, code int, err error) {
	req, _ := http.NewRequest("GET", url, nil)
	req.Header.Set("X-Account", "alice")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, 0, err
	}
	defer res.Body.Close()
	return a, res.StatusCode, json.NewDecoder(res.Body).Decode(&a)
}

func TestSessionsOfTwoNodes(t *testing.T) {
	need(t, "node", "nodejs")
	need(t, "redis-server", "redis-server")
	usher := filepath.Join(t.TempDir(), "usher")
	if out, err := exec.Command("go", "build", "-o", usher, "../../cmd/usher").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	redis := startRedis(t)
	type instance struct {
		app, side *exec.Cmd
		url       string
		figures   string
	}
	var all []instance
	for i := range 2 {
		app, line := run(t, "listening", []string{"PORT=0", "END_WITH_STDIN=1"}, "node", "server.js")
		side, shown := run(t, "figures are shown", []string{"USHER_AFFINITY_SECRET=a-secret-of-this-test"}, usher, "sidecar", "--peers", "--redis", redis, "--key", "header:X-Account",
			"--close", "/usher/close", "--instance", fmt.Sprint("node-", i), "--listen", ownIP()+":0", "--metrics-listen", "127.0.0.1:0", "--log-format", "json",
			"--app", "http://127.0.0.1:"+strings.TrimPrefix(line, "listening "))
		var figures struct{ Listen, Sidecar string }
		if err := json.Unmarshal([]byte(shown), &figures); err != nil || figures.Sidecar == "" {
			t.Fatalf("%s: %v", shown, err)
		}
		all = append(all, instance{app, side, "http://" + figures.Sidecar, "http://" + figures.Listen})
	}
	var owner answer
	for i := range all { // the second is asked as soon as it is up
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			a, code, err := ask(all[i].url + "/login")
			if err == nil && code == 200 {
				if owner.PID != 0 && a.PID != owner.PID {
					t.Fatalf("two logins: %d and %d", owner.PID, a.PID)
				}
				owner = a
				break
			}
			if time.Now().After(end) {
				t.Fatal(code, err)
			}
		}
	}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if a, code, err := ask(all[i%2].url + "/view"); err != nil || code != 200 || a.PID != owner.PID {
				t.Errorf("%+v %d %v", a, code, err)
			}
		})
	}
	wg.Wait()
	if a, _, err := ask(all[0].url + "/view"); err != nil || a.Views != 41 {
		t.Errorf("%d views of 41: two requests used one session at once; %v", a.Views, err)
	}
	for _, in := range all { // one of them owns the session; nobody was forced
		res, err := http.Get(in.figures + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		n := 0
		if in.app.Process.Pid == owner.PID {
			n = 1
		}
		for _, want := range []string{fmt.Sprintf(`usher_affinity_sessions{space="app"} %d`, n), `usher_keylock_forced_total{space="app"} 0`, `usher_route_not_owner_total{route="app"}`} {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s is not in the figures:\n%s", want, b)
			}
		}
	}
	// The machine that has it dies; the next login is at the other one.
	rest := all[0]
	for _, in := range all {
		if in.app.Process.Pid == owner.PID {
			kill(in.side)
			kill(in.app)
		} else {
			rest = in
		}
	}
	if a, code, err := ask(rest.url + "/login"); err != nil || code != 200 || a.PID != rest.app.Process.Pid {
		t.Errorf("%+v %d %v", a, code, err)
	}
}
