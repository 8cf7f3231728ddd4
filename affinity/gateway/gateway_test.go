package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/engine/memory"
)

// away is a directory that can be away.
type away struct {
	affinity.Store
	now atomic.Bool
}

func (a *away) Get(ctx context.Context, space, key string) (affinity.Row, error) {
	if a.now.Load() {
		return affinity.Row{}, errors.New("cut")
	}
	return a.Store.Get(ctx, space, key)
}

func (a *away) Instances(ctx context.Context, space string) ([]affinity.Instance, error) {
	if a.now.Load() {
		return nil, errors.New("cut")
	}
	return a.Store.Instances(ctx, space)
}

// here is an instance in this process.
func here(t *testing.T, d affinity.Store, id string, change func(*affinity.Options[string])) (*affinity.Owner[string], *httptest.Server) {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	o := affinity.Options[string]{
		Space: "site", Instance: id, Addr: srv.Listener.Addr().String(), Every: 50 * time.Millisecond,
		Build: func(context.Context, string, uint64) (string, error) { return id, nil },
	}
	if change != nil {
		change(&o)
	}
	owner, err := affinity.Open(d, o)
	if err != nil {
		t.Fatal(err)
	}
	srv.Config.Handler = gateway.Owned(owner, site(id), gateway.OwnedOptions{Secret: secret})
	srv.Start()
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); owner.Close() })
	return owner, srv
}

func before(t *testing.T, d affinity.Store, change func(*gateway.Options)) (*gateway.Gateway, *httptest.Server) {
	t.Helper()
	o := opts(d)
	if change != nil {
		change(&o)
	}
	g, err := gateway.New(o)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(g)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); g.Close() })
	return g, srv
}

func post(t *testing.T, url string, body io.Reader) (answer, int) {
	t.Helper()
	res, err := http.Post(url, "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var a answer
	_ = json.NewDecoder(res.Body).Decode(&a)
	return a, res.StatusCode
}

func TestBodyIsSentAgainExactly(t *testing.T) { // cases/affinity 9
	d := memory.NewDirectory(nil)
	var refused atomic.Int32
	owner, _ := here(t, d, "b", nil)
	// The row names an instance that answers 421.
	not := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health/live" {
			return
		}
		refused.Add(1)
		_, _ = io.CopyN(io.Discard, r.Body, 10)
		w.Header().Set(gateway.HeaderNotOwner, r.Header.Get("Usher-Session-Gen"))
		w.WriteHeader(http.StatusMisdirectedRequest)
	}))
	defer not.Close()
	stale := affinity.Identity{Instance: "a", Epoch: 1}
	lie := func(key, addr string) {
		t.Helper()
		got, err := d.Claim(t.Context(), affinity.Claim{Space: "site", Key: key, Owner: stale, Addr: addr, Token: key, Build: time.Minute})
		if err != nil || got.Verdict != affinity.Yours {
			t.Fatal(got, err)
		}
		_, err = d.Refresh(t.Context(), affinity.Refresh{Space: "site", Owner: stale, TTL: time.Minute, Items: []affinity.Item{{Key: key, Generation: got.Row.Generation, Ready: true}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	g, srv := before(t, d, nil)
	announced(t, d, 1)
	body := fmt.Sprintf(`{"account": "json", "more": %q}`, rand.Text())
	lie("json", not.Listener.Addr().String())
	if a, code := post(t, srv.URL, strings.NewReader(body)); code != 200 || a.Body != body || a.Key != "json" || a.Instance != "b" {
		t.Errorf("%d %+v", code, a)
	}
	if owner.Owns("json") == 0 || refused.Load() != 1 || g.Stats().Resent != 1 || g.Stats().Evicted != 1 {
		t.Errorf("%+v", g.Stats())
	}
	// One that was too long to be kept, and was partly sent, is not sent again.
	lie("large", not.Listener.Addr().String())
	if _, code := post(t, srv.URL+"/?account=large", bytes.NewReader(make([]byte, 1<<20))); code < 500 {
		t.Errorf("code %d", code)
	}
	if g.Stats().Resent != 1 {
		t.Errorf("%+v", g.Stats())
	}
	// Without a connection nothing was sent, so it may be however long.
	lie("refused", deadAddr(t))
	if a, code := post(t, srv.URL+"/?account=refused", bytes.NewReader(bytes.Repeat([]byte("x"), 1<<20))); code != 200 || len(a.Body) != 1<<20 {
		t.Errorf("code %d, %d bytes", code, len(a.Body))
	}
}

func TestPartlySentIsNeverSentAgain(t *testing.T) { // cases/affinity 9
	d := memory.NewDirectory(nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var posts atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				if r.Method == "POST" {
					posts.Add(1) // it has done something, and dies
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			}()
		}
	}()
	_, srv := before(t, d, func(o *gateway.Options) {
		o.Static = []affinity.Instance{{Owner: affinity.Identity{Instance: "a"}, Addr: l.Addr().String()}}
	})
	if _, code := post(t, srv.URL+"/?account=x", strings.NewReader("an order")); code != 502 || posts.Load() != 1 {
		t.Errorf("code %d, sent %d times", code, posts.Load())
	}
}

func TestCapacityConcernsNewSessions(t *testing.T) { // cases/affinity 12
	d := memory.NewDirectory(nil)
	owner, _ := here(t, d, "a", func(o *affinity.Options[string]) { o.MaxSessions = 2 })
	_, srv := before(t, d, nil)
	announced(t, d, 1)
	must(t, srv.URL+"/?account=1")
	first := must(t, srv.URL+"/?account=2")
	if _, code, _ := ask(srv.URL + "/?account=3"); code != 503 {
		t.Errorf("code %d", code)
	}
	if a := must(t, srv.URL+"/?account=2"); a.Generation != first.Generation {
		t.Errorf("%+v", a)
	}
	// Drained by whoever operates it: new sessions go elsewhere, the old one stays.
	here(t, d, "b", nil)
	announced(t, d, 2)
	if ok, err := d.Drain(t.Context(), affinity.Drain{Space: "site", Instance: "a", On: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	eventually(t, "it drains", func() bool { return owner.Health() != nil })
	eventually(t, "the gateway has heard of b", func() bool {
		a, code, _ := ask(srv.URL + "/?account=4")
		return code == 200 && a.Instance == "b"
	})
	if a := must(t, srv.URL+"/?account=2"); a.Generation != first.Generation {
		t.Errorf("%+v", a)
	}
}

// New sessions go to the instance with the fewest, also when many come before the instances have told how many they have.
func TestNewSessionsAreSpread(t *testing.T) {
	d := memory.NewDirectory(nil)
	seldom := func(o *affinity.Options[string]) { o.Every, o.TTL = 10*time.Minute, 2*time.Hour } // announced once
	a, _ := here(t, d, "a", seldom)
	b, _ := here(t, d, "b", seldom)
	announced(t, d, 2)
	_, srv := before(t, d, func(o *gateway.Options) { o.MaxSessions = 10 })
	for i := range 20 {
		if i == 10 { // the gateway lists the instances again, and what they said is still that they have none
			time.Sleep(1100 * time.Millisecond)
		}
		must(t, fmt.Sprint(srv.URL, "/?account=", i))
	}
	if a.Sessions() != 10 || b.Sessions() != 10 {
		t.Errorf("%d and %d", a.Sessions(), b.Sessions())
	}
	if _, code, _ := ask(srv.URL + "/?account=more"); code != 503 {
		t.Errorf("both have as many as they may: %d", code)
	}
	must(t, srv.URL+"/?account=3")
}

func TestDirectoryAway(t *testing.T) { // cases/affinity 5
	d := &away{Store: memory.NewDirectory(nil)}
	here(t, d, "a", nil)
	_, srv := before(t, d, func(o *gateway.Options) { o.CacheFor = time.Millisecond })
	announced(t, d, 1)
	first := must(t, srv.URL+"/?account=1")
	must(t, srv.URL+"/?account=1") // it has seen the row
	d.now.Store(true)
	if a := must(t, srv.URL+"/?account=1"); a.Generation != first.Generation {
		t.Errorf("%+v", a)
	}
	res, err := http.Get(srv.URL + "/?account=new")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != 503 || !strings.Contains(string(body), "directory_unavailable") || res.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	d.now.Store(false)
	must(t, srv.URL+"/?account=new")
}

func TestProbesDoNotWaitForSessions(t *testing.T) { // cases/affinity 19
	d := memory.NewDirectory(nil)
	owner, instance := here(t, d, "a", nil)
	var probes atomic.Int32
	inner := instance.Config.Handler
	instance.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(w, r)
		if r.URL.Path == "/health/live" {
			probes.Add(1)
		}
	})
	_, srv := before(t, d, nil)
	announced(t, d, 1)
	first := must(t, srv.URL+"/?account=1")
	ctx, cancel := context.WithCancel(t.Context())
	slow := make(chan error, 1)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, "GET", srv.URL+"/hang?account=1", nil)
		_, err := http.DefaultClient.Do(req)
		slow <- err
	}()
	eventually(t, "the slow call holds the session", func() bool { return owner.Locks().Stats().Held == 1 })
	answered := probes.Load()
	eventually(t, "probes are answered beside it", func() bool { return probes.Load() > answered+5 })
	select {
	case err := <-slow:
		t.Fatalf("the slow call was thrown out: %v", err)
	default:
	}
	if owner.Locks().Stats().Held != 1 {
		t.Fatal("the slow call does not hold the session any more")
	}
	cancel()
	if a := must(t, srv.URL+"/?account=1"); a.Generation != first.Generation {
		t.Errorf("%+v", a)
	}
}

func TestLoopsEnd(t *testing.T) { // cases/affinity 8
	d := memory.NewDirectory(nil)
	srv := httptest.NewUnstartedServer(nil)
	o := opts(d)
	var asked atomic.Int32
	o.Static = []affinity.Instance{{Owner: affinity.Identity{Instance: "itself"}, Addr: srv.Listener.Addr().String()}}
	g, err := gateway.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health/live" {
			asked.Add(1)
		}
		g.ServeHTTP(w, r)
	})
	srv.Start()
	defer srv.Close()
	if _, code, err := ask(srv.URL + "/?account=1"); err != nil || code != 503 || asked.Load() > 3 {
		t.Errorf("%d %v, asked %d times", code, err, asked.Load())
	}
}

func TestForwardedHeadersOfStrangersAreDropped(t *testing.T) { // cases/affinity 8
	d := memory.NewDirectory(nil)
	here(t, d, "a", nil)
	_, open := before(t, d, func(o *gateway.Options) { o.Trusted = func(*http.Request) bool { return true } })
	_, shut := before(t, d, nil)
	announced(t, d, 1)
	for url, want := range map[string]string{open.URL: "203.0.113.9, 127.0.0.1 https", shut.URL: "127.0.0.1 http"} {
		req, _ := http.NewRequest("GET", url+"/?account=1", nil)
		req.Header.Set("X-Forwarded-For", "203.0.113.9")
		req.Header.Set("X-Forwarded-Proto", "https")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var a answer
		err = json.NewDecoder(res.Body).Decode(&a)
		res.Body.Close()
		if got := a.Header.Get("X-Forwarded-For") + " " + a.Header.Get("X-Forwarded-Proto"); err != nil || got != want {
			t.Errorf("got %q, want %q; %v", got, want, err)
		}
	}
}
