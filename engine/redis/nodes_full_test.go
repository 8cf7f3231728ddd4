package redis_test

import (
	"context"
	"crypto/rand"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/internal/redistest"
	"github.com/ushergo/usher/room"
)

// first is a follower that waits for the room as it is.
type first struct{ got chan *room.Mirror }

func (f first) Reset(m *room.Mirror) {
	select {
	case f.got <- m:
	default:
	}
}
func (first) Apply([]room.Event) {}

// A node that starts in a full room knows everybody's place at once: 30,000 here, 1,000,000 under USHER_SOAK=1.
func TestStartInAFullRoom(t *testing.T) {
	t.Parallel()
	n := int64(30_000)
	if os.Getenv("USHER_SOAK") == "1" {
		n = 1_000_000
	} else if testing.Short() {
		n = 5_000
	}
	server := redistest.Start(t)
	store, _ := storeOf(t, server, redis.RoomOptions{})
	config := room.DefaultConfig("premiere")
	config.Capacity.Active, config.Queue.MaxWaiting = 1, 2_000_000
	if res, err := store.Do(context.Background(), "premiere", &room.Command{Op: room.OpConfigure, Config: &config, Seed: make([]byte, 32)}); err != nil || res.Err != nil {
		t.Fatal(err, res.Err)
	}
	var callers sync.WaitGroup
	var entered atomic.Int64
	began := time.Now()
	for range 512 {
		callers.Go(func() {
			for entered.Add(1) <= n {
				cmd := &room.Command{Op: room.OpEnter}
				_, _ = rand.Read(cmd.NewID[:])
				if res, err := store.Do(context.Background(), "premiere", cmd); err != nil || res.Err != nil {
					t.Error(err, res.Err)
					return
				}
			}
		})
	}
	callers.Wait()
	t.Logf("%d entered in %v", n, time.Since(began).Round(time.Millisecond))

	began = time.Now()
	node, _ := storeOf(t, server, redis.RoomOptions{Owns: func(string) bool { return false }})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f := first{make(chan *room.Mirror, 1)}
	go func() { _ = node.Follow(ctx, "premiere", f) }()
	select {
	case m := <-f.got:
		t.Logf("a node that starts is ready after %v", time.Since(began).Round(time.Millisecond))
		if m.Line.Len() != int(n)-1 || len(m.Inside) != 1 || m.Line.Before(uint64(n)) != int(n)-2 {
			t.Errorf("%d in line, %d inside", m.Line.Len(), len(m.Inside))
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("it is not ready after two minutes")
	}
}
