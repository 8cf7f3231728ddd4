package chaos

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ushergo/usher/internal/loadtest"
	"github.com/ushergo/usher/internal/redistest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	removeBinary()
	os.Exit(code)
}

// scale is how large and how long the tests here are.
type scale struct {
	visitors int // of each of the two crowds
	active   int
	stay     time.Duration
	quiet    time.Duration // between two blows
	stopped  time.Duration
	cut      time.Duration
	enough   time.Duration // for all, on an idle machine
}

func scaled() scale {
	if os.Getenv("USHER_SOAK") == "1" {
		return scale{visitors: 2500, active: 100, stay: 2 * time.Second, quiet: 5 * time.Second, stopped: 10 * time.Second, cut: 10 * time.Second, enough: 10 * time.Minute}
	}
	return scale{visitors: 300, active: 50, stay: 1500 * time.Millisecond, quiet: 500 * time.Millisecond, stopped: 4 * time.Second, cut: 3 * time.Second, enough: 3 * time.Minute}
}

// Three nodes, a Redis with two replicas of which one must have what is answered, and a crowd, while one after the other is taken away.
func TestChaos(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes half a minute; make test runs it")
	}
	redistest.Need(t, "redis-server", "redis-server")
	inside := newNamespace(t)
	s := scaled()
	w := newWorld(t, fmt.Sprintf("- {id: premiere, capacity: {active: %d}}", s.active))
	always := []string{"--appendonly", "yes", "--appendfsync", "always"}
	w.redis = redistest.StartAt(t, inside.redisAddr, always...)
	w.replica = w.redis.Replica(always...)
	other := w.redis.Replica(always...)
	watch := redistest.Sentinel(t, w.redis, 1)
	w.engine = fmt.Sprintf("{kind: redis, mode: sentinel, addrs: ['%s'], sentinel_master: mymaster, dial_timeout: 1s, failover_pause: 2s, wait_replicas: 1}", watch.Addr)
	a, b, c := w.add("a", nil), w.add("b", nil), w.add("c", inside)
	w.ready(3)

	var crowds sync.WaitGroup
	steps := make([]loadtest.Step, 2)
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), s.enough)
	defer cancel()
	for i, transport := range []string{"ws", "poll"} {
		crowds.Go(func() {
			conf := w.crowd("premiere", transport, s.visitors, 5*time.Second, s.stay)
			conf.Poll = time.Second
			r, err := loadtest.Run(ctx, conf)
			if err != nil {
				t.Errorf("%s: %v", transport, err)
				cancel()
				return
			}
			steps[i] = r.Steps[0]
		})
	}
	blow := func(what string, f func()) {
		time.Sleep(s.quiet) // not to wait for anything: the crowd goes on
		start := time.Now()
		f()
		t.Logf("%6.1fs  %s, %.1fs", start.Sub(began).Seconds(), what, time.Since(start).Seconds())
	}
	time.Sleep(2 * time.Second)
	blow("kill -9 of a node, and its start", func() {
		a.kill()
		w.ready(2)
		a.start()
		w.enlist(a)
		w.ready(3)
	})
	blow("a node is stopped for a while", func() {
		b.signal(syscall.SIGSTOP)
		time.Sleep(s.stopped)
		b.signal(syscall.SIGCONT)
		w.ready(3)
	})
	blow("a node is cut off from Redis", func() {
		inside.cut()
		w.until("it is not ready", func() bool { return w.visitors.ready() == 2 })
		time.Sleep(s.cut)
		inside.mend()
		w.ready(3)
	})
	blow("kill -9 of Redis, and its start", func() {
		w.redis.Kill()
		w.redis.Again()
		w.ready(3)
	})
	blow("kill -9 of the master; the Sentinel promotes a replica", func() {
		w.redis.Kill()
		w.until("a replica is the master", func() bool { return w.replica.Info("role") == "master" || other.Info("role") == "master" })
		w.redis.Again()
		w.ready(3)
	})
	blow("a node is drained and ends", func() {
		a.stop()
		w.delist(a)
		w.ready(2)
	})
	blow("a node comes in", func() {
		w.add("d", nil)
		w.ready(3)
	})
	t.Logf("%6.1fs  the last blow is over", time.Since(began).Seconds())
	crowds.Wait()
	if ctx.Err() != nil {
		t.Errorf("the crowd has not come to an end within %v\n%s", s.enough, w.state())
	}
	for i := range steps {
		if steps[i].Visitors == 0 {
			continue
		}
		got := countsOf(&steps[i])
		cr := steps[i].Crowd
		t.Logf("crowd %d, %.0f s: arrived %d, tickets %d, admitted %d, left %d, disconnected %d, ended %d, expired %d; errors met: %v",
			i+1, steps[i].DurationS, cr.Arrived, cr.Tickets, cr.Admitted, cr.Left, cr.Disconnected, cr.Ended, cr.Expired, steps[i].Errors)
		t.Logf("crowd %d: %v, set back %d", i+1, got, got.setBack)
		if got.bad() {
			t.Errorf("%s", strings.Join(got.examples, "\n"))
		}
	}
	if t.Failed() {
		t.Log(w.logs())
	}
	_ = c
}
