package redis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/flight/flighttest"
	"github.com/ushergo/usher/flight/shared"
)

// flightServer starts a Redis of its own for one test.
type flightServer struct {
	t    *testing.T
	addr string
	dir  string
	cmd  *exec.Cmd
}

func newFlightServer(t *testing.T) *flightServer {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("USHER_TEST_ALL") == "1" {
			t.Fatal("redis-server is missing: apt-get install redis-server")
		}
		t.Skip("needs redis-server, which is not installed")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &flightServer{t: t, addr: l.Addr().String(), dir: t.TempDir()}
	l.Close()
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *flightServer) start() {
	s.t.Helper()
	_, port, _ := net.SplitHostPort(s.addr)
	var out bytes.Buffer
	s.cmd = exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.dir)
	s.cmd.Stdout, s.cmd.Stderr = &out, &out
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if c, err := net.Dial("tcp", s.addr); err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("redis-server does not answer: %s", out.String())
		}
	}
}

func (s *flightServer) stop() {
	if s.cmd != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
}

func (s *flightServer) client() rueidis.Client {
	s.t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.addr}, DisableCache: true})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

func TestFlights(t *testing.T) {
	c := newFlightServer(t).client()
	spaces := 0
	flighttest.TestStore(t, func(t *testing.T) flighttest.Fixture {
		spaces++
		return flighttest.Fixture{Store: redis.NewFlights(c), Advance: time.Sleep, Space: fmt.Sprint("test", spaces)}
	})
}

func TestFlightsInACluster(t *testing.T) {
	c := startGateServers(t, 3, true).client()
	spaces := 0
	flighttest.TestStore(t, func(t *testing.T) flighttest.Fixture {
		spaces++
		return flighttest.Fixture{Store: redis.NewFlights(c), Advance: time.Sleep, Space: fmt.Sprint("test", spaces)}
	})
}

func TestFlightsRefuseWhatIsNotTheirs(t *testing.T) {
	c := newFlightServer(t).client()
	store := redis.NewFlights(c)
	key := fmt.Sprintf("usher:flight:{s/%d}:k", shared.ShardOf("k"))
	begin := func() error {
		_, err := store.Begin(t.Context(), shared.Begin{Space: "s", Key: "k", Token: "t", Lease: time.Second})
		return err
	}
	for _, make := range []rueidis.Completed{
		c.B().Set().Key(key).Value("a string").Build(),
		c.B().Hset().Key(key).FieldValue().FieldValue("v", "2").Build(),
	} {
		c.Do(t.Context(), c.B().Del().Key(key).Build())
		if err := c.Do(t.Context(), make).Error(); err != nil {
			t.Fatal(err)
		}
		err := begin()
		if !errors.Is(err, shared.ErrForeign) || !strings.Contains(err.Error(), key) {
			t.Errorf("got %v", err)
		}
		if n, _ := c.Do(t.Context(), c.B().Exists().Key(key).Build()).AsInt64(); n != 1 {
			t.Error("it was deleted")
		}
	}
	c.Do(t.Context(), c.B().Del().Key(key).Build())
	if err := begin(); err != nil {
		t.Error(err)
	}
	if _, err := store.Begin(t.Context(), shared.Begin{Space: "a{b}", Key: "k"}); err == nil || !strings.Contains(err.Error(), "space") {
		t.Errorf("got %v", err)
	}
}

func TestFlightFencesSurviveAnEmptiedServer(t *testing.T) {
	s := newFlightServer(t)
	store := redis.NewFlights(s.client())
	begin := func() uint64 {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			st, err := store.Begin(t.Context(), shared.Begin{Space: "s", Key: "k", Token: "t" + time.Now().String(), Lease: time.Minute})
			if err == nil {
				if st.Kind != shared.Lead {
					t.Fatalf("got %+v", st)
				}
				return st.Fence
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	first := begin()
	s.stop()
	s.start()
	if f := begin(); f <= first {
		t.Errorf("fence %d after %d", f, first)
	}
	// The lead of before is lost, and told so.
	if d, err := store.Finish(context.Background(), shared.Finish{Space: "s", Key: "k", Fence: first, Result: shared.Result{Status: shared.Loaded}}); err != nil || !d.Lost {
		t.Errorf("finish %+v, %v", d, err)
	}
}

func TestFlightWatchSubscribesAgain(t *testing.T) {
	s := newFlightServer(t)
	store := redis.NewFlights(s.client())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan shared.Event, 1000)
	go store.Watch(ctx, "s", func(e shared.Event) { got <- e })
	missed := func() {
		t.Helper()
		select {
		case e := <-got:
			if e.What != shared.Missed {
				t.Fatalf("got %+v", e)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("not subscribed")
		}
	}
	missed()
	s.stop()
	s.start()
	missed()
	for end := time.Now().Add(20 * time.Second); store.Forget(ctx, "s", "k") != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the client does not come back")
		}
	}
	select {
	case e := <-got:
		if e != (shared.Event{What: shared.Forgotten, Key: "k"}) {
			t.Errorf("got %+v", e)
		}
	case <-time.After(20 * time.Second):
		t.Error("no event after the server came back")
	}
}
