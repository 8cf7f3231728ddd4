package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a server that we started.
type process struct {
	cmd  *exec.Cmd
	base string
	logs *bytes.Buffer
	done chan struct{}
}

// stage starts servers and stops them all.
type stage struct{ all []*process }

func (s *stage) start(ctx context.Context, addr, path string, cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, base: "http://" + addr, logs: &bytes.Buffer{}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.logs, p.logs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its workers are counted and stopped with it
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { cmd.Wait(); close(p.done) }()
	s.all = append(s.all, p)
	deadline := time.Now().Add(20 * time.Second)
	for {
		resp, err := http.Get(p.base + path)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode < 500 {
				return p, nil
			}
		}
		select {
		case <-p.done:
			return nil, fmt.Errorf("%s ended at once:\n%s", cmd.Path, p.logs)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s does not answer at %s", cmd.Path, addr)
		}
	}
}

func (s *stage) stop() {
	for _, p := range s.all {
		syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM)
	}
	for _, p := range s.all {
		select {
		case <-p.done:
		case <-time.After(10 * time.Second):
			syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		}
	}
	s.all = nil
}

// cpu is what the process and its workers have used so far.
func (p *process) cpu() time.Duration {
	group := strconv.Itoa(p.cmd.Process.Pid)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var ticks int64
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, ok := strings.Cut(string(text), ") ") // after the name, which may hold anything
		f := strings.Fields(rest)
		if !ok || len(f) < 13 || f[2] != group {
			continue
		}
		user, _ := strconv.ParseInt(f[11], 10, 64)
		system, _ := strconv.ParseInt(f[12], 10, 64)
		ticks += user + system
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100 on Linux
}

func freeAddr() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err) // no loopback: nothing here can work
	}
	defer l.Close()
	return l.Addr().String()
}

// self starts this program in one of its roles.
func (s *stage) self(ctx context.Context, role string, args ...string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return s.role(ctx, exe, role, args...)
}

func (s *stage) role(ctx context.Context, exe, role string, args ...string) (*process, error) {
	addr := freeAddr()
	return s.start(ctx, addr, "/", exec.Command(exe, append([]string{"peer", role, addr}, args...)...))
}

func (s *stage) usher(ctx context.Context, o *options, origin string, active int) (*process, error) {
	addr, dir := freeAddr(), filepath.Join(o.dir, "data-"+token(6))
	file := filepath.Join(o.dir, "usher-"+token(6)+".yaml")
	text := fmt.Sprintf(usherYAML, addr, freeAddr(), dir, origin, active)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return s.start(ctx, addr, "/health/ready", exec.Command(o.usher, "serve", "--config", file, "--log-level", "warn"))
}

const usherYAML = `public: {listen: %q}
admin: {listen: %q}
engine: {kind: memory, dir: %q}
rooms:
  - id: main
    match: [{path: /}]
    origin: %q
    capacity: {active: %d}
    session: {claim: 0}
    queue: {max_waiting: 10000000}
`

// admitted enters n visitors and returns their tickets.
func admitted(ctx context.Context, base string, n int) ([]string, error) {
	var tickets []string
	for range n {
		body := fmt.Sprintf(`{"request_id":"%s"}`, token(32))
		req, err := http.NewRequestWithContext(ctx, "POST", base+"/.usher/v1/rooms/main/enter", strings.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		var a struct{ Ticket, State string }
		err = json.NewDecoder(resp.Body).Decode(&a)
		resp.Body.Close()
		if err != nil || a.State != "admitted" {
			return nil, fmt.Errorf("enter answered %s, state %q, %v", resp.Status, a.State, err)
		}
		tickets = append(tickets, a.Ticket)
	}
	return tickets, nil
}

func (s *stage) nginx(ctx context.Context, o *options, origin string) (*process, error) {
	bin, err := exec.LookPath("nginx")
	if err != nil {
		return nil, err
	}
	addr, dir := freeAddr(), filepath.Join(o.dir, "nginx")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "nginx.conf")
	text := strings.NewReplacer("DIR", dir, "ADDR", addr, "ORIGIN", strings.TrimPrefix(origin, "http://"), "CPUS", strconv.Itoa(runtime.NumCPU())).Replace(nginxConf)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return s.start(ctx, addr, "/", exec.Command(bin, "-p", dir, "-c", conf))
}

const nginxConf = `daemon off;
worker_processes CPUS;
pid DIR/pid;
error_log DIR/error.log crit;
events { worker_connections 4096; }
http {
  access_log off;
  client_body_temp_path DIR/body; proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/f; uwsgi_temp_path DIR/u; scgi_temp_path DIR/s;
  keepalive_requests 100000000;
  upstream origin { server ORIGIN; keepalive 256; keepalive_requests 100000000; }
  server {
    listen ADDR;
    location / { proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection ""; }
  }
}
`

func (s *stage) haproxy(ctx context.Context, o *options, origin string) (*process, error) {
	bin, err := exec.LookPath("haproxy")
	if err != nil {
		return nil, err
	}
	addr, conf := freeAddr(), filepath.Join(o.dir, "haproxy.cfg")
	text := strings.NewReplacer("ADDR", addr, "ORIGIN", strings.TrimPrefix(origin, "http://"), "CPUS", strconv.Itoa(runtime.NumCPU())).Replace(haproxyConf)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return s.start(ctx, addr, "/", exec.Command(bin, "-db", "-f", conf))
}

const haproxyConf = `global
  nbthread CPUS
  maxconn 4096
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend front
  bind ADDR
  default_backend back
backend back
  server origin ORIGIN
`
