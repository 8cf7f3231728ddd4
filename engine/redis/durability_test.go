package redis_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/internal/redistest"
	"github.com/ushergo/usher/room"
)

// What an answered enter survives, by how Redis keeps its data; docs/durability.md says it in words.

// answered is what was answered, and when.
type answered struct {
	ref room.Ref
	at  time.Time
}

// entering enters by 16 callers until it is stopped, and returns what was answered.
type entering struct {
	stop  func()
	mu    sync.Mutex
	list  []answered
	count atomic.Int64
}

func (e *entering) all() []answered {
	e.stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.list
}

func storeOf(t *testing.T, s *redistest.Server, opts redis.RoomOptions) (*redis.Rooms, rueidis.Client) {
	t.Helper()
	c, err := redis.Connect(context.Background(), redis.Config{Addrs: []string{s.Addr}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	opts.FailoverPause = -1
	store, err := redis.NewRooms(context.Background(), c, opts)
	if err != nil {
		c.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = store.Close()
		c.Close()
	})
	return store, c
}

func enterMany(t *testing.T, store *redis.Rooms) *entering {
	t.Helper()
	config := room.DefaultConfig("premiere")
	config.Capacity.Active = 1
	if res, err := store.Do(context.Background(), "premiere", &room.Command{Op: room.OpConfigure, Config: &config, Seed: make([]byte, 32)}); err != nil || res.Err != nil {
		t.Fatal(err, res.Err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &entering{}
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for ctx.Err() == nil {
				cmd := &room.Command{Op: room.OpEnter}
				_, _ = rand.Read(cmd.NewID[:])
				res, err := store.Do(ctx, "premiere", cmd)
				if err != nil || res.Err != nil {
					select {
					case <-ctx.Done():
					case <-time.After(20 * time.Millisecond):
					}
					continue
				}
				e.mu.Lock()
				e.list = append(e.list, answered{res.View.Ref, time.Now()})
				e.mu.Unlock()
				e.count.Add(1)
			}
		})
	}
	e.stop = sync.OnceFunc(func() {
		cancel()
		callers.Wait()
	})
	t.Cleanup(e.stop)
	return e
}

// lost are those that the server does not know.
func lost(t *testing.T, store *redis.Rooms, list []answered) (gone []answered) {
	t.Helper()
	for _, a := range list {
		res, err := store.Do(context.Background(), "premiere", &room.Command{Op: room.OpStatus, Ref: a.ref})
		switch {
		case err != nil:
			t.Fatal(err)
		case errors.Is(res.Err, room.ErrNoTicket), errors.Is(res.Err, room.ErrEnded):
			gone = append(gone, a)
		case res.Err != nil:
			t.Fatal(res.Err)
		}
	}
	return gone
}

func (e *entering) until(t *testing.T, n int64) {
	t.Helper()
	from := e.count.Load()
	redistest.Until(t, fmt.Sprintf("%d more enters are answered", n), func() bool { return e.count.Load() >= from+n })
}

// appendfsync always: nothing that was answered is lost, though Redis is killed in the middle of it.
func TestAnsweredEntersSurviveKillWithAOFAlways(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	store, _ := storeOf(t, server, redis.RoomOptions{})
	e := enterMany(t, store)
	for range 3 {
		e.until(t, 300)
		server.Kill()
		server.Again()
	}
	e.until(t, 1)
	list := e.all()
	gone := lost(t, store, list)
	t.Logf("appendfsync always, killed 3 times: %d enters answered, %d lost", len(list), len(gone))
	if len(gone) != 0 {
		t.Errorf("lost: %v", gone[:min(len(gone), 5)])
	}
}

// appendfsync everysec: a power loss takes what was written since the last sync, two seconds at most, and what Redis had put
// off writing while a sync hung, two more. The power loss is made: the file is cut to what it was two seconds before.
func TestPowerLossWithAOFEverySecond(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes some seconds; make test runs it")
	}
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec")
	store, _ := storeOf(t, server, redis.RoomOptions{})
	e := enterMany(t, store)
	type size struct {
		at    time.Time
		bytes int64
	}
	var sizes []size
	file := func() string {
		found, _ := filepath.Glob(filepath.Join(server.Dir, "appendonlydir", "*.incr.aof"))
		if len(found) != 1 {
			t.Fatalf("append-only files: %v", found)
		}
		return found[0]
	}
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // sampling, not waiting for a result
		if info, err := os.Stat(file()); err == nil {
			sizes = append(sizes, size{time.Now(), info.Size()})
		}
	}
	e.until(t, 1)
	server.Kill()
	died := time.Now()
	list := e.all()
	const window = 2 * time.Second
	i := slices.IndexFunc(sizes, func(s size) bool { return s.at.After(died.Add(-window)) })
	if i < 1 {
		t.Fatalf("no size of the file is known from %v before: %d samples", window, len(sizes))
	}
	kept := sizes[i-1]
	if err := os.Truncate(file(), kept.bytes); err != nil {
		t.Fatal(err)
	}
	server.Again()
	var gone []answered
	redistest.Until(t, "the server answers", func() bool { return store.Health() == nil })
	gone = lost(t, store, list)
	var oldest time.Duration
	for _, a := range gone {
		oldest = max(oldest, died.Sub(a.at))
		if a.at.Before(kept.at.Add(-window)) {
			t.Fatalf("an enter answered %v before the power loss is lost", died.Sub(a.at))
		}
	}
	t.Logf("appendfsync everysec, power lost: %d enters answered, %d lost, the oldest answered %v before", len(list), len(gone), oldest.Round(time.Millisecond))
	if len(gone) == 0 {
		t.Error("nothing was lost: this test shows nothing")
	}
}

// promote has the replica fall behind, kills the master, and makes the replica the master.
func promote(t *testing.T, wait int) (answeredAll, gone []answered) {
	master := redistest.Start(t)
	replica := master.Replica()
	store, _ := storeOf(t, master, redis.RoomOptions{WaitReplicas: wait})
	e := enterMany(t, store)
	e.until(t, 200)
	replica.Signal(syscall.SIGSTOP)
	master.Must("CLIENT", "KILL", "TYPE", "replica") // or what is on its way would still arrive
	if wait == 0 {
		e.until(t, 200) // answered, and the replica has none of it
	} else {
		time.Sleep(200 * time.Millisecond) // what is entered now is not answered
	}
	list := e.all()
	master.Kill()
	replica.Signal(syscall.SIGCONT)
	replica.Must("REPLICAOF", "NO", "ONE")
	after, _ := storeOf(t, replica, redis.RoomOptions{})
	return list, lost(t, after, list)
}

func TestPromotionWithoutWait(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes some seconds; make test runs it")
	}
	list, gone := promote(t, 0)
	t.Logf("promotion of a replica that was behind, without WAIT: %d enters answered, %d lost", len(list), len(gone))
	if len(gone) == 0 {
		t.Error("nothing was lost: this test shows nothing")
	}
}

func TestPromotionWithWait(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes some seconds; make test runs it")
	}
	list, gone := promote(t, 1)
	t.Logf("promotion of a replica that was behind, wait_replicas 1: %d enters answered, %d lost", len(list), len(gone))
	if len(gone) != 0 {
		t.Errorf("lost: %v", gone[:min(len(gone), 5)])
	}
}
