package sidecar_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/affinity/sidecar"
	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/keylock"
)

const secret = "a secret of the sidecars"

// app is a service that knows nothing of usher but one header.
type app struct {
	t      *testing.T
	mu     sync.Mutex
	open   map[string]string // key → fence
	inside atomic.Int32
	together,
	logins atomic.Int32
	closed chan map[string]any
	hang   chan struct{}
}

func (a *app) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("X-Account")
	switch r.URL.Path {
	case "/usher/close":
		var m map[string]any
		_ = json.NewDecoder(r.Body).Decode(&m)
		a.mu.Lock()
		delete(a.open, m["key"].(string))
		a.mu.Unlock()
		a.closed <- m
		return
	case "/free":
		_, _ = io.WriteString(w, "free")
		return
	case "/late-login": // the key is in the form, which usher does not read
		key = r.FormValue("account")
		a.login(w, key, "")
		return
	}
	if a.inside.Add(1) > 1 {
		a.together.Add(1)
	}
	defer a.inside.Add(-1)
	for h := range r.Header {
		if l := strings.ToLower(h); strings.HasPrefix(l, "usher-") && l != "usher-fence" {
			a.t.Errorf("header %s reached the service", h)
		}
	}
	switch r.URL.Path {
	case "/login":
		time.Sleep(5 * time.Millisecond)
		a.login(w, key, r.Header.Get("Usher-Fence"))
	case "/logout":
		a.mu.Lock()
		delete(a.open, key)
		a.mu.Unlock()
		w.Header().Set("Usher-Session", "close")
	case "/hang":
		<-a.hang
	default:
		a.mu.Lock()
		fence, ok := a.open[key]
		a.mu.Unlock()
		if !ok {
			http.Error(w, "log in first", http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, fence)
	}
}

func (a *app) login(w http.ResponseWriter, key, fence string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.open[key]; !ok {
		a.logins.Add(1)
		a.open[key] = fence
	}
	w.Header().Set("Usher-Session", "open; key="+key)
	_, _ = io.WriteString(w, a.open[key])
}

type instance struct {
	*app
	side *sidecar.Sidecar
	url  string
}

func start(t *testing.T, d affinity.Store, id string, change func(*sidecar.Options)) *instance {
	t.Helper()
	a := &app{t: t, open: map[string]string{}, closed: make(chan map[string]any, 100), hang: make(chan struct{})}
	service := httptest.NewServer(a)
	t.Cleanup(func() { service.CloseClientConnections(); service.Close() })
	front := httptest.NewUnstartedServer(nil)
	opts := sidecar.Options{
		App: service.URL, Directory: d, Space: "app", Instance: id, Addr: front.Listener.Addr().String(), Secret: secret,
		Key: gateway.Key{Header: "X-Account"}, Peers: true, Close: "/usher/close", Every: 50 * time.Millisecond,
	}
	if change != nil {
		change(&opts)
	}
	s, err := sidecar.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	front.Config.Handler = s
	front.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Shutdown(ctx)
		front.CloseClientConnections()
		front.Close()
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if list, _ := d.Instances(t.Context(), "app"); strings.Contains(fmt.Sprint(list), id) {
			return &instance{a, s, front.URL}
		}
		if time.Now().After(end) {
			t.Fatal("never announced")
		}
	}
}

func ask(t *testing.T, url, key string) (int, string) {
	t.Helper()
	req, _ := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if key != "" {
		req.Header.Set("X-Account", key)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	if res.Header.Get("Usher-Session") != "" {
		t.Error("the service's word reached the client")
	}
	return res.StatusCode, string(b)
}

func TestOneLoginAndOneAtATime(t *testing.T) {
	d := memory.NewDirectory(nil)
	all := []*instance{start(t, d, "a", nil), start(t, d, "b", nil), start(t, d, "c", nil)}
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			if code, _ := ask(t, all[i%3].url+"/login", "alice"); code != 200 {
				t.Errorf("login: %d", code)
			}
		})
	}
	wg.Wait()
	logins, together := int32(0), int32(0)
	for _, in := range all {
		logins += in.logins.Load()
		together += in.together.Load()
	}
	if logins != 1 || together != 0 {
		t.Errorf("%d logins, %d times two were inside", logins, together)
	}
	_, fence := ask(t, all[0].url+"/", "alice")
	for _, in := range all {
		if code, got := ask(t, in.url+"/", "alice"); code != 200 || got != fence || fence == "" {
			t.Errorf("%d %q, want %q", code, got, fence)
		}
	}
	// What opens nothing leaves nothing behind.
	if code, _ := ask(t, all[1].url+"/", "bob"); code != 401 {
		t.Errorf("code %d", code)
	}
	if code, _ := ask(t, all[1].url+"/logout", "alice"); code != 200 {
		t.Errorf("code %d", code)
	}
	for _, key := range []string{"alice", "bob"} {
		eventually(t, func() bool { row, _ := d.Get(t.Context(), "app", key); return row.State == affinity.None })
	}
	if code, got := ask(t, all[2].url+"/free", ""); code != 200 || got != "free" {
		t.Errorf("%d %q", code, got)
	}
}

func TestLoginWhoseKeyComesLate(t *testing.T) {
	d := memory.NewDirectory(nil)
	a, b := start(t, d, "a", nil), start(t, d, "b", nil)
	if code, _ := ask(t, a.url+"/late-login?account=carol", ""); code != 200 {
		t.Fatalf("code %d", code)
	}
	if row, _ := d.Get(t.Context(), "app", "carol"); row.Owner.Instance != "a" {
		t.Fatalf("%+v", row)
	}
	if code, body := ask(t, b.url+"/late-login?account=carol", ""); code != 409 || !strings.Contains(body, "session_elsewhere") {
		t.Errorf("%d %s", code, body)
	}
	if m := <-b.closed; m["key"] != "carol" {
		t.Errorf("told %v", m)
	}
}

func TestHungRequestCostsItsSession(t *testing.T) {
	d := memory.NewDirectory(nil)
	in := start(t, d, "a", func(o *sidecar.Options) {
		o.Peers = false
		o.Lock = keylock.Options{MaxHold: 300 * time.Millisecond}
	})
	if code, _ := ask(t, in.url+"/login", "dave"); code != 200 {
		t.Fatalf("code %d", code)
	}
	go func() {
		req, _ := http.NewRequest("GET", in.url+"/hang", nil)
		req.Header.Set("X-Account", "dave")
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
		}
	}()
	if m := <-in.closed; m["key"] != "dave" || m["generation"].(float64) == 0 || !strings.Contains(m["reason"].(string), "force") {
		t.Errorf("told %v", m)
	}
	if code, _ := ask(t, in.url+"/login", "dave"); code != 200 || in.logins.Load() != 2 {
		t.Errorf("code %d, %d logins", code, in.logins.Load())
	}
	close(in.hang)
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never")
		}
	}
}
