// Package redistest starts real Redis servers for tests: on ports outside the range that the kernel gives out by itself,
// so that a server that is killed finds its port free again, in temporary folders, ended with the test.
package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// patience is for what happens at once on an idle machine.
const patience = 60 * time.Second

// Server is one redis-server, or one Sentinel. Its methods are for the test's goroutine.
type Server struct {
	Addr string // host:port; that of tls-port where the arguments set one
	Host string
	Port int
	Dir  string

	t        testing.TB
	program  string
	args     []string
	cmd      *exec.Cmd
	mu       sync.Mutex
	log      strings.Builder
	password string
}

// Need skips the test where a program is missing, or fails it under USHER_TEST_ALL=1.
func Need(t testing.TB, program, pkg string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("USHER_TEST_ALL") == "1" {
			t.Fatalf("%s is missing: apt-get install %s", program, pkg)
		}
		t.Skipf("needs %s, which is not installed (apt-get install %s)", program, pkg)
	}
}

// Start runs a server on 127.0.0.1 that keeps nothing on disk unless args say so. {dir} in args is its folder, {port}
// its port.
func Start(t testing.TB, args ...string) *Server { return StartAt(t, "127.0.0.1", args...) }

// StartAt is Start on an address of this machine.
func StartAt(t testing.TB, host string, args ...string) *Server {
	t.Helper()
	Need(t, "redis-server", "redis-server")
	return start(t, &Server{t: t, program: "redis-server", Host: host}, append([]string{
		"--port", "{port}", "--bind", host, "--dir", "{dir}", "--save", "", "--protected-mode", "no", "--enable-debug-command", "local"}, args...))
}

func start(t testing.TB, s *Server, args []string) *Server {
	t.Helper()
	s.Dir = t.TempDir()
	t.Cleanup(s.Kill)
	for range 50 {
		s.Port = 20000 + rand.IntN(10000)
		s.Addr = net.JoinHostPort(s.Host, strconv.Itoa(s.Port))
		if l, err := net.Listen("tcp", s.Addr); err != nil {
			continue // somebody's
		} else {
			l.Close() // Redis says so itself if it is taken between now and then, and another one is tried
		}
		s.args = nil
		for i, a := range args {
			s.args = append(s.args, strings.NewReplacer("{dir}", s.Dir, "{port}", strconv.Itoa(s.Port)).Replace(a))
			if a == "--requirepass" {
				s.password = args[i+1]
			}
		}
		err := s.run()
		if err == nil {
			return s
		}
		if !strings.Contains(err.Error(), "Address already in use") {
			t.Fatal(err)
		}
	}
	t.Fatal("no free port between 20000 and 29999")
	return nil
}

// run starts the process and returns once it takes connections.
func (s *Server) run() error {
	s.cmd = exec.Command(s.program, s.args...)
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	s.cmd.Stderr = s.cmd.Stdout
	if err := s.cmd.Start(); err != nil {
		return err
	}
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		said := false
		for in := bufio.NewScanner(out); in.Scan(); {
			line := in.Text()
			s.mu.Lock()
			s.log.WriteString(line + "\n")
			s.mu.Unlock()
			if !said && (strings.Contains(line, "eady to accept connections") || strings.Contains(line, "Sentinel ID is")) {
				said = true
				close(ready)
			}
		}
		_, _ = io.Copy(io.Discard, out)
	}()
	select {
	case <-ready:
		return nil
	case <-ended:
		_ = s.cmd.Wait()
		s.cmd = nil
		return fmt.Errorf("%s ended: %s", s.program, s.Log())
	case <-time.After(patience):
		return errors.New(s.program + " does not start: " + s.Log())
	}
}

// Log is what the server printed.
func (s *Server) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// Kill is kill -9. Killing a dead one does nothing.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Stop is an orderly end.
func (s *Server) Stop() { s.end(syscall.SIGTERM) }

func (s *Server) end(sig syscall.Signal) {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Signal(sig)
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Signal sends a signal to the process.
func (s *Server) Signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// Again starts a server that was ended, with its folder, at its port.
func (s *Server) Again() {
	s.t.Helper()
	if err := s.run(); err != nil {
		s.t.Fatal(err)
	}
}

// Do asks the server for something by a connection of its own.
func (s *Server) Do(args ...string) (rueidis.RedisMessage, error) {
	s.t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr}, Password: s.password, DisableCache: true, ForceSingleClient: true, AlwaysRESP2: true, DisableRetry: true})
	if err != nil {
		return rueidis.RedisMessage{}, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.Do(ctx, c.B().Arbitrary(args...).Build()).ToMessage()
}

// Must is Do where no answer ends the test.
func (s *Server) Must(args ...string) string {
	s.t.Helper()
	m, err := s.Do(args...)
	if err != nil && !rueidis.IsRedisNil(err) {
		s.t.Fatalf("redis %s: %v", strings.Join(args, " "), err)
	}
	text, err := m.ToString()
	if err != nil {
		return m.String()
	}
	return text
}

// Info is one field of INFO; "" while the server does not answer.
func (s *Server) Info(field string) string {
	s.t.Helper()
	m, err := s.Do("INFO")
	if err != nil {
		return ""
	}
	text, _ := m.ToString()
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			return value
		}
	}
	return ""
}

// Replica starts a replica of s and returns once it has all that s has.
func (s *Server) Replica(args ...string) *Server {
	s.t.Helper()
	r := StartAt(s.t, s.Host, append([]string{"--replicaof", s.Host, strconv.Itoa(s.Port), "--repl-diskless-sync-delay", "0"}, args...)...)
	Until(s.t, "the replica follows", func() bool { return r.Info("master_link_status") == "up" })
	// After a diskless copy nothing more is sent before the replica's first sign of life, up to a second later.
	Until(s.t, "writes arrive at the replica", func() bool {
		s.Must("SET", "probe", "x")
		s.Must("DEL", "probe")
		m, err := s.Do("WAIT", s.Info("connected_slaves"), "1000")
		if err != nil {
			return false
		}
		n, err := m.AsInt64()
		return err == nil && n > 0 && strconv.FormatInt(n, 10) == s.Info("connected_slaves")
	})
	return r
}

// Sentinel starts a Sentinel that watches master under the name mymaster and needs quorum ones to agree.
func Sentinel(t testing.TB, master *Server, quorum int, lines ...string) *Server {
	t.Helper()
	Need(t, "redis-server", "redis-server")
	s := &Server{t: t, program: "redis-server", Host: master.Host}
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor mymaster %s %d %d\nsentinel down-after-milliseconds mymaster 1500\nsentinel failover-timeout mymaster 10000\n%s\n",
		master.Host, master.Port, quorum, strings.Join(lines, "\n"))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, s, []string{conf, "--sentinel", "--port", "{port}", "--bind", master.Host, "--dir", "{dir}", "--protected-mode", "no"})
	replicas := master.Info("connected_slaves") // it asks the master every ten seconds, and promotes only whom it knows
	Until(t, "the Sentinel knows the replicas", func() bool {
		m, err := s.Do("SENTINEL", "MASTER", "mymaster")
		if err != nil {
			return false
		}
		fields, _ := m.AsStrMap()
		return fields["num-slaves"] == replicas
	})
	return s
}

// Until waits for what happens at once on an idle machine.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
