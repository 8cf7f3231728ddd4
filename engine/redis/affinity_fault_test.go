package redis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/affinitytest"
	"github.com/ushergo/usher/engine/redis"
)

// The same suite on a Cluster of three: the parts of a space are on different servers.
func TestDirectoryOnACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("a Cluster is not short")
	}
	s := startGateServers(t, 3, true)
	c := s.client()
	affinitytest.TestStore(t, func(t *testing.T) affinitytest.Fixture {
		flush := func() {
			for addr, node := range c.Nodes() {
				if err := node.Do(context.Background(), node.B().Flushall().Build()).Error(); err != nil {
					t.Fatal(addr, err)
				}
			}
		}
		flush()
		return affinitytest.Fixture{Store: redis.NewDirectory(c), Advance: time.Sleep, Forget: flush}
	})
	// A space is really spread.
	d := redis.NewDirectory(c)
	for i := range 64 {
		if _, err := d.Claim(t.Context(), affinity.Claim{
			Space: "wide", Key: fmt.Sprint(i), Owner: affinity.Identity{Instance: "i", Epoch: 1}, Token: "t", Build: time.Minute,
		}); err != nil {
			t.Fatal(err)
		}
	}
	for addr, node := range c.Nodes() {
		if n, err := node.Do(t.Context(), node.B().Dbsize().Build()).AsInt64(); err != nil || n == 0 {
			t.Errorf("%s has %d keys, %v", addr, n, err)
		}
	}
}

// muffle stands before a Redis. While it is on, commands arrive and no answer comes back: the connection is cut when the
// server begins to answer.
type muffle struct {
	net.Listener
	on   atomic.Bool
	lost atomic.Int32
}

func newMuffle(t *testing.T, to string) *muffle {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &muffle{Listener: l}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, client); server.Close() }()
			go func() {
				defer client.Close()
				defer server.Close()
				r := bufio.NewReader(server)
				for {
					if _, err := r.Peek(1); err != nil {
						return
					}
					if m.on.Load() {
						m.lost.Add(1)
						return
					}
					b := make([]byte, r.Buffered())
					_, _ = io.ReadFull(r, b)
					if _, err := client.Write(b); err != nil {
						return
					}
				}
			}()
		}
	}()
	return m
}

// An answer that is lost on its way is an error that says so, and asking again is the same claim, refresh and clear.
func TestDirectoryAnswersAreLost(t *testing.T) { // cases/affinity 4
	s := newFlightServer(t)
	m := newMuffle(t, s.addr)
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{m.Addr().String()}, DisableCache: true, ForceSingleClient: true, PipelineMultiplex: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, direct := redis.NewDirectory(c), redis.NewDirectory(s.client())
	who := affinity.Identity{Instance: "i", Epoch: 1}
	claim := affinity.Claim{Space: "s", Key: "k", Owner: who, Addr: "a:1", Token: "first", Build: time.Minute}
	if _, err := d.Get(t.Context(), "s", "k"); err != nil { // the script is there
		t.Fatal(err)
	}
	lose := func(what string, do func(ctx context.Context) error) {
		t.Helper()
		before := m.lost.Load()
		m.on.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		err := do(ctx)
		cancel()
		m.on.Store(false)
		if !errors.Is(err, affinity.ErrUnavailable) || m.lost.Load() == before {
			t.Fatalf("%s whose answer was lost: %v", what, err)
		}
	}
	again := func(what string, do func(ctx context.Context) error) { // until the client has connected again
		t.Helper()
		var err error
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			err = do(ctx)
			if cancel(); err == nil {
				return
			}
		}
		t.Fatalf("%s: %v", what, err)
	}
	lose("a claim", func(ctx context.Context) error { _, err := d.Claim(ctx, claim); return err })
	row, err := direct.Get(t.Context(), "s", "k")
	if err != nil || row.State != affinity.Building || row.Owner != who {
		t.Fatalf("it did not arrive: %+v, %v", row, err)
	}
	again("the claim again", func(ctx context.Context) error {
		got, err := d.Claim(ctx, claim)
		if err == nil && (got.Verdict != affinity.Yours || got.Row.Generation != row.Generation) {
			t.Fatalf("%+v, want generation %d", got, row.Generation)
		}
		return err
	})
	refresh := affinity.Refresh{Space: "s", Owner: who, TTL: time.Minute, Items: []affinity.Item{{Key: "k", Generation: row.Generation, Ready: true, Session: "x"}}}
	lose("a refresh", func(ctx context.Context) error { _, err := d.Refresh(ctx, refresh); return err })
	again("the refresh again", func(ctx context.Context) error {
		got, err := d.Refresh(ctx, refresh)
		if err == nil && !got.Held[0] {
			t.Fatal("it is not held")
		}
		return err
	})
	gone := affinity.Clear{Space: "s", Key: "k", Owner: who, Generation: row.Generation}
	lose("a clear", func(ctx context.Context) error { _, err := d.Clear(ctx, gone); return err })
	if row, err := direct.Get(t.Context(), "s", "k"); err != nil || row.State != affinity.None {
		t.Fatalf("it did not arrive: %+v, %v", row, err)
	}
	again("the clear again", func(ctx context.Context) error {
		got, err := d.Clear(ctx, gone)
		if err == nil && !got.Cleared {
			t.Fatal("it says that it was another's")
		}
		return err
	})
	again("the old claim, late", func(ctx context.Context) error {
		got, err := d.Claim(ctx, claim)
		if err == nil && got.Verdict != affinity.Spent {
			t.Fatalf("a ghost: %+v", got)
		}
		return err
	})
}

// A Redis that was killed and comes back with nothing: owners hear that their rows are gone, and generations go on growing.
func TestDirectoryServerComesBackEmpty(t *testing.T) { // cases/affinity 5
	s := newFlightServer(t)
	d := redis.NewDirectory(s.client())
	old, other := affinity.Identity{Instance: "old", Epoch: 1}, affinity.Identity{Instance: "new", Epoch: 1}
	claim := func(who affinity.Identity, token string) (affinity.Claimed, error) {
		return d.Claim(t.Context(), affinity.Claim{Space: "s", Key: "k", Owner: who, Token: token, Build: time.Minute})
	}
	first, err := claim(old, "1")
	if err != nil || first.Verdict != affinity.Yours {
		t.Fatal(first, err)
	}
	s.stop()
	if _, err := claim(other, "2"); !errors.Is(err, affinity.ErrUnavailable) {
		t.Fatalf("without a server: %v", err)
	}
	s.start()
	item := []affinity.Item{{Key: "k", Generation: first.Row.Generation, Ready: true}}
	var held affinity.Refreshed
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if held, err = d.Refresh(t.Context(), affinity.Refresh{Space: "s", Owner: old, TTL: time.Minute, Items: item}); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if held.Held[0] {
		t.Error("a row that is gone was confirmed")
	}
	next, err := claim(other, "2")
	if err != nil || next.Verdict != affinity.Yours || next.Row.Generation <= first.Row.Generation {
		t.Errorf("%+v after %+v, %v", next, first, err)
	}
	if got, err := d.Clear(t.Context(), affinity.Clear{Space: "s", Key: "k", Owner: old, Generation: first.Row.Generation}); err != nil || got.Cleared {
		t.Errorf("the old owner's clear took the new row: %+v, %v", got, err)
	}
}
