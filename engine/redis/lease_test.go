package redis_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/lease/leasetest"
)

// leaseServer is a Redis of one test's own, behind a socket file, so that it can be killed and started again in its place.
type leaseServer struct {
	t    *testing.T
	dir  string
	sock string
	cmd  *exec.Cmd
	lost atomic.Bool // whether answers are lost now and then
	n    atomic.Int32
}

func newLeaseServer(t *testing.T) *leaseServer {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("USHER_TEST_ALL") == "1" {
			t.Fatal("redis-server is missing: apt-get install redis-server")
		}
		t.Skip("needs redis-server, which is not installed")
	}
	dir, err := os.MkdirTemp("", "lease") // shorter than t.TempDir: a socket's path has a bound
	if err != nil {
		t.Fatal(err)
	}
	s := &leaseServer{t: t, dir: dir, sock: filepath.Join(dir, "s")}
	t.Cleanup(func() { s.kill(); _ = os.RemoveAll(dir) })
	s.start()
	return s
}

func (s *leaseServer) start() {
	s.t.Helper()
	var out bytes.Buffer
	s.cmd = exec.Command("redis-server", "--port", "0", "--unixsocket", s.sock, "--save", "", "--appendonly", "yes", "--appendfsync", "always", "--dir", s.dir)
	s.cmd.Stdout, s.cmd.Stderr = &out, &out
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if c, err := net.Dial("unix", s.sock); err == nil { // it listens, and may still be loading
			answer := make([]byte, 5)
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, _ = c.Write([]byte("PING\r\n"))
			_, err = io.ReadFull(c, answer)
			_ = c.Close()
			if err == nil && string(answer) == "+PONG" {
				return
			}
		}
		if time.Now().After(end) {
			s.t.Fatalf("redis-server does not answer: %s", out.String())
		}
	}
}

func (s *leaseServer) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
		_ = os.Remove(s.sock)
	}
}

// lossy loses an answer now and then, and the connection with it: the server has done what it was asked.
type lossy struct {
	net.Conn
	s *leaseServer
}

func (c lossy) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.s.lost.Load() && rand.IntN(40) == 0 {
		c.s.n.Add(1)
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}

func (s *leaseServer) client() rueidis.Client {
	s.t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{s.sock}, DisableCache: true, ForceSingleClient: true,
		DialCtxFn: func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			c, err := d.DialContext(ctx, "unix", s.sock)
			if err != nil {
				return nil, err
			}
			return lossy{c, s}, nil
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

func leases(t *testing.T, c rueidis.Client, space string) *redis.Leases {
	t.Helper()
	s, err := redis.NewLeases(c, space)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLeases(t *testing.T) {
	s := newLeaseServer(t)
	a, b := s.client(), s.client()
	spaces := 0
	leasetest.TestStore(t, func(t *testing.T) leasetest.Fixture {
		spaces++
		space := fmt.Sprint("test", spaces)
		return leasetest.Fixture{
			Store: leases(t, a, space), Peer: leases(t, b, space),
			Restart: func(t *testing.T) lease.Store { // kill -9, and what was answered is there
				s.kill()
				s.start()
				return leases(t, a, space)
			},
			Forget: func(t *testing.T) {
				if err := a.Do(t.Context(), a.B().Flushall().Build()).Error(); err != nil {
					t.Fatal(err)
				}
			},
			Hurt: func(t *testing.T) func() {
				s.kill() // under those who use it
				s.start()
				s.lost.Store(true)
				before := s.n.Load()
				return func() {
					s.lost.Store(false)
					t.Logf("%d connections ended in place of an answer", s.n.Load()-before)
				}
			},
		}
	})
}

func TestLeasesInACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three servers")
	}
	c := startGateServers(t, 3, true).client()
	spaces := 0
	leasetest.TestStore(t, func(t *testing.T) leasetest.Fixture {
		if strings.Contains(t.Name(), "Fleet") {
			t.Skip("the same as on a single server")
		}
		spaces++
		return leasetest.Fixture{Store: leases(t, c, fmt.Sprint("test", spaces))}
	})
}

func TestLeasesRefuseWhatIsNotTheirs(t *testing.T) {
	c := newLeaseServer(t).client()
	s := leases(t, c, "s")
	do := func(args ...string) {
		t.Helper()
		if err := c.Do(t.Context(), c.B().Arbitrary(args[0]).Keys(args[1]).Args(args[2:]...).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	put := func() error {
		_, err := s.Put(t.Context(), lease.Put{ID: "k", Desired: lease.Started})
		return err
	}
	workers := func() error { _, err := s.Workers(t.Context()); return err }
	for _, tc := range []struct {
		key  string
		make []string
		ask  func() error
	}{
		{"usher:lease:{s}", []string{"HSET", "usher:lease:{s}", "v", "2"}, put},
		{"usher:lease:{s}", []string{"SET", "usher:lease:{s}", "x"}, put},
		{"usher:lease:{s}:r:k", []string{"SET", "usher:lease:{s}:r:k", "x"}, put},
		{"usher:lease:{s}:r:k", []string{"HSET", "usher:lease:{s}:r:k", "v", "9"}, put},
		{"usher:lease:{s}:workers", []string{"SET", "usher:lease:{s}:workers", "x"}, workers},
		{"usher:lease:{s}:workers", []string{"HSET", "usher:lease:{s}:workers", "w", "x"}, workers},
	} {
		do(tc.make...)
		if err := tc.ask(); !errors.Is(err, lease.ErrForeign) || !strings.Contains(err.Error(), tc.key) {
			t.Errorf("%v: %v", tc.make, err)
		}
		if n, _ := c.Do(t.Context(), c.B().Exists().Key(tc.key).Build()).AsInt64(); n != 1 {
			t.Errorf("%s was deleted", tc.key)
		}
		do("DEL", tc.key)
	}
	if err := put(); err != nil {
		t.Error(err)
	}
	// what a change would have to write beside the row is looked at before: no half of it is done
	o := lease.Owner{Worker: "w", Generation: 1}
	fresh := func() error {
		_, err := s.Put(t.Context(), lease.Put{ID: "fresh", Desired: lease.Started})
		return err
	}
	take := func() error { _, err := s.Take(t.Context(), lease.Take{ID: "k", To: o}); return err }
	remove := func() error { _, err := s.Delete(t.Context(), "k"); return err }
	orphans := func() error { _, err := s.Orphans(t.Context(), nil, 10); return err }
	list := func() (ids []string) {
		t.Helper()
		bs, err := s.Orphans(t.Context(), nil, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range bs {
			ids = append(ids, b.ID)
		}
		return ids
	}
	for _, tc := range []struct {
		key string
		ask []func() error
	}{
		{"usher:lease:{s}:owners", []func() error{fresh, take, remove, orphans}},
		{"usher:lease:{s}:of:-", []func() error{fresh, take, remove, orphans}},
		{"usher:lease:{s}:of:w#1", []func() error{take}},
		{"usher:lease:{s}:ids", []func() error{fresh, remove}},
	} {
		do("COPY", tc.key, "usher:lease:{s}:saved")
		do("SET", tc.key, "x")
		for i, ask := range tc.ask {
			if err := ask(); !errors.Is(err, lease.ErrForeign) || !strings.Contains(err.Error(), tc.key) {
				t.Errorf("%s, %d: %v", tc.key, i, err)
			}
		}
		do("DEL", tc.key)
		do("COPY", "usher:lease:{s}:saved", tc.key)
		do("DEL", "usher:lease:{s}:saved")
		if ids := list(); len(ids) != 1 || ids[0] != "k" {
			t.Errorf("%s: after the mend %q are nobody's, want k alone", tc.key, ids)
		}
	}
	if err := fresh(); err != nil {
		t.Error(err)
	}
	if ids := list(); len(ids) != 2 {
		t.Errorf("%q are nobody's, want two", ids)
	}
}
