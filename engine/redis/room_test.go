package redis_test

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/room/roomtest"
)

func openRooms(t testing.TB, c rueidis.Client, opts redis.RoomOptions) *redis.Rooms {
	t.Helper()
	s, err := redis.NewRooms(t.Context(), c, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// conform runs the suite on servers that are emptied before each of its tests.
func conform(t *testing.T, client func(t testing.TB) rueidis.Client, empty func(t testing.TB)) {
	var mu sync.Mutex
	clients := map[room.Store]rueidis.Client{}
	open := func(t *testing.T, c rueidis.Client) room.Store {
		s := openRooms(t, c, redis.RoomOptions{FailoverPause: time.Second})
		mu.Lock()
		defer mu.Unlock()
		clients[s] = c
		return s
	}
	roomtest.Run(t, func(t *testing.T) room.Store {
		empty(t)
		return open(t, client(t))
	}, roomtest.Abilities{Restart: func(t *testing.T, s room.Store) room.Store {
		if err := s.(*redis.Rooms).Close(); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		c := clients[s]
		mu.Unlock()
		return open(t, c)
	}})
}

func TestRooms(t *testing.T) {
	s := startGateServers(t, 1, false)
	conform(t, func(t testing.TB) rueidis.Client { return s.client() }, func(t testing.TB) { must(t, s.client(), "FLUSHALL") })
}

func TestRoomsInACluster(t *testing.T) {
	s := startGateServers(t, 3, true)
	conform(t, func(t testing.TB) rueidis.Client { return s.client() }, func(t testing.TB) {
		for _, n := range s.client().Nodes() {
			must(t, n, "FLUSHALL")
		}
	})
}
