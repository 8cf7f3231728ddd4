package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	"github.com/redis/rueidis"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/engine/redis"
)

const secret = "a secret of the gateways"

// TestMain is an instance when the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv("GATEWAY_TEST_INSTANCE") != "" {
		if err := runInstance(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// site is what the tests' instances do with a session.
func site(id string) gateway.App[string] {
	return func(w http.ResponseWriter, r *http.Request, s affinity.Session[string]) {
		switch {
		case strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
			conn, rw, _, err := ws.UpgradeHTTP(r, w)
			if err != nil {
				return
			}
			defer conn.Close()
			for {
				msg, op, err := wsutil.ReadClientData(struct {
					io.Reader
					io.Writer
				}{rw, conn})
				if err != nil {
					return
				}
				if wsutil.WriteServerMessage(conn, op, append([]byte(id+":"), msg...)) != nil {
					return
				}
			}
		case r.URL.Path == "/stream":
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: %s\n\n", id)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case r.URL.Path == "/hang":
			<-r.Context().Done()
		default:
			body, _ := io.ReadAll(r.Body)
			_ = json.NewEncoder(w).Encode(answer{id, s.Generation, s.Key, string(body), r.Header})
		}
	}
}

type answer struct {
	Instance   string
	Generation uint64
	Key        string
	Body       string
	Header     http.Header
}

// opts are patient: a machine that is busy with other tests must not make a living instance look dead. A process that was
// killed refuses connections and is dead at once.
func opts(d affinity.Store) gateway.Options {
	return gateway.Options{
		Space: "site", Directory: d, Secret: secret, Key: gateway.Key{Query: "account", JSON: "account"},
		Health: gateway.Health{Every: 100 * time.Millisecond, Timeout: 5 * time.Second, FailAfter: time.Minute},
	}
}

// runInstance is a process of its own: an Owned, or with peers a Peer.
func runInstance() error {
	id, redisAddr, listen := os.Getenv("GATEWAY_TEST_INSTANCE"), os.Getenv("REDIS"), os.Getenv("LISTEN")
	c, err := dialRedis(redisAddr)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	d := redis.NewDirectory(c)
	o, err := affinity.Open(d, affinity.Options[string]{
		Space: "site", Instance: id, Addr: l.Addr().String(), Every: 300 * time.Millisecond,
		Build: func(_ context.Context, key string, _ uint64) (string, error) { return "session of " + key, nil },
	})
	if err != nil {
		return err
	}
	var h http.Handler = gateway.Owned(o, site(id), gateway.OwnedOptions{Secret: secret})
	if os.Getenv("PEER") != "" {
		if h, err = gateway.Peer(o, site(id), opts(d), gateway.OwnedOptions{}); err != nil {
			return err
		}
	}
	go func() { // the test holds the other end
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println(l.Addr())
	return http.Serve(l, h)
}

type instance struct {
	t    *testing.T
	id   string
	addr string
	cmd  *exec.Cmd
}

func startInstance(t *testing.T, id, redisAddr, listen string, env ...string) *instance {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), append(env, "GATEWAY_TEST_INSTANCE="+id, "REDIS="+redisAddr, "LISTEN="+listen)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := &instance{t: t, id: id, cmd: cmd}
	t.Cleanup(in.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("instance %s: %v %s", id, err, stderr.String())
	}
	in.addr = strings.TrimSpace(line)
	return in
}

// ownIP is a loopback address that only this process uses, so that a port of it which an instance left is not somebody
// else's a moment later.
var ownIP = func() string {
	ip := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	l, err := net.Listen("tcp", ip+":0")
	if err != nil {
		return "127.0.0.1" // not all systems have the whole of 127.0.0.0/8
	}
	l.Close()
	return ip
}()

// deadAddr refuses connections until the test has ended: it is bound, and nobody listens.
func deadAddr(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint("127.0.0.1:", sa.(*syscall.SockaddrInet4).Port)
}

// kill is kill -9.
func (in *instance) kill() {
	if in.cmd != nil {
		_ = in.cmd.Process.Kill()
		_ = in.cmd.Wait()
		in.cmd = nil
	}
}

// pause stops a process as SIGSTOP does, and returns when all of it stands still. The signal alone says nothing: on a busy
// machine the process goes on for a while.
func pause(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process stands still", func() bool {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(p.Pid, &ws, syscall.WUNTRACED|syscall.WNOHANG, nil)
		if err != nil && err != syscall.EINTR {
			t.Fatal(err)
		}
		return pid == p.Pid && ws.Stopped()
	})
}

func resume(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// redisServer is one that a test can stop and start again. It listens on a Unix socket: nobody else takes that meanwhile.
type redisServer struct {
	t         *testing.T
	dir, sock string
	cmd       *exec.Cmd
}

func startRedis(t *testing.T) string { return newRedis(t).sock }

func newRedis(t *testing.T) *redisServer {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("USHER_TEST_ALL") == "1" {
			t.Fatal("redis-server is missing: apt-get install redis-server")
		}
		t.Skip("needs redis-server, which is not installed")
	}
	dir := t.TempDir()
	r := &redisServer{t: t, dir: dir, sock: filepath.Join(dir, "redis.sock")}
	t.Cleanup(r.kill)
	r.start()
	return r
}

// start starts it empty.
func (r *redisServer) start() {
	r.t.Helper()
	_ = os.Remove(r.sock)
	r.cmd = exec.Command("redis-server", "--port", "0", "--unixsocket", r.sock, "--save", "", "--appendonly", "no", "--dir", r.dir)
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, "redis-server answers", func() bool {
		c, err := net.Dial("unix", r.sock)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (r *redisServer) kill() {
	if r.cmd != nil {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
		r.cmd = nil
	}
}

func client(t *testing.T, addr string) rueidis.Client {
	t.Helper()
	c, err := dialRedis(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func dialRedis(sock string) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"redis:0"}, DisableCache: true, ForceSingleClient: true,
		DialCtxFn: func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "unix", sock)
		},
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}
