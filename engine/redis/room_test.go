package redis_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"strings"

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
	s := startAOF(t)
	conform(t, s.client(), func(t testing.TB) { must(t, s.client(), "FLUSHALL") })
}

func TestRoomsInACluster(t *testing.T) {
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
	if testing.Short() {
		t.Skip("long")
	}
	s := startSentinels(t)
	conform(t, s.client(), func(t testing.TB) { must(t, s.client(), "FLUSHALL") })
}

func TestRoomsOverTLSWithACL(t *testing.T) {
	s := startTLS(t)
	c, err := rueidis.NewClient(s.option())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if !testing.Short() {
		conform(t, c, func(t testing.TB) { must(t, s.client(), "FLUSHALL") })
	}

	try := func(change func(*rueidis.ClientOption)) error {
		o := s.option()
		change(&o)
		c, err := rueidis.NewClient(o)
		if err != nil {
			return redis.Explain(err)
		}
		defer c.Close()
		store, err := redis.NewRooms(context.Background(), c, redis.RoomOptions{})
		if err != nil {
			return err
		}
		defer store.Close()
		cfg := roomtest.Config("acl", 1)
		_, err = store.Do(context.Background(), "acl", &room.Command{Op: room.OpConfigure, Config: &cfg})
		return err
	}
	must(t, s.client(), "ACL", "SETUSER", "blind", "on", ">secret", "~other:*", "+@all")
	for _, tc := range []struct {
		name string
		do   func(*rueidis.ClientOption)
		want []string
	}{
		{"wrong password", func(o *rueidis.ClientOption) { o.Password = "guess" }, []string{"WRONGPASS", "engine.password"}},
		{"no password", func(o *rueidis.ClientOption) { o.Username, o.Password = "", "" }, []string{"NOAUTH", "engine.password"}},
		{"no rights", func(o *rueidis.ClientOption) { o.Username = "blind" }, []string{"NOPERM", "~usher:*"}},
		{"another authority", func(o *rueidis.ClientOption) {
			o.TLSConfig = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
		}, []string{"certificate", "engine.tls_ca"}},
		{"another name", func(o *rueidis.ClientOption) { o.TLSConfig.ServerName = "elsewhere.test" }, []string{"certificate", "engine.addrs"}},
		{"without TLS", func(o *rueidis.ClientOption) { o.TLSConfig = nil }, []string{"engine.tls"}},
	} {
		err := try(tc.do)
		if err == nil {
			t.Errorf("%s: no error", tc.name)
			continue
		}
		for _, w := range tc.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v; want %q in it", tc.name, err, w)
			}
		}
		if strings.Contains(err.Error(), "guess") {
			t.Errorf("%s: the password is in the error: %v", tc.name, err)
		}
	}
}
