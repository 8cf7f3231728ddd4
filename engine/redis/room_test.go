package redis_test

import (
	"context"

	"testing"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/room/roomtest"
)

func openRooms(t testing.TB, c rueidis.Client, opts redis.RoomOptions) *redis.Rooms {
	t.Helper()
	s, err := redis.NewRooms(context.Background(), c, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// conform runs the suite on servers that are emptied before each of its tests.
func conform(t *testing.T, c rueidis.Client, empty func(t testing.TB)) {
	open := func(t *testing.T) room.Store { return openRooms(t, c, redis.RoomOptions{}) }
	roomtest.Run(t, func(t *testing.T) room.Store {
		empty(t)
		return open(t)
	}, roomtest.Abilities{Restart: func(t *testing.T, s room.Store) room.Store {
		if err := s.(*redis.Rooms).Close(); err != nil {
			t.Fatal(err)
		}
		return open(t)
	}})
}

func TestRooms(t *testing.T) {
	t.Parallel()
	s := startAOF(t)
	conform(t, s.client(), func(t testing.TB) { must(t, s.client(), "FLUSHALL") })
}

func TestRoomsInACluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long")
	}
	s := startGateServers(t, 3, true)
	conform(t, s.client(), func(t testing.TB) {
		for _, n := range s.client().Nodes() {
			must(t, n, "FLUSHALL")
		}
	})
}

func TestRoomsBySentinel(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long")
	}
	s := startSentinels(t)
	conform(t, s.client(), func(t testing.TB) { must(t, s.client(), "FLUSHALL") })
}

func TestRoomsOverTLSWithACL(t *testing.T) {
	t.Parallel()
	s := startTLS(t)
	c, err := rueidis.NewClient(s.option())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if !testing.Short() {
		conform(t, c, func(t testing.TB) { must(t, s.client(), "FLUSHALL") })
	}

	// What is wrong with the connection itself is told by Connect; see connect_test.go.
	must(t, s.client(), "ACL", "SETUSER", "blind", "on", ">secret", "~other:*", "+@all")
	o := s.option()
	o.Username = "blind"
	blind, err := rueidis.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(blind.Close)
	_, err = redis.NewRooms(background(), blind, redis.RoomOptions{})
	wantError(t, err, room.ErrUnavailable, "NOPERM", "~usher:*")
}
