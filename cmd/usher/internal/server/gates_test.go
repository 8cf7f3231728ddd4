package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/cmd/usher/internal/server"
	"github.com/ushergo/usher/config"
)

const serviceToken = "the-service-token-of-server-tests"

// ask sends a JSON body to the service API and gives status and answer.
func ask(t *testing.T, s *server.Server, token, method, path, body string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequest(method, s.AdminURL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	doc := map[string]any{}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &doc); err != nil {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
	}
	return resp.StatusCode, doc
}

func withServices(t *testing.T, dir string) *config.Config {
	t.Helper()
	c := configure(t, dir)
	c.Service.Tokens = []config.Secret{config.NewSecret("another-token-of-server-tests"), config.NewSecret(serviceToken)}
	return c
}

// A service acquires, settles and releases by HTTP; limits are there after a restart, and fences grow on.
func TestServiceGates(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s, j := start(t, withServices(t, dir))
	const key = "/svc/v1/gates/job:4711"
	expect := func(what string, status, want int, doc map[string]any, code string) {
		t.Helper()
		if got, _ := doc["code"].(string); status != want || got != code {
			t.Fatalf("%s: %d %v, want %d %q", what, status, doc, want, code)
		}
	}
	status, doc := ask(t, s, serviceToken, "POST", key+"/acquire", `{}`)
	expect("a key nobody set", status, 404, doc, "gate_not_found")
	status, doc = ask(t, s, serviceToken, "PUT", key, `{"permits":1}`)
	expect("set", status, 200, doc, "")
	status, held := ask(t, s, serviceToken, "POST", key+"/acquire", `{"lease_ms":60000}`)
	expect("acquire", status, 200, held, "")
	status, doc = ask(t, s, serviceToken, "POST", key+"/acquire", `{"wait_ms":1}`)
	expect("a second", status, 429, doc, "gate_full")

	waiter := make(chan map[string]any)
	go func() {
		_, doc := ask(t, s, serviceToken, "POST", key+"/acquire", `{"wait_ms":60000}`)
		waiter <- doc
	}()
	id, fence := held["id"].(string), uint64(held["fence"].(float64))
	status, doc = ask(t, s, serviceToken, "POST", key+"/settle", fmt.Sprintf(`{"id":%q,"fence":%d,"verdict":"taken by 7","ttl_ms":30000}`, id, fence))
	if status >= 300 {
		t.Fatalf("settle: %d %v", status, doc)
	}
	if doc := <-waiter; doc["code"] != "gate_settled" || doc["verdict"] != "taken by 7" {
		t.Errorf("who waits is told: %v", doc)
	}
	if status, doc = ask(t, s, serviceToken, "POST", key+"/release", fmt.Sprintf(`{"id":%q}`, id)); status != 204 {
		t.Errorf("release: %d %v", status, doc)
	}
	status, doc = ask(t, s, "wrong-token-of-server-tests", "GET", key, "")
	expect("a wrong token", status, 401, doc, "unauthorized")
	status, doc = ask(t, s, adminToken, "GET", key, "")
	expect("the admin's token", status, 401, doc, "unauthorized")
	status, doc = ask(t, s, serviceToken, "GET", "/svc/v1/nothing", "")
	expect("no such path", status, 404, doc, "not_found")
	status, _ = ask(t, s, serviceToken, "GET", "/admin/v1/rooms", "")
	if status != 401 {
		t.Errorf("a service's token opens the admin API: %d", status)
	}
	stop(t, s)
	if log := j.String(); strings.Contains(log, serviceToken) {
		t.Error("the log holds a service token")
	}

	s, _ = start(t, withServices(t, dir))
	status, doc = ask(t, s, serviceToken, "GET", key, "")
	if expect("after a restart", status, 200, doc, ""); doc["permits"] != 1.0 {
		t.Errorf("limit after a restart: %v", doc)
	}
	status, doc = ask(t, s, serviceToken, "POST", key+"/acquire", `{}`)
	if expect("acquire after a restart", status, 200, doc, ""); uint64(doc["fence"].(float64)) <= fence {
		t.Errorf("fence %v after %d", doc["fence"], fence)
	}
}

// Without tokens everybody is refused, and who waits does not hold up a stop.
func TestServiceNeedsTokens(t *testing.T) {
	s, _ := start(t, configure(t, filepath.Join(t.TempDir(), "data")))
	for _, token := range []string{serviceToken, adminToken, ""} {
		if status, doc := ask(t, s, token, "GET", "/svc/v1/gates/job:1", ""); status != 401 || doc["code"] != "unauthorized" {
			t.Errorf("%q: %d %v", token, status, doc)
		}
	}
}

func TestStopAnswersWhoWaits(t *testing.T) {
	s, _ := start(t, withServices(t, filepath.Join(t.TempDir(), "data")))
	const acquire = "/svc/v1/gates/job:1/acquire"
	if status, doc := ask(t, s, serviceToken, "POST", acquire, `{"permits":1}`); status != 200 {
		t.Fatal(status, doc)
	}
	waiter := make(chan map[string]any)
	go func() {
		_, doc := ask(t, s, serviceToken, "POST", acquire, `{"wait_ms":60000}`)
		waiter <- doc
	}()
	until(t, "one waits", func() bool {
		_, doc := ask(t, s, serviceToken, "GET", "/svc/v1/gates/job:1", "")
		return doc["waiting"] == 1.0
	})
	stop(t, s) // in 20 s, while she would wait for 60
	if doc := <-waiter; doc["code"] != "stopping" {
		t.Errorf("%v", doc)
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in 30 s: " + what)
		}
	}
}

// site is an origin that counts who is at it. Requests wait at it until one is let go.
type site struct {
	*httptest.Server
	at, most, served atomic.Int64
	hold             chan struct{} // nil: nobody is held
	ids              sync.Map
}

func newSite(t *testing.T) *site {
	o := &site{}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := o.at.Add(1)
		defer o.at.Add(-1)
		for m := o.most.Load(); n > m && !o.most.CompareAndSwap(m, n); m = o.most.Load() {
		}
		o.served.Add(1)
		o.ids.Store(r.Header.Get("X-Usher-Ticket-Id"), true)
		if o.hold != nil {
			select {
			case <-o.hold:
			case <-r.Context().Done():
			}
		}
		fmt.Fprint(w, "the site")
	}))
	t.Cleanup(o.Close)
	return o
}

// gated gives a configuration with a site behind a room that is never full, and one gate.
func gated(t *testing.T, origin string, g config.Gate) *config.Config {
	t.Helper()
	c := configure(t, filepath.Join(t.TempDir(), "data"))
	c.Rooms[0].Origin, c.Rooms[0].Capacity.Active = origin, 1000
	c.Rooms[0].Match = []config.Match{{Host: "tickets.test", Path: "/premiere"}}
	c.Gates = []config.Gate{g}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

func checkout(permits int, wait time.Duration) config.Gate {
	return config.Gate{
		ID: "checkout", Match: []config.GateMatch{{Path: "/"}}, Key: "all", Permits: permits,
		Wait: wait, MaxWaiting: 1000, Lease: 30 * time.Second, OnEngineFailure: "closed",
	}
}

// get asks the public listener for a path of the site; its host is tickets.test.
func get(client *http.Client, s *server.Server, path string, header ...string) (int, http.Header, string, error) {
	req, err := http.NewRequest(http.MethodGet, s.PublicURL()+path, nil)
	if err != nil {
		return 0, nil, "", err
	}
	req.Host = "tickets.test"
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(text), err
}

// 50 at once on a gate of one permit: never two at the origin, and all come to it in turn. Usher's own paths are
// answered while the only permit is taken.
func TestGateInFrontOfOrigin(t *testing.T) {
	o := newSite(t)
	s, _ := start(t, gated(t, o.URL, checkout(1, time.Minute)))
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if status, _, text, err := get(http.DefaultClient, s, "/about"); err != nil || status != 200 || text != "the site" {
				t.Errorf("%d %q %v", status, text, err)
			}
		})
	}
	all.Wait()
	if o.most.Load() != 1 || o.served.Load() != 50 {
		t.Errorf("%d at once, %d served", o.most.Load(), o.served.Load())
	}
}

func TestGateRefuses(t *testing.T) {
	o := newSite(t)
	o.hold = make(chan struct{})
	c := gated(t, o.URL, checkout(1, 0))
	s, _ := start(t, c)
	client := &http.Client{Transport: &http.Transport{}}
	first := make(chan int, 1)
	go func() {
		status, _, _, _ := get(client, s, "/about")
		first <- status
	}()
	until(t, "one is at the origin", func() bool { return o.at.Load() == 1 })
	for range 50 {
		status, h, text, err := get(client, s, "/about")
		if err != nil || status != 429 || h.Get("Retry-After") == "" || !strings.Contains(text, `"gate_full"`) || h.Get("Cache-Control") != "no-store" {
			t.Fatalf("%d %v %s %v", status, h, text, err)
		}
	}
	for _, path := range []string{"/.usher/v1/rooms/premiere/now", "/.usher/health/live"} {
		if status, _, text, err := get(client, s, path); err != nil || status >= 400 {
			t.Errorf("%s is behind the gate: %d %s %v", path, status, text, err)
		}
	}
	// Who is admitted by the request that the gate refuses keeps her ticket.
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	visitor := &http.Client{Jar: jar, Transport: client.Transport}
	navigation := []string{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Accept", "text/html"}
	status, h, text, err := get(visitor, s, "/premiere", navigation...)
	if err != nil || status != 429 || len(h["Set-Cookie"]) == 0 {
		t.Fatalf("%d %v %s %v", status, h, text, err)
	}
	cookies := strings.Split(h.Get("Set-Cookie"), ";")[0]
	metrics, _ := adminGet(t, s, "/metrics")
	for _, want := range []string{"usher_gate_held 1", "usher_gate_waiting 0", `usher_gate_wait_seconds_count{outcome="full"} 51`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	close(o.hold)
	if status := <-first; status != 200 {
		t.Errorf("who was at the origin: %d", status)
	}
	until(t, "the permit is back", func() bool {
		status, _, _, _ = get(client, s, "/premiere", "Cookie", cookies)
		return status == 200
	})
	if st := s.Rooms().List()[0].Summary(); st.Active != 1 {
		t.Errorf("%d sessions for one visitor", st.Active)
	}
}

func adminGet(t *testing.T, s *server.Server, path string) (string, int) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, s.AdminURL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), resp.StatusCode
}

// Spelling a path otherwise, or claiming another address, evades nothing.
func TestGateIsNotEvaded(t *testing.T) {
	o := newSite(t)
	o.hold = make(chan struct{})
	defer close(o.hold)
	g := checkout(1, 0)
	g.Key, g.Match = "ip", []config.GateMatch{{Host: "tickets.test", Path: "/pay", Methods: []string{"GET"}}}
	s, _ := start(t, gated(t, o.URL, g))
	client := &http.Client{Transport: &http.Transport{}}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.PublicURL()+"/pay", nil)
		req.Host = "tickets.test"
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	until(t, "one is at the origin", func() bool { return o.at.Load() == 1 })
	for _, path := range []string{"/pay", "/PAY/", "//pay", "/x/../pay", "/%70ay", "/%2570ay", "/pay;x=1", "/pay/card", "/./pay", "/x%2f..%2fpay"} {
		status, _, text, err := get(client, s, path, "X-Forwarded-For", "203.0.113.9")
		if err != nil || status != 429 && status != 400 {
			t.Errorf("%s: %d %s %v", path, status, text, err)
		}
	}
}

// A reload brings another number of permits and another rule, while requests run.
func TestGatesReload(t *testing.T) {
	o := newSite(t)
	o.hold = make(chan struct{})
	c := gated(t, o.URL, checkout(1, 0))
	s, _ := start(t, c)
	client := &http.Client{Transport: &http.Transport{}}
	var running sync.WaitGroup
	run := func() {
		running.Go(func() {
			if status, _, text, err := get(client, s, "/about"); err != nil || status != 200 {
				t.Errorf("%d %s %v", status, text, err)
			}
		})
	}
	full := func() bool {
		status, _, _, err := get(client, s, "/about")
		return err == nil && status == 429
	}
	reload := func(gates ...config.Gate) {
		t.Helper()
		next := *c
		next.Gates = gates
		if err := s.Reload(context.Background(), &next); err != nil {
			t.Fatal(err)
		}
	}
	run()
	until(t, "one is at the origin", func() bool { return o.at.Load() == 1 })
	other := checkout(1, 0)
	other.ID, other.Match = "other", []config.GateMatch{{Path: "/other"}}
	reload(checkout(1, 0), other)
	if !full() {
		t.Error("a rule that did not change counts anew")
	}
	reload()
	run()
	until(t, "none is limited", func() bool { return o.at.Load() == 2 })
	reload(checkout(2, 0))
	run()
	run()
	until(t, "two more by the new number", func() bool { return o.at.Load() == 4 })
	if !full() {
		t.Error("more than two by the new number")
	}
	if metrics, _ := adminGet(t, s, "/metrics"); !strings.Contains(metrics, "usher_gate_held 3") {
		t.Error("permits of the rules before are not counted")
	}
	close(o.hold)
	running.Wait()
}
