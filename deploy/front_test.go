package deploy_test

import (
	"bufio"
	"context"
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
)

// origin is the site behind usher: it tells what it was asked, and by whom.
type origin struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
}

func newOrigin(t *testing.T) *origin {
	o := &origin{}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		line := fmt.Sprintf("%s %s %d %s %s %s", r.Method, r.URL.Path, len(b), r.Host, r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Forwarded-Proto"))
		o.mu.Lock()
		o.asked = append(o.asked, line)
		o.mu.Unlock()
		if r.URL.Path == "/premiere/breaks" { // in the middle of an answer
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				conn.Close()
			}
			return
		}
		fmt.Fprint(w, line)
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *origin) times(part string) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, line := range o.asked {
		if strings.HasPrefix(line, part) {
			n++
		}
	}
	return n
}

// front is a server in front of two ushers that share a Redis.
type front struct {
	name   string
	file   string
	listen string // what the file says
	cmd    func(t *testing.T, file, dir string) *exec.Cmd
}

func fronts() []front {
	return []front{
		{"nginx", "nginx/usher.conf", "127.0.0.1:8000", func(t *testing.T, file, dir string) *exec.Cmd {
			nginx := program(t, "nginx", "/usr/sbin/nginx")
			var temps string
			for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
				temps += kind + "_temp_path " + filepath.Join(dir, kind) + ";\n"
			}
			main := filepath.Join(dir, "nginx.conf")
			if err := os.WriteFile(main, []byte("daemon off; pid "+dir+"/pid; error_log stderr warn; events {}\nhttp { access_log off;\n"+temps+"include "+file+";\n}\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			return exec.Command(nginx, "-p", dir, "-c", main)
		}},
		{"HAProxy", "haproxy/haproxy.cfg", "127.0.0.1:8000", func(t *testing.T, file, _ string) *exec.Cmd {
			return exec.Command(program(t, "haproxy", "/usr/sbin/haproxy"), "-db", "-f", file)
		}},
		{"Caddy", "caddy/Caddyfile", "http://tickets.example.com:8000", func(t *testing.T, file, dir string) *exec.Cmd {
			cmd := exec.Command(program(t, "caddy"), "run", "--config", file, "--adapter", "caddyfile")
			cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
			return cmd
		}},
	}
}

const host = "tickets.example.com"

func TestServersInFront(t *testing.T) {
	bin := static(t)
	redis := startRedis(t)
	for _, f := range fronts() {
		t.Run(f.name, func(t *testing.T) { inFront(t, bin, redis, f) })
	}
}

// startRedis gives the address of one.
func startRedis(t *testing.T) string {
	t.Helper()
	server := program(t, "redis-server")
	for try := 1; ; try++ {
		addr := free(t)
		_, port, _ := net.SplitHostPort(addr)
		cmd := exec.Command(server, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
		out := start(t, cmd)
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if strings.Contains(out.text(), "Ready to accept connections") {
				return addr
			}
			if strings.Contains(out.text(), "Address already in use") {
				break
			}
		}
		if try == 3 {
			t.Fatalf("redis-server does not start:\n%s", out.text())
		}
	}
}

func inFront(t *testing.T, bin, redis string, f front) {
	o := newOrigin(t)
	room := "premiere-" + strings.ToLower(f.name) // the Redis is everybody's
	var nodes []*node
	for range 2 {
		nodes = append(nodes, serve(t, bin, t.TempDir(), "", `
public: {listen: "127.0.0.1:0", url: "http://`+host+`"}
engine: {kind: redis, addrs: ["`+redis+`"]}
node: {drain: 10s}
trusted_proxies: [127.0.0.1/32]
rooms:
  - {id: `+room+`, match: [{host: `+host+`, path: /premiere}], origin: "`+o.URL+`", capacity: {active: 1}}
`))
	}

	b, err := os.ReadFile(f.file)
	if err != nil {
		t.Fatal(err)
	}
	addr := free(t)
	_, port, _ := net.SplitHostPort(addr)
	text := string(b)
	for from, to := range map[string]string{
		f.listen:         strings.Replace(strings.Replace(f.listen, "127.0.0.1:8000", addr, 1), ":8000", ":"+port, 1),
		"127.0.0.1:8080": strings.TrimPrefix(nodes[0].public, "http://"), "127.0.0.1:8090": strings.TrimPrefix(nodes[1].public, "http://"),
	} {
		if !strings.Contains(text, from) {
			t.Fatalf("%s does not name %s", f.file, from)
		}
		text = strings.ReplaceAll(text, from, to)
	}
	dir := t.TempDir()
	for path := dir; len(path) > len(filepath.Clean(os.TempDir())); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil { // workers of a root's server run as another user
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, filepath.Base(f.file))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, f.cmd(t, file, dir))
	at := "http://127.0.0.1:" + port
	eventually(t, f.name+" has found an usher", func() bool {
		code, _ := ask(t, "GET", at+"/.usher/health/ready", "", "Host", host)
		return code == 200
	})

	// One is let in, by whichever node; the other waits, and says so to whichever node.
	api := at + "/.usher/v1/rooms/" + room
	enter := func() string {
		code, body := ask(t, "POST", api+"/enter", "", "Host", host)
		if code/100 != 2 {
			t.Fatalf("enter: %d %s", code, body)
		}
		_, rest, _ := strings.Cut(body, `"ticket":"`)
		ticket, _, _ := strings.Cut(rest, `"`)
		if ticket == "" {
			t.Fatalf("no ticket in %s", body)
		}
		return ticket
	}
	alice, bob := enter(), enter()
	as := func(ticket string) []string { return []string{"Host", host, "Usher-Ticket", ticket} }
	code, body := ask(t, "POST", at+"/premiere/buy", strings.Repeat("x", 100_000), append(as(alice), "X-Forwarded-For", "203.0.113.9")...)
	if code != 200 || body != "POST /premiere/buy 100000 "+host+" 127.0.0.1, 127.0.0.1 http" { // client, server in front; not what the client wrote
		t.Errorf("the site sees: %d %s", code, body)
	}
	if code, body := ask(t, "GET", at+"/premiere/buy", "", append(as(bob), "Accept", "application/json")...); code != 401 || !strings.Contains(body, "not_admitted") {
		t.Errorf("who waits: %d %s", code, body)
	}

	// What may have reached the site is not sent again.
	code, body = ask(t, "POST", at+"/premiere/breaks", "order", as(alice)...)
	if code != 502 || o.times("POST /premiere/breaks") != 1 {
		t.Errorf("%d, and the site was asked %d times: %s", code, o.times("POST /premiere/breaks"), body)
	}

	// News come as they are sent.
	news := stream(t.Context(), t, api+"/events", as(bob)...)
	waitFor(t, news, "WAITING")

	// A node stops, as in a rolling restart: nobody is refused while it does, and places stay.
	failed := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() {
		for ctx.Err() == nil {
			if code, body := ask(t, "GET", api+"/now", "", "Host", host); code != 200 {
				select {
				case failed <- fmt.Sprintf("%d %s", code, body):
				default:
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	if err := nodes[0].cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first node has gone", func() bool {
		code, _ := ask(t, "GET", nodes[0].admin+"/health/live", "")
		return code == 0
	})
	cancel()
	asking.Wait()
	select {
	case said := <-failed:
		t.Errorf("while a node stopped: %s", said)
	default:
	}
	if code, body := ask(t, "GET", api+"/status", "", as(bob)...); code != 200 || !strings.Contains(body, `"waiting"`) {
		t.Errorf("the place after it: %d %s", code, body)
	}
	news = stream(t.Context(), t, api+"/events", as(bob)...)
	if code, body := ask(t, "POST", api+"/leave", "", as(alice)...); code != 204 {
		t.Errorf("leave: %d %s", code, body)
	}
	waitFor(t, news, "ADMITTED")
	if code, _ := ask(t, "GET", at+"/premiere", "", as(bob)...); code != 200 {
		t.Errorf("who is admitted now: %d", code)
	}
}

// stream opens server-sent events until ctx ends, and gives their lines.
func stream(ctx context.Context, t *testing.T, url string, header ...string) <-chan string {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("events: %d %s", resp.StatusCode, b)
	}
	lines := make(chan string, 1000)
	go func() {
		defer resp.Body.Close()
		defer close(lines)
		for in := bufio.NewScanner(resp.Body); in.Scan(); {
			select {
			case lines <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return lines
}

func waitFor(t *testing.T, lines <-chan string, part string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatalf("the stream ended without %s", part)
			}
			if strings.Contains(line, part) {
				return
			}
		case <-deadline:
			t.Fatalf("no %s within a minute", part)
		}
	}
}
