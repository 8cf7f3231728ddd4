package redis_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/gate"
	"github.com/ushergo/usher/gate/gatetest"
)

// gateServers are Redis servers of one test.
type gateServers struct {
	t       testing.TB
	addrs   []string
	cluster bool
	cmds    []*exec.Cmd
	args    [][]string
}

func startGateServers(t testing.TB, n int, cluster bool, extra ...string) *gateServers {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("USHER_TEST_ALL") == "1" {
			t.Fatal("redis-server is missing: apt-get install redis-server")
		}
		t.Skip("needs redis-server, which is not installed")
	}
	s := &gateServers{t: t, cluster: cluster, cmds: make([]*exec.Cmd, n)}
	t.Cleanup(func() {
		for i := range s.cmds {
			s.kill(i)
		}
	})
	for i := range n {
		addr, bus := freeAddr(t), freeAddr(t)
		_, port, _ := net.SplitHostPort(addr)
		_, busPort, _ := net.SplitHostPort(bus)
		args := []string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir()}
		if cluster {
			args = append(args, "--cluster-enabled", "yes", "--cluster-port", busPort, "--cluster-node-timeout", "2000")
		}
		s.addrs, s.args = append(s.addrs, addr), append(s.args, append(args, extra...))
		s.start(i)
	}
	if cluster {
		s.join()
	}
	return s
}

func freeAddr(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (s *gateServers) start(i int) {
	s.t.Helper()
	s.cmds[i] = exec.Command("redis-server", s.args[i]...)
	if err := s.cmds[i].Start(); err != nil {
		s.t.Fatal(err)
	}
	s.until(fmt.Sprint("redis-server answers: ", s.args[i]), func() bool {
		c, err := net.Dial("tcp", s.addrs[i])
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (s *gateServers) until(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(60 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not within a minute: %s", what)
		}
	}
}

func (s *gateServers) kill(i int) {
	if cmd := s.cmds[i]; cmd != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		s.cmds[i] = nil
	}
}

// join makes a Cluster of the servers, each with its share of the slots.
func (s *gateServers) join() {
	s.t.Helper()
	n := len(s.addrs)
	var clients []rueidis.Client
	for i, addr := range s.addrs {
		c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true})
		if err != nil {
			s.t.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
		must(s.t, c, "CLUSTER", "ADDSLOTSRANGE", fmt.Sprint(16384*i/n), fmt.Sprint(16384*(i+1)/n-1))
		must(s.t, c, "CLUSTER", "SET-CONFIG-EPOCH", fmt.Sprint(i+1))
	}
	for i, addr := range s.addrs[1:] {
		host, port, _ := net.SplitHostPort(addr)
		busPort := s.args[i+1][len(s.args[i+1])-3]
		for j, a := range s.args[i+1] {
			if a == "--cluster-port" {
				busPort = s.args[i+1][j+1]
			}
		}
		must(s.t, clients[0], "CLUSTER", "MEET", host, port, busPort)
	}
	for _, c := range clients {
		s.until("the Cluster is whole", func() bool {
			info, _ := c.Do(context.Background(), c.B().ClusterInfo().Build()).ToString()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprint("cluster_known_nodes:", n))
		})
	}
}

func must(t testing.TB, c rueidis.Client, args ...string) rueidis.RedisResult {
	t.Helper()
	r := c.Do(context.Background(), c.B().Arbitrary(args...).Build())
	if err := r.Error(); err != nil && !rueidis.IsRedisNil(err) {
		t.Fatalf("%v: %v", args, err)
	}
	return r
}

func (s *gateServers) client() rueidis.Client {
	s.t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: s.addrs, DisableCache: true, ForceSingleClient: !s.cluster})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

func (s *gateServers) gates(opts redis.GateOptions) *redis.Gates {
	s.t.Helper()
	g, err := redis.NewGates(context.Background(), s.client(), opts)
	if err != nil {
		s.t.Fatal(err)
	}
	return g
}

func TestGateConformance(t *testing.T) {
	for _, tc := range []struct {
		name    string
		servers int
		cluster bool
	}{{"single", 1, false}, {"cluster", 3, true}} {
		t.Run(tc.name, func(t *testing.T) {
			s := startGateServers(t, tc.servers, tc.cluster)
			gatetest.Run(t, func(*testing.T) gate.Store { return s.gates(redis.GateOptions{}) }, gatetest.Abilities{
				Peer:    func(*testing.T, gate.Store) gate.Store { return s.gates(redis.GateOptions{}) },
				Restart: func(*testing.T, gate.Store) gate.Store { return s.gates(redis.GateOptions{}) },
			})
		})
	}
}
