package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/internal/redistest"
	"github.com/ushergo/usher/token"
)

func connect(t *testing.T, s *redistest.Server) rueidis.Client {
	t.Helper()
	c, err := redis.Connect(context.Background(), redis.Config{Addrs: []string{s.Addr}, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// member is one node of a test. Closing its client is what kill -9 is to the others: it is not heard any more.
type member struct {
	*redis.Nodes
	client   rueidis.Client
	draining atomic.Bool
	asked    atomic.Int32
}

func join(t *testing.T, s *redistest.Server, id string) *member {
	t.Helper()
	m := &member{client: connect(t, s)}
	var err error
	m.Nodes, err = redis.JoinNodes(context.Background(), m.client, redis.NodesOptions{
		Self: func() redis.Node {
			return redis.Node{ID: id, Version: "v1 of " + id, Ready: true, Draining: m.draining.Load()}
		},
		OnDrain: func() { m.asked.Add(1); m.draining.Store(true) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = m.Leave(ctx)
	})
	return m
}

func counts(m *member) int64 {
	n, err := m.Count(context.Background())
	if err != nil {
		return -1
	}
	return n
}

const manyRooms = 60

// leaders counts how many of the nodes lead each room.
func leaders(nodes ...*member) (none, one, more int) {
	for i := range manyRooms {
		n := 0
		for _, m := range nodes {
			if m.Leads(fmt.Sprint("room-", i)) {
				n++
			}
		}
		switch n {
		case 0:
			none++
		case 1:
			one++
		default:
			more++
		}
	}
	return none, one, more
}

func TestNodesKnowEachOther(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b, c := join(t, server, "a"), join(t, server, "b"), join(t, server, "c")
	redistest.Until(t, "all count three", func() bool { return counts(a) == 3 && counts(b) == 3 && counts(c) == 3 })
	if none, one, _ := leaders(a, b, c); none != 0 || one != manyRooms {
		t.Errorf("of %d rooms %d have no leader and %d have one", manyRooms, none, one)
	}
	mine := 0
	for i := range manyRooms {
		if a.Leads(fmt.Sprint("room-", i)) {
			mine++
		}
	}
	if mine < manyRooms/10 || mine > manyRooms*7/10 {
		t.Errorf("a leads %d of %d rooms", mine, manyRooms)
	}
	list, err := a.List(context.Background())
	if err != nil || len(list) != 3 || list[1].ID != "b" || list[1].Version != "v1 of b" || !list[0].Self || list[1].Self {
		t.Errorf("%v %+v", err, list)
	}

	// One is killed: its rooms go to the others, theirs stay.
	kept := map[string]bool{}
	for i := range manyRooms {
		kept[fmt.Sprint("room-", i)] = b.Leads(fmt.Sprint("room-", i))
	}
	killed := time.Now()
	a.client.Close()
	redistest.Until(t, "the others lead all rooms", func() bool { none, _, _ := leaders(b, c); return none == 0 })
	t.Logf("rooms of a killed node have a leader again after %v", time.Since(killed).Round(time.Millisecond))
	for id, was := range kept {
		if was && !b.Leads(id) {
			t.Errorf("b gave up %s", id)
		}
	}
	redistest.Until(t, "the others count two", func() bool { return counts(b) == 2 && counts(c) == 2 })
	if list, _ := b.List(context.Background()); len(list) != 3 || list[0].Alive() || !list[2].Alive() {
		t.Errorf("a dead node is listed as such: %+v", list)
	}

	// One is asked to drain by another: it counts no more, and leads nothing.
	if ok, err := b.Drain(context.Background(), "nobody"); ok || err != nil {
		t.Errorf("%v %v", ok, err)
	}
	if ok, err := b.Drain(context.Background(), "c"); !ok || err != nil {
		t.Fatalf("%v %v", ok, err)
	}
	redistest.Until(t, "c drains", func() bool { return c.asked.Load() == 1 && counts(b) == 1 && counts(c) == 1 })
	redistest.Until(t, "b leads all", func() bool { none, one, _ := leaders(b); return none == 0 && one == manyRooms })
	if _, one, _ := leaders(c); one != 0 {
		t.Errorf("c still leads %d rooms", one)
	}

	// A node that comes in takes its share.
	d := join(t, server, "d")
	redistest.Until(t, "d leads some", func() bool {
		_, one, more := leaders(b, d)
		return one == manyRooms && more == 0 && counts(d) == 2 && counts(b) == 2
	})
	if c.asked.Load() != 1 {
		t.Errorf("c was asked to drain %d times", c.asked.Load())
	}
}

func TestNodeNamesAreUnique(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := join(t, server, "a")
	self := func() redis.Node { return redis.Node{ID: "a"} }
	_, err := redis.JoinNodes(context.Background(), connect(t, server), redis.NodesOptions{Self: self})
	if !errors.Is(err, redis.ErrNodeTaken) || !strings.Contains(err.Error(), `node.id: "a" is the name of another node that lives`) {
		t.Errorf("%v", err)
	}
	a.client.Close() // killed, and started again at once under its name, as a supervisor does
	again := join(t, server, "a")
	redistest.Until(t, "it counts", func() bool { return counts(again) == 1 })
}

// While Redis is away nobody can be counted, and when it is back, not before everybody could be heard.
func TestNodesAreNotCountedWhileUnheard(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := join(t, server, "a"), join(t, server, "b")
	redistest.Until(t, "both count two", func() bool { return counts(a) == 2 && counts(b) == 2 })
	server.Kill()
	redistest.Until(t, "the count is unknown", func() bool { return counts(a) == -1 && counts(b) == -1 })
	if a.Leads("x") || b.Leads("x") {
		t.Error("a node that is not heard leads")
	}
	if !a.Owns("x") || !b.Owns("x") {
		t.Error("nobody owns a room while it is not clear who does")
	}
	stop := make(chan struct{})
	wrong := make(chan string, 1)
	go func() { // empty as it comes back, it must never make a node believe to be alone
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, m := range []*member{a, b} {
				if n := counts(m); n != -1 && n != 2 {
					select {
					case wrong <- fmt.Sprintf("%d nodes were counted", n):
					default:
					}
				}
			}
		}
	}()
	server.Again()
	redistest.Until(t, "both count two again", func() bool { return counts(a) == 2 && counts(b) == 2 })
	close(stop)
	select {
	case text := <-wrong:
		t.Error(text)
	default:
	}
}

func TestNodesRefuseForeignKeys(t *testing.T) {
	server := redistest.Start(t)
	client := connect(t, server)
	self := func() redis.Node { return redis.Node{ID: "a"} }
	for _, tc := range []struct{ cmd, want string }{
		{"SET usher:{nodes} x", "usher:{nodes} is a string, not ours: rename it"},
		{"HSET usher:{nodes} :v 2", "usher:{nodes} has layout 2, this version reads 1: start the version that wrote it"},
		{"SET usher:{keys} x", "usher:{keys} is a string, not ours"},
		{"HSET usher:{keys} v 2", "usher:{keys} has layout 2, this version reads 1"},
	} {
		server.Must("FLUSHALL")
		server.Must(strings.Fields(tc.cmd)...)
		_, err := redis.JoinNodes(context.Background(), client, redis.NodesOptions{Self: self})
		if strings.Contains(tc.cmd, "{keys}") {
			_, err = token.OpenStore(context.Background(), redis.NewKeyStore(client))
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.cmd, err)
		}
	}
}

// Nodes that start at once agree on their keys, and follow a rotation that another one made.
func TestKeysAreShared(t *testing.T) {
	server := redistest.Start(t)
	const nodes = 8
	keys := make([]*token.Keys, nodes)
	errs := make(chan error, nodes)
	for i := range nodes {
		client := connect(t, server)
		go func() {
			var err error
			keys[i], err = token.OpenStore(context.Background(), redis.NewKeyStore(client))
			errs <- err
		}()
	}
	for range nodes {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range keys[1:] {
		if k.Export() != keys[0].Export() {
			t.Fatal("two nodes have different keys")
		}
	}
	if _, err := keys[3].Rotate(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := keys[5].Reload(); err != nil {
		t.Fatal(err)
	}
	if keys[5].Export() != keys[3].Export() || keys[0].Export() == keys[3].Export() {
		t.Error("a rotation was not taken over")
	}
	server.Must("FLUSHALL")
	if err := keys[0].Reload(); err == nil || !strings.Contains(err.Error(), "the keys are gone from Redis, key usher:{keys}") {
		t.Errorf("%v", err)
	}
}
