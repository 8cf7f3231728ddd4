package sidecarnode_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
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

// run starts a program that ends with the test, and returns the first line of what it says.
func run(t *testing.T, env []string, name string, args ...string) (*exec.Cmd, string) {
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
	line, err := br.ReadString('\n')
	if err != nil {
		t.Fatalf("%s says nothing: %v", name, err)
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

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
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
	redis := freeAddr(t)
	_, port, _ := net.SplitHostPort(redis)
	run(t, nil, "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("tcp", redis); err == nil {
			c.Close()
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	type instance struct {
		app, side *exec.Cmd
		url       string
	}
	var all []instance
	for i := range 2 {
		app, line := run(t, []string{"PORT=0"}, "node", "server.js")
		listen := freeAddr(t)
		side, _ := run(t, []string{"USHER_AFFINITY_SECRET=a-secret-of-this-test"}, usher, "sidecar", "--peers", "--redis", redis, "--key", "header:X-Account",
			"--close", "/usher/close", "--instance", fmt.Sprint("node-", i), "--listen", listen, "--app", "http://127.0.0.1:"+strings.TrimPrefix(line, "listening "))
		all = append(all, instance{app, side, "http://" + listen})
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
