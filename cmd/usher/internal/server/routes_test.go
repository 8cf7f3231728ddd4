package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/config"
)

// An instance that keeps its rows by the service API gets what the public listener's route matches.
func TestRoutes(t *testing.T) {
	const secret = "a-secret-of-the-routes"
	c := withServices(t, filepath.Join(t.TempDir(), "data"))
	c.Routes = []config.Route{{
		ID: "browsers", Match: []config.Match{{Path: "/accounts"}}, Key: config.RouteKey{Path: "/accounts/{key}"},
		MaxReplay: 64 << 10, Secret: config.NewSecret(secret),
		Health: config.RouteHealth{Path: "/health/live", Every: 100 * time.Millisecond, Timeout: time.Second, FailAfter: 5 * time.Second},
	}}
	s, _ := start(t, c)
	instance := func(id string) (*affinity.Owner[string], *httptest.Server) {
		srv := httptest.NewUnstartedServer(nil)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))); err == nil {
			srv.Listener.Close()
			srv.Listener = l // an address that is nobody else's after its end
		}
		o, err := affinity.Open(gateway.NewRemote(s.AdminURL(), serviceToken, nil), affinity.Options[string]{
			Space: "browsers", Instance: id, Addr: srv.Listener.Addr().String(), Every: 50 * time.Millisecond,
			Build: func(_ context.Context, key string, _ uint64) (string, error) { return key + " at " + id, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		srv.Config.Handler = gateway.Owned(o, func(w http.ResponseWriter, _ *http.Request, s affinity.Session[string]) {
			_, _ = io.WriteString(w, s.Value)
		}, gateway.OwnedOptions{Secret: secret})
		srv.Start()
		t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); o.Close() })
		return o, srv
	}
	get := func(path string) (int, string) {
		t.Helper()
		res, err := http.Get(s.PublicURL() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	if code, body := get("/accounts/alice"); code != 503 || !strings.Contains(body, "no_instance") {
		t.Errorf("%d %s", code, body)
	}
	a, srv := instance("a")
	served := func(path, want string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			code, body := get(path)
			if code == 200 && body == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d %s, want %s", path, code, body, want)
			}
		}
	}
	served("/accounts/alice/page", "alice at a")
	if a.Owns("alice") == 0 {
		t.Error("a does not know of it")
	}
	if code, body := get("/elsewhere"); strings.Contains(body, "alice") || code == 503 {
		t.Errorf("%d %s", code, body)
	}
	// Drained by the admin API: new sessions go to b, and alice's is closed at the deadline, not before it is asked for.
	instance("b")
	admin := func(method, path, body string) (int, string) {
		t.Helper()
		req, _ := http.NewRequest(method, s.AdminURL()+path, strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+adminToken)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	drain := func(body string) {
		t.Helper()
		if code, answer := admin("POST", "/admin/v1/routes/browsers/drain", body); code != 204 {
			t.Fatalf("%d %s", code, answer)
		}
	}
	drain(`{"instance":"a","within_ms":3600000}`)
	until(t, "a has heard it", func() bool { return errors.Is(a.Health(), affinity.ErrDraining) })
	until(t, "the admin API says so, and knows b", func() bool {
		_, body := admin("GET", "/admin/v1/routes", "")
		return strings.Contains(body, `"instance":"a"`) && strings.Contains(body, `"draining":true`) && strings.Contains(body, `"instance":"b"`)
	})
	served("/accounts/bob", "bob at b")
	served("/accounts/alice", "alice at a")
	drain(`{"instance":"a","within_ms":1}`)
	until(t, "a's sessions have ended", func() bool { return a.Sessions() == 0 })
	served("/accounts/alice", "alice at b")
	drain(`{"instance":"a","on":false}`)
	until(t, "a takes sessions again", func() bool { return a.Health() == nil })

	// Another file: the route goes to other paths, and then there is none. Sessions stay where they are.
	next := *c
	next.Routes = slices.Clone(c.Routes)
	next.Routes[0].Match = []config.Match{{Path: "/members"}}
	next.Routes[0].Key.Path = "/members/{key}"
	if err := s.Reload(t.Context(), &next); err != nil {
		t.Fatal(err)
	}
	served("/members/alice", "alice at b")
	if code, body := get("/accounts/alice"); code == 200 {
		t.Errorf("the old path is still served: %s", body)
	}
	wrong := next
	wrong.Routes = slices.Clone(next.Routes)
	wrong.Routes[0].Match = nil
	if err := s.Reload(t.Context(), &wrong); err == nil || !strings.Contains(err.Error(), "routes[0]") {
		t.Errorf("got %v", err)
	}
	served("/members/alice", "alice at b")
	if err := s.Reload(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	served("/accounts/alice", "alice at b")

	// a's process ends as kill -9 ends it: nothing is given back.
	served("/accounts/carol", "carol at a") // it has the fewest
	srv.CloseClientConnections()
	srv.Close()
	served("/accounts/carol", "carol at b")
}
