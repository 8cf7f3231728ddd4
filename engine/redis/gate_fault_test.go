package redis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/gate"
)

func openGate(t *testing.T, s gate.Store, o gate.Options) *gate.Gate {
	t.Helper()
	g, err := gate.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

func TestGateLostCounterIsRebuilt(t *testing.T) { // cases/gate 5
	s := startGateServers(t, 1, false)
	c := s.client()
	g := openGate(t, s.gates(redis.GateOptions{}), gate.Options{Permits: 3})
	for range 2 {
		if _, err := g.Acquire(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
	}
	for _, lower := range []int{3, 2} { // the second time a lowered limit is remembered
		if _, err := g.Set(t.Context(), "k", lower); err != nil {
			t.Fatal(err)
		}
		must(t, c, "DEL", "k")
		st, err := g.Status(t.Context(), "k")
		if err != nil || st.Permits != int64(lower) || st.Held != 2 || st.Free != int64(lower)-2 {
			t.Errorf("limit %d: %+v, %v", lower, st, err)
		}
	}
	if _, err := g.Acquire(t.Context(), "k", gate.Wait(0)); !errors.Is(err, gate.ErrFull) {
		t.Errorf("got %v", err)
	}
}

func TestGateRefusesWhatIsNotOurs(t *testing.T) {
	s := startGateServers(t, 1, false)
	c := s.client()
	g := openGate(t, s.gates(redis.GateOptions{}), gate.Options{Permits: 3})
	for _, tc := range []struct {
		key  string
		make []string
	}{
		{"k", []string{"RPUSH", "k", "a"}},
		{"k", []string{"SET", "k", "twelve"}},
		{"{k}:timeout", []string{"SET", "{k}:timeout", "x"}},
		{"{k}:usher", []string{"SET", "{k}:usher", "x"}},
		{"{k}:usher", []string{"HSET", "{k}:usher", "v", "9"}},
	} {
		must(t, c, "FLUSHALL")
		must(t, c, tc.make...)
		_, err := g.Acquire(t.Context(), "k")
		if !errors.Is(err, gate.ErrUnavailable) || !strings.Contains(err.Error(), tc.key+" ") {
			t.Errorf("%v: %v", tc.make, err)
		}
		if n, _ := must(t, c, "DBSIZE").AsInt64(); n != 1 {
			t.Errorf("%v: %d keys afterwards", tc.make, n)
		}
	}
	must(t, c, "FLUSHALL")
	if _, err := g.Acquire(t.Context(), "k"); err != nil {
		t.Error(err)
	}
}

// TestGateServerIsKilled: waiters outlive the server; one that comes back empty draws greater fences.
func TestGateServerIsKilled(t *testing.T) { // cases/gate 8
	s := startGateServers(t, 1, false)
	g := openGate(t, s.gates(redis.GateOptions{}), gate.Options{Permits: 1})
	p, err := g.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	s.kill(0)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	_, err = g.Acquire(ctx, "k", gate.Wait(time.Second))
	cancel()
	if !errors.Is(err, gate.ErrUnavailable) && !errors.Is(err, gate.ErrUnknown) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a server: %v", err)
	}
	if g.Health() == nil {
		t.Error("healthy without a server")
	}
	s.start(0)
	var next *gate.Permit
	s.until("the gate works again", func() bool {
		next, err = g.Acquire(t.Context(), "k")
		return err == nil
	})
	if next.Fence() <= p.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), p.Fence())
	}
	if err := p.Release(t.Context()); !errors.Is(err, gate.ErrExpired) {
		t.Errorf("the lost permit: %v", err)
	}
	if err := p.Settle(t.Context(), "lost", time.Second); !errors.Is(err, gate.ErrStale) && err != nil {
		t.Errorf("settling by the lost permit: %v", err)
	}
}

// TestGateSubscriptionIsCut: messages are lost while the connection is; a waiter notices all the same.
func TestGateSubscriptionIsCut(t *testing.T) { // cases/gate 8
	s := startGateServers(t, 1, false)
	admin := s.client()
	g := openGate(t, s.gates(redis.GateOptions{}), gate.Options{Permits: 1})
	other := openGate(t, s.gates(redis.GateOptions{}), gate.Options{Permits: 1})
	p, err := other.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := g.Acquire(t.Context(), "k", gate.Wait(time.Minute))
		got <- err
	}()
	s.until("somebody waits", func() bool { return g.Stats().Waiting == 1 })
	s.until("it listens", func() bool {
		n, _ := must(t, admin, "PUBSUB", "NUMSUB", "redisson_sc:{k}").ToArray()
		if len(n) < 2 {
			return false
		}
		count, _ := n[1].AsInt64()
		return count > 0
	})
	must(t, admin, "CLIENT", "KILL", "TYPE", "pubsub")
	must(t, admin, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	s.until("released", func() bool { return p.Release(t.Context()) == nil })
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// TestGateHolderProcess is the process that TestGateKilledHolders kills.
func TestGateHolderProcess(t *testing.T) {
	addr := os.Getenv("USHER_GATE_HOLDER")
	if addr == "" {
		t.Skip("only as a child of TestGateKilledHolders")
	}
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	store, err := redis.NewGates(t.Context(), c, redis.GateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := openGate(t, store, gate.Options{Permits: 4}).Acquire(t.Context(), "k", gate.N(2), gate.Lease(time.Second), gate.Wait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("holds", p.Fence())
	select {} // until it is killed
}

// TestGateKilledHolders kills processes that hold permits with kill -9: those who wait get them
// when the lease is over, and the count is right.
func TestGateKilledHolders(t *testing.T) { // cases/gate 1
	s := startGateServers(t, 1, false)
	for range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestGateHolderProcess$", "-test.v")
		cmd.Env = append(os.Environ(), "USHER_GATE_HOLDER="+s.addrs[0])
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		holds := false
		for lines := bufio.NewScanner(out); !holds && lines.Scan(); {
			holds = strings.HasPrefix(lines.Text(), "holds")
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if !holds {
			t.Fatal("the child never held a permit")
		}
	}
	g := openGate(t, s.gates(redis.GateOptions{}), gate.Options{Permits: 4})
	for range 4 {
		if _, err := g.Acquire(t.Context(), "k", gate.Wait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := g.Status(t.Context(), "k"); err != nil || st.Held != 4 || st.Free != 0 {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestGateKeysGoByThemselves: keys that acquires made have an end, those that were set have none.
func TestGateKeysGoByThemselves(t *testing.T) {
	s := startGateServers(t, 1, false)
	c := s.client()
	g := openGate(t, s.gates(redis.GateOptions{}), gate.Options{Permits: 2, Idle: time.Hour})
	keys := func() (list []string) {
		list, _ = must(t, c, "KEYS", "*").AsStrSlice()
		return list
	}
	for range 3 {
		p, err := g.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Settle(t.Context(), "v", time.Second); err != nil {
			t.Fatal(err)
		}
		for _, key := range keys() {
			if ms, _ := must(t, c, "PTTL", key).AsInt64(); ms <= 0 || ms > time.Hour.Milliseconds() {
				t.Errorf("%s ends in %d ms", key, ms)
			}
		}
		if _, err := g.Reopen(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if err := p.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.Set(t.Context(), "k", 2); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys() {
		if ms, _ := must(t, c, "PTTL", key).AsInt64(); ms != -1 && !strings.Contains(key, ":id:") {
			t.Errorf("%s of a key that was set ends in %d ms", key, ms)
		}
	}
	if err := g.Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys() { // its fence, and the ids that may not be used again
		if ms, _ := must(t, c, "PTTL", key).AsInt64(); ms <= 0 || key != "{k}:usher" && !strings.Contains(key, ":id:") {
			t.Errorf("left after Delete: %s, which ends in %d ms", key, ms)
		}
	}
}

// TestGateFailoverLosesAGrant: a replica takes over that lacks the last grant, so the permit is granted twice; the second
// grant's fence is greater, so a database that looks at fences refuses the first holder's write.
func TestGateFailoverLosesAGrant(t *testing.T) { // cases/gate 9
	s := startGateServers(t, 2, false)
	node := func(addr string) rueidis.Client {
		c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	first, second := node(s.addrs[0]), node(s.addrs[1])
	on := func(c rueidis.Client) *gate.Gate {
		store, err := redis.NewGates(t.Context(), c, redis.GateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return openGate(t, store, gate.Options{Permits: 1})
	}
	host, port, _ := strings.Cut(s.addrs[0], ":")
	must(t, second, "REPLICAOF", host, port)
	before := on(first)
	earlier, err := before.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := earlier.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.until("the replica has it", func() bool {
		n, _ := must(t, second, "EXISTS", "{k}:usher").AsInt64()
		v, _ := must(t, second, "GET", "k").ToString()
		return n == 1 && v == "1"
	})
	must(t, second, "REPLICAOF", "NO", "ONE") // cut off, and promoted a little later
	lost, err := before.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	s.kill(0)
	after := on(second)
	again, err := after.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if again.Fence() <= lost.Fence() || lost.Fence() <= earlier.Fence() {
		t.Errorf("fences %d, %d, and %d after the failover", earlier.Fence(), lost.Fence(), again.Fence())
	}
	if err := after.Release(t.Context(), "k", lost.ID()); !errors.Is(err, gate.ErrExpired) {
		t.Errorf("the lost permit was released: %v", err)
	}
	if st, err := after.Status(t.Context(), "k"); err != nil || st.Held != 1 || st.Free != 0 {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestGateNodesTakeTurns: a node with one waiter beside a node whose callers never stop gets its turn.
func TestGateNodesTakeTurns(t *testing.T) { // cases/gate 10
	s := startGateServers(t, 1, false)
	busy, quiet := openGate(t, s.gates(redis.GateOptions{}), gate.Options{Permits: 1}), openGate(t, s.gates(redis.GateOptions{}), gate.Options{Permits: 1})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 8 {
		go func() {
			for ctx.Err() == nil {
				_ = busy.Do(ctx, "k", func(context.Context, *gate.Permit) error { return nil }, gate.Wait(time.Minute))
			}
		}()
	}
	s.until("the busy node is", func() bool { return busy.Stats().Granted > 20 })
	for range 5 {
		before := busy.Stats().Granted
		p, err := quiet.Acquire(ctx, "k", gate.Wait(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("overtaken %d times", busy.Stats().Granted-before) // the bound counts from when its line is heard of: gatetest holds the store to it
		if err := p.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
}
