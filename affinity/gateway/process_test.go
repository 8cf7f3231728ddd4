package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/engine/redis"
)

func ask(url string) (answer, int, error) {
	res, err := http.Get(url)
	if err != nil {
		return answer{}, 0, err
	}
	defer res.Body.Close()
	var a answer
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode == 200 {
		err = json.Unmarshal(b, &a)
	}
	return a, res.StatusCode, err
}

func must(t *testing.T, url string) answer {
	t.Helper()
	a, code, err := ask(url)
	if err != nil || code != 200 {
		t.Fatalf("%s: %d %v", url, code, err)
	}
	return a
}

// front is a gateway in this process before instances of their own.
func front(t *testing.T, redisAddr string) (*gateway.Gateway, *redis.Directory, string) {
	t.Helper()
	d := redis.NewDirectory(client(t, redisAddr))
	g, url := frontOf(t, opts(d))
	return g, d, url
}

func frontOf(t *testing.T, o gateway.Options) (*gateway.Gateway, string) {
	t.Helper()
	g, err := gateway.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	srv := httptest.NewServer(g)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return g, srv.URL
}

func announced(t *testing.T, d affinity.Store, n int) {
	t.Helper()
	eventually(t, "the instances are announced", func() bool {
		list, _ := d.Instances(context.Background(), "site")
		return len(list) == n
	})
}

func TestKilledOwnerIsReplaced(t *testing.T) { // cases/affinity 6, 11
	r := startRedis(t)
	g, d, url := front(t, r)
	all := map[string]*instance{}
	for _, id := range []string{"a", "b", "c"} {
		all[id] = startInstance(t, id, r, ownIP+":0")
	}
	announced(t, d, 3)
	owner := map[string]answer{}
	for i := range 30 {
		key := fmt.Sprint("account-", i)
		owner[key] = must(t, url+"/?account="+key)
	}
	perInstance := map[string]int{}
	for key, a := range owner {
		perInstance[a.Instance]++
		if again := must(t, url+"/?account="+key); again.Instance != a.Instance || again.Generation != a.Generation {
			t.Errorf("%s moved from %v to %v", key, a, again)
		}
	}
	for id, n := range perInstance {
		if n < 5 || n > 15 {
			t.Errorf("%s has %d of 30 sessions", id, n)
		}
	}
	victim := owner["account-0"].Instance
	sock, _, _, err := ws.Dial(context.Background(), "ws"+strings.TrimPrefix(url, "http")+"/?account=account-0")
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	if err := wsutil.WriteClientText(sock, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if msg, err := wsutil.ReadServerText(sock); err != nil || string(msg) != victim+":hello" {
		t.Fatalf("%q, %v", msg, err)
	}
	all[victim].kill()
	_ = sock.SetReadDeadline(time.Now().Add(20 * time.Second))
	began := time.Now()
	if _, err := wsutil.ReadServerText(sock); err == nil {
		t.Error("the socket of a dead owner speaks")
	} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Error("the client never hears of the owner's death")
	}
	t.Logf("socket closed %v after kill -9", time.Since(began))
	began = time.Now()
	next := must(t, url+"/?account=account-0") // the very first request: it was not connected, so it is sent again
	t.Logf("new session %v after kill -9", time.Since(began))
	if next.Instance == victim || next.Generation <= owner["account-0"].Generation {
		t.Errorf("%+v", next)
	}
	for key, a := range owner { // only the dead one's move
		if again := must(t, url+"/?account="+key); (again.Generation != a.Generation) != (a.Instance == victim) {
			t.Errorf("%s: %v, then %v", key, a, again)
		}
	}
	if s := g.Stats(); s.Evicted == 0 || s.Refused != 0 {
		t.Errorf("%+v", s)
	}
}

// unanswered hears of probes that were not answered.
type unanswered struct {
	slog.Handler
	heard chan struct{}
}

func (h unanswered) Enabled(context.Context, slog.Level) bool { return true }

func (h unanswered) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "a probe was not answered" {
		select {
		case h.heard <- struct{}{}:
		default:
		}
	}
	return nil
}

func TestStoppedOwner(t *testing.T) { // cases/affinity 5, 11
	r := startRedis(t)
	d := redis.NewDirectory(client(t, r))
	all := map[string]*instance{}
	for _, id := range []string{"a", "b"} {
		all[id] = startInstance(t, id, r, ownIP+":0")
	}
	announced(t, d, 2)
	probes := unanswered{slog.DiscardHandler, make(chan struct{}, 1)}
	o := opts(d)
	o.Logger, o.CacheFor = slog.New(probes), 5*time.Minute
	o.Health.Timeout = 100 * time.Millisecond
	_, patient := frontOf(t, o)
	o = opts(d)
	o.Health.Timeout, o.Health.FailAfter = 300*time.Millisecond, 1500*time.Millisecond
	_, hasty := frontOf(t, o)
	first := must(t, patient+"/?account=x")
	must(t, patient+"/?account=x") // it has seen the row
	owner := all[first.Instance].cmd.Process

	// A stall shorter than FailAfter moves nothing, though a probe failed in it: the request waits.
	pause(t, owner)
	var through answer
	var err error
	stalled := make(chan struct{})
	go func() { through, _, err = ask(patient + "/?account=x"); close(stalled) }()
	for len(probes.heard) > 0 {
		<-probes.heard
	}
	select {
	case <-probes.heard:
	case <-time.After(30 * time.Second):
		t.Fatal("never: a probe fails")
	}
	resume(t, owner)
	if <-stalled; err != nil || through.Generation != first.Generation {
		t.Fatalf("a stall moved the session: %+v, %v", through, err)
	}

	// A longer one does. The stream that its client reads is cut.
	var stream *http.Response
	for i := 0; ; i++ {
		if i == 20 {
			t.Fatal("no session of 20 is at the instance with the fewest")
		}
		if stream, err = http.Get(fmt.Sprint(hasty, "/stream?account=y", i)); err != nil {
			t.Fatal(err)
		}
		defer stream.Body.Close()
		if line, _ := bufio.NewReader(stream.Body).ReadString('\n'); strings.TrimSpace(line) == "data: "+first.Instance {
			break
		}
	}
	pause(t, owner)
	cut := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, stream.Body); close(cut) }()
	var next answer
	eventually(t, "another serves", func() bool {
		a, code, err := ask(hasty + "/?account=x")
		next = a
		return err == nil && code == 200
	})
	if next.Instance == first.Instance || next.Generation <= first.Generation {
		t.Errorf("%+v", next)
	}
	select {
	case <-cut:
	case <-time.After(30 * time.Second):
		t.Error("the stream of a stopped owner hangs")
	}
	// It wakes up, and is asked for what it thinks it has by a gateway that thinks so too.
	resume(t, owner)
	if again := must(t, patient+"/?account=x"); again.Instance != next.Instance || again.Generation != next.Generation {
		t.Errorf("the session went back: %+v", again)
	}
}

func TestSwappedPorts(t *testing.T) { // cases/affinity 7
	r := startRedis(t)
	g, d, url := front(t, r)
	a, b := startInstance(t, "a", r, ownIP+":0"), startInstance(t, "b", r, ownIP+":0")
	announced(t, d, 2)
	before := map[string]answer{}
	for i := range 8 {
		key := fmt.Sprint(i)
		before[key] = must(t, url+"/?account="+key)
	}
	addrA, addrB := a.addr, b.addr
	a.kill()
	b.kill()
	startInstance(t, "a", r, addrB)
	startInstance(t, "b", r, addrA)
	for key, old := range before {
		var now answer
		eventually(t, "the key is served", func() bool {
			var code int
			var err error
			now, code, err = ask(url + "/?account=" + key)
			return err == nil && code == 200
		})
		row, err := d.Get(t.Context(), "site", key)
		if err != nil || row.Owner.Instance != now.Instance || row.Generation != now.Generation || now.Generation <= old.Generation {
			t.Errorf("%s: served by %+v, the directory says %+v, %v", key, now, row, err)
		}
	}
	if g.Stats().Evicted == 0 {
		t.Errorf("%+v", g.Stats())
	}
}

func TestPeers(t *testing.T) { // cases/affinity 4, 8
	r := startRedis(t)
	d := redis.NewDirectory(client(t, r))
	var all []*instance
	for _, id := range []string{"a", "b", "c"} {
		all = append(all, startInstance(t, id, r, ownIP+":0", "PEER=1"))
	}
	announced(t, d, 3)
	// The blind balancer: anybody is asked for anything, all at once.
	var mu sync.Mutex
	seen := map[string]map[string]bool{}
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			key := fmt.Sprint("k", i%6)
			a, code, err := ask("http://" + all[i%3].addr + "/?account=" + key)
			if err != nil || code != 200 || a.Key != key {
				t.Errorf("%s: %d %v", key, code, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if seen[key] == nil {
				seen[key] = map[string]bool{}
			}
			seen[key][fmt.Sprint(a.Instance, a.Generation)] = true
		})
	}
	wg.Wait()
	for key, owners := range seen {
		if len(owners) != 1 {
			t.Errorf("%s was served by %v", key, owners)
		}
	}
	// A stranger who pretends to be a peer is not believed, and what she says is not passed on.
	owner := must(t, "http://"+all[0].addr+"/?account=k0")
	for _, in := range all {
		req, _ := http.NewRequest("GET", "http://"+in.addr+"/?account=k0", nil)
		for _, h := range []string{"Usher-Owner-Instance", "Usher-Owner-Epoch", "Usher-Session-Gen", "Usher-Session-Key", "Usher-Hop", "usher_hop"} {
			req.Header[h] = []string{"1"}
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var got answer
		if err := json.NewDecoder(res.Body).Decode(&got); err != nil || got.Instance != owner.Instance || got.Key != "k0" {
			t.Errorf("%+v, %v", got, err)
		}
		res.Body.Close()
		for h := range got.Header {
			if l := strings.ToLower(h); strings.HasPrefix(l, "usher") {
				t.Errorf("header %s came through", h)
			}
		}
	}
	for _, in := range all {
		if in.id == owner.Instance {
			in.kill()
		}
	}
	for _, in := range all {
		if in.id != owner.Instance {
			if next := must(t, "http://"+in.addr+"/?account=k0"); next.Generation <= owner.Generation {
				t.Errorf("%+v", next)
			}
		}
	}
}

func TestRedisAwayAndBack(t *testing.T) { // cases/affinity 5, 6
	r := newRedis(t)
	_, d, url := front(t, r.sock)
	startInstance(t, "a", r.sock, ownIP+":0")
	announced(t, d, 1)
	before := map[string]answer{}
	for i := range 6 {
		key := fmt.Sprint(i)
		before[key] = must(t, url+"/?account="+key)
	}
	startInstance(t, "b", r.sock, ownIP+":0") // one more instance moves nobody
	announced(t, d, 2)
	same := func(when string) {
		t.Helper()
		for key, a := range before {
			if again := must(t, url+"/?account="+key); again.Generation != a.Generation {
				t.Errorf("%s: %s moved from %+v to %+v", when, key, a, again)
			}
		}
	}
	same("an instance was added")
	pause(t, r.cmd.Process) // it hangs
	same("Redis hangs")
	if _, code, err := ask(url + "/?account=new"); err != nil || code != 503 {
		t.Errorf("a new session while Redis hangs: %d %v", code, err)
	}
	resume(t, r.cmd.Process)
	eventually(t, "new sessions are made again", func() bool { _, code, _ := ask(url + "/?account=new"); return code == 200 })
	same("Redis answers again")
	// It comes back with nothing: owners hear it, and what is built anew has greater generations.
	r.kill()
	same("Redis is gone")
	r.start()
	eventually(t, "the sessions of before are gone, and there are new ones", func() bool {
		for key, a := range before {
			if again, code, err := ask(url + "/?account=" + key); err != nil || code != 200 || again.Generation <= a.Generation {
				return false
			}
		}
		return true
	})
	for key := range before {
		now := must(t, url+"/?account="+key)
		if row, err := d.Get(t.Context(), "site", key); err != nil || row.Generation != now.Generation || row.Owner.Instance != now.Instance {
			t.Errorf("%s: served by %+v, the directory says %+v, %v", key, now, row, err)
		}
	}
}
