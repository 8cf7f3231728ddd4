package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
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

func opts(d affinity.Store) gateway.Options {
	return gateway.Options{
		Space: "site", Directory: d, Secret: secret, Key: gateway.Key{Query: "account", JSON: "account"},
		Health: gateway.Health{Every: 100 * time.Millisecond, Timeout: 300 * time.Millisecond, FailAfter: 1500 * time.Millisecond},
	}
}

// runInstance is a process of its own: an Owned, or with peers a Peer.
func runInstance() error {
	id, redisAddr, listen := os.Getenv("GATEWAY_TEST_INSTANCE"), os.Getenv("REDIS"), os.Getenv("LISTEN")
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redisAddr}, DisableCache: true})
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

// kill is kill -9.
func (in *instance) kill() {
	if in.cmd != nil {
		_ = in.cmd.Process.Kill()
		_ = in.cmd.Wait()
		in.cmd = nil
	}
}

// redisServer is one that a test can stop and start again.
type redisServer struct {
	t    *testing.T
	addr string
	cmd  *exec.Cmd
}

func startRedis(t *testing.T) string { return newRedis(t).addr }

func newRedis(t *testing.T) *redisServer {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("USHER_TEST_ALL") == "1" {
			t.Fatal("redis-server is missing: apt-get install redis-server")
		}
		t.Skip("needs redis-server, which is not installed")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &redisServer{t: t, addr: l.Addr().String()}
	l.Close()
	t.Cleanup(r.kill)
	r.start()
	return r
}

// start starts it empty.
func (r *redisServer) start() {
	r.t.Helper()
	_, port, _ := net.SplitHostPort(r.addr)
	r.cmd = exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", r.t.TempDir())
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, "redis-server answers", func() bool {
		c, err := net.Dial("tcp", r.addr)
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
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}
