package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ushergo/usher/cmd/usher/internal/adminapi"
	"github.com/ushergo/usher/config"
)

// TestMain lets the test binary be usher itself, or a NATS server, for tests of processes.
func TestMain(m *testing.M) {
	if os.Getenv("USHER_TEST_AS_MAIN") == "1" {
		main()
		return
	}
	if dir := os.Getenv("USHER_TEST_NATS"); dir != "" {
		serveNATS(dir)
		return
	}
	os.Exit(m.Run())
}

// process is a running usher, with what it logs.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  chan map[string]any
	ended  chan struct{} // closed when the process has ended
	public string
	admin  string
	mu     sync.Mutex
	all    strings.Builder
}

const deadline = 30 * time.Second

func startProcess(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	return startCommand(t, "serve", env, args...)
}

func startCommand(t *testing.T, name string, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, lines: make(chan map[string]any, 10_000), ended: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0], append([]string{name, "--log-format", "json"}, args...)...)
	p.cmd.Env = append(os.Environ(), append([]string{"USHER_TEST_AS_MAIN=1"}, env...)...)
	p.cmd.Dir = t.TempDir()
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		for in := bufio.NewScanner(stderr); in.Scan(); {
			p.mu.Lock()
			p.all.WriteString(in.Text() + "\n")
			p.mu.Unlock()
			var line map[string]any
			if json.Unmarshal(in.Bytes(), &line) == nil {
				p.lines <- line
			}
		}
		_ = p.cmd.Wait() // ProcessState tells
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all.String()
}

// wait returns the first log line from now on whose message begins with msg.
func (p *process) wait(msg string) map[string]any {
	p.t.Helper()
	timeout := time.After(deadline)
	for {
		select {
		case line := <-p.lines:
			if text, _ := line["msg"].(string); strings.HasPrefix(text, msg) {
				return line
			}
		case <-timeout:
			p.t.Fatalf("the log never said %q:\n%s", msg, p.log())
		}
	}
}

func (p *process) up() *process {
	p.t.Helper()
	line := p.wait("usher is up")
	p.public, p.admin = line["public"].(string), line["admin"].(string)
	return p
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) exit() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(deadline):
		p.t.Fatalf("it does not end:\n%s", p.log())
		return 0
	}
}

func (p *process) client(token string) *adminapi.Client {
	p.t.Helper()
	c, err := adminapi.New(p.admin, config.NewSecret(token), "the test")
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

func (p *process) active(token, id string) int64 {
	p.t.Helper()
	r, err := p.client(token).Room(context.Background(), id)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, p.log())
	}
	return r.Config.Capacity.Active
}

func freeListeners() []string {
	return []string{"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}
}

func TestQuickModeServesAndStops(t *testing.T) {
	quiet(t)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "the site") }))
	defer origin.Close()
	data := filepath.Join(t.TempDir(), "data")
	p := startProcess(t, nil, append(freeListeners(), "--origin", origin.URL, "--active", "1", "--data", data)...).up()

	token, err := os.ReadFile(filepath.Join(data, "admin.token"))
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.TrimSpace(string(token))
	if got := p.active(secret, "main"); got != 1 {
		t.Errorf("active %d", got)
	}
	// One is let in to the site, the next one waits.
	jar := map[string]string{}
	body, status := get(t, p.public+"/seats", jar)
	if status != http.StatusOK || body != "the site" {
		t.Errorf("the first visitor got %d %.200s", status, body)
	}
	if body, status = get(t, p.public+"/seats", map[string]string{}); status != http.StatusAccepted || body == "the site" {
		t.Errorf("the second visitor got %d %.200s", status, body)
	}
	for _, url := range []string{p.public + "/.usher", p.admin} {
		if _, status := get(t, url+"/health/ready", nil); status != http.StatusOK {
			t.Errorf("%s/health/ready: %d", url, status)
		}
	}
	for path, want := range map[string]string{"/metrics": "usher_engine_command", "/debug/pprof/": "goroutine", "/debug/pprof/cmdline": "serve"} {
		if body := asAdmin(t, p.admin+path, secret); !strings.Contains(body, want) {
			t.Errorf("%s: %.300s", path, body)
		}
		if body, status := get(t, p.public+path, map[string]string{}); strings.Contains(body, want) {
			t.Errorf("%s is on the public listener: %d", path, status)
		}
		if _, status := get(t, p.admin+path, nil); status != http.StatusUnauthorized {
			t.Errorf("%s without a token: %d", path, status)
		}
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit %d\n%s", code, p.log())
	}
	if log := p.log(); strings.Contains(log, secret) || !strings.Contains(log, "admin.token") {
		t.Errorf("the log must name the token's file and not the token:\n%s", log)
	}
}

// get asks as a browser navigating does, with the cookies in jar (nil: none).
func get(t *testing.T, url string, jar map[string]string) (body string, status int) {
	t.Helper()
	body, status, err := navigate(url, jar)
	if err != nil {
		t.Fatal(err)
	}
	return body, status
}

func navigate(url string, jar map[string]string) (body string, status int, err error) {
	client := &http.Client{
		Timeout:       deadline,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{DisableKeepAlives: true},
	}
	for range 3 { // the first answer may be a redirect to the same page that sets the cookie
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			return "", 0, err
		}
		req.Header.Set("Accept", "text/html")
		req.Header.Set("Sec-Fetch-Mode", "navigate")
		for k, v := range jar {
			req.AddCookie(&http.Cookie{Name: k, Value: v})
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", 0, err
		}
		data, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return "", 0, err
		}
		for _, c := range resp.Cookies() {
			if jar != nil {
				jar[c.Name] = c.Value
			}
		}
		body, status = string(data), resp.StatusCode
		if status < 300 || status >= 400 || jar == nil {
			return body, status, nil
		}
	}
	return body, status, nil
}

func asAdmin(t *testing.T, url, token string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestReloadBySignal(t *testing.T) {
	quiet(t)
	const token = "the-token-of-the-reload-test"
	dir := t.TempDir()
	file := filepath.Join(dir, "usher.yaml")
	put := func(text string) {
		t.Helper()
		text = fmt.Sprintf("public: {listen: '127.0.0.1:0'}\nadmin: {listen: '127.0.0.1:0'}\nengine: {dir: %s}\n", filepath.Join(dir, "data")) + text
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("rooms:\n- {id: a, capacity: {active: 5}}\n")
	p := startProcess(t, []string{"USHER_ADMIN_TOKEN=" + token}, "--config", file).up()
	check := func(what, id string, want int64) {
		t.Helper()
		if got := p.active(token, id); got != want {
			t.Errorf("%s: room %s has active %d, want %d", what, id, got, want)
		}
	}
	reload := func(answer string) {
		t.Helper()
		p.signal(syscall.SIGHUP)
		p.wait(answer)
	}
	check("start", "a", 5)

	put("rooms:\n- {id: a, capacity: {active: 6}}\n- {id: b, capacity: {active: 7}}\n")
	reload("the file has been applied")
	check("changed file", "a", 6)
	check("new room", "b", 7)

	// A change by the admin API stands until the file says something new.
	if _, err := p.client(token).Patch(context.Background(), "a", map[string]any{"capacity": map[string]any{"active": 60}}); err != nil {
		t.Fatal(err)
	}
	reload("the file has been applied")
	check("same file after a change by the API", "a", 60)
	put("rooms:\n- {id: a, capacity: {active: 8}}\n- {id: b, capacity: {active: 7}}\n")
	reload("the file has been applied")
	check("file with something new", "a", 8)

	// A broken file is refused as a whole.
	put("rooms:\n- {id: a, capacity: {active: 9}}\n- {id: b, capcity: {active: 7}}\n")
	p.signal(syscall.SIGHUP)
	for p.wait("the file is wrong")["key"] != "rooms[1].capcity" {
	}
	p.wait("the file is refused as a whole")
	check("broken file", "a", 8)

	// A room that has gone from the file stays, with a word about it.
	put("node: {drain: 20s}\nrooms:\n- {id: a, capacity: {active: 8}}\n")
	p.signal(syscall.SIGHUP)
	if line := p.wait("a room has gone from the file"); line["room"] != "b" {
		t.Errorf("got %v", line)
	}
	if line := p.wait("changed in the file, and takes a restart"); line["key"] != "node" {
		t.Errorf("got %v", line)
	}
	p.wait("the file has been applied")
	check("room gone from the file", "b", 7)

	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if strings.Contains(p.log(), token) {
		t.Error("the token is in the log")
	}
}

// A reload that hangs, as on a network drive that has gone, keeps nobody from stopping usher.
func TestStopDuringAReloadThatHangs(t *testing.T) {
	quiet(t)
	file := filepath.Join(t.TempDir(), "usher.yaml")
	if err := os.WriteFile(file, []byte("rooms:\n- {id: a, capacity: {active: 5}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, nil, append(freeListeners(), "--config", file)...).up()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Skip("no pipe can be made here: ", err)
	}
	p.signal(syscall.SIGHUP)
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// A slow request is answered although usher has been told to stop.
func TestStopAnswersWhatItHas(t *testing.T) {
	quiet(t)
	p, origin := startSlow(t)
	type answer struct {
		body   string
		status int
	}
	answered := make(chan answer, 1)
	go func() {
		body, status := get(t, p.public+"/slow", map[string]string{})
		answered <- answer{body, status}
	}()
	origin.await(t)
	p.signal(syscall.SIGTERM)
	p.wait("stopping")
	awaitRefused(t, p.public)
	origin.release()
	if got := <-answered; got.status != http.StatusOK || got.body != "at last" {
		t.Errorf("the request under way got %+v", got)
	}
	if code := p.exit(); code != 0 {
		t.Errorf("exit %d\n%s", code, p.log())
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	quiet(t)
	p, origin := startSlow(t)
	cut := make(chan error, 1)
	go func() {
		_, _, err := navigate(p.public+"/slow", map[string]string{})
		cut <- err
	}()
	origin.await(t)
	p.signal(syscall.SIGTERM)
	p.wait("stopping")
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 1 {
		t.Errorf("exit %d\n%s", code, p.log())
	}
	if err := <-cut; err == nil {
		t.Error("the request under way was answered")
	}
}

// slowOrigin answers when it is released.
type slowOrigin struct {
	reached chan struct{}
	release func()
}

func (o slowOrigin) await(t *testing.T) {
	t.Helper()
	select {
	case <-o.reached:
	case <-time.After(deadline):
		t.Fatal("no request reached the origin")
	}
}

func startSlow(t *testing.T) (*process, slowOrigin) {
	t.Helper()
	hold := make(chan struct{})
	o := slowOrigin{reached: make(chan struct{}, 10), release: sync.OnceFunc(func() { close(hold) })}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		o.reached <- struct{}{}
		<-hold
		io.WriteString(w, "at last")
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(o.release) // before srv.Close, which waits for the handlers
	data := filepath.Join(t.TempDir(), "data")
	return startProcess(t, nil, append(freeListeners(), "--origin", srv.URL, "--active", "5", "--data", data)...).up(), o
}

// awaitRefused waits until nobody listens at url any more.
func awaitRefused(t *testing.T, url string) {
	t.Helper()
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			return
		}
		c.Close()
	}
	t.Errorf("%s still takes connections", url)
}

func TestTakenPortEndsTheStart(t *testing.T) {
	quiet(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := startProcess(t, nil, "--origin", "http://127.0.0.1:1", "--active", "5", "--listen", l.Addr().String(), "--admin-listen", "127.0.0.1:0")
	if code := p.exit(); code != 1 {
		t.Errorf("exit %d", code)
	}
	for _, want := range []string{l.Addr().String(), "is taken by", "--listen"} {
		if !strings.Contains(p.log(), want) {
			t.Errorf("no %q in %s", want, p.log())
		}
	}
}

func TestTwoOnOneFolder(t *testing.T) {
	quiet(t)
	data := filepath.Join(t.TempDir(), "data")
	args := append(freeListeners(), "--origin", "http://127.0.0.1:1", "--active", "5", "--data", data)
	startProcess(t, nil, args...).up()
	p := startProcess(t, nil, args...)
	if code := p.exit(); code != 1 || !strings.Contains(p.log(), data) {
		t.Errorf("exit %d: %s", code, p.log())
	}
}
