package server_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
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
	// Its process ends as kill -9 ends it: nothing is given back.
	instance("b")
	srv.CloseClientConnections()
	srv.Close()
	served("/accounts/alice/page", "alice at b")
}
