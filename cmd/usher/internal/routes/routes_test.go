package routes_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/cmd/usher/internal/routes"
	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/engine/memory"
)

const secret = "a secret of the routes"

func TestRoutes(t *testing.T) {
	d := memory.NewDirectory(nil)
	log := slog.New(slog.DiscardHandler)
	srv := httptest.NewUnstartedServer(nil)
	owner, err := affinity.Open(d, affinity.Options[string]{
		Space: "browsers", Instance: "b-1", Addr: srv.Listener.Addr().String(), Every: 50 * time.Millisecond,
		Build: func(_ context.Context, key string, _ uint64) (string, error) { return key, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	srv.Config.Handler = gateway.Owned(owner, func(w http.ResponseWriter, r *http.Request, s affinity.Session[string]) {
		_, _ = io.WriteString(w, "session of "+s.Value)
	}, gateway.OwnedOptions{Secret: secret})
	srv.Start()
	defer owner.Close()
	defer srv.Close()
	r, err := routes.New([]config.Route{{
		ID: "browsers", Match: []config.Match{{Host: "app.test", Path: "/accounts"}}, Key: config.RouteKey{Path: "/accounts/{key}"}, Secret: config.NewSecret(secret),
		Instances: []config.RouteInstance{{ID: "b-1", Addr: srv.Listener.Addr().String()}},
	}}, nil, d, log)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	h := r.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the rooms") }))
	for url, want := range map[string]string{
		"http://app.test/accounts/alice/page": "session of alice",
		"http://APP.test:80/accounts/bob":     "session of bob",
		"http://app.test/accountsx":           "the rooms",
		"http://other.test/accounts/alice":    "the rooms",
		"http://app.test/accounts":            "session_key",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", url, nil))
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", url, w.Code, w.Body)
		}
	}
	if r.Stats()["browsers"].Requests != 2 {
		t.Errorf("%+v", r.Stats())
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(r)
	if got, err := reg.Gather(); err != nil || len(got) != 9 {
		t.Errorf("%v %v", got, err)
	}
	for says, wrong := range map[string]config.Route{
		"match":  {ID: "x", Key: config.RouteKey{Query: "a"}},
		"Key":    {ID: "x", Match: []config.Match{{}}},
		"Static": {ID: "x", Match: []config.Match{{}}, Key: config.RouteKey{Query: "a"}, Instances: []config.RouteInstance{{ID: "a", Addr: "ftp://x"}}},
		"Secret": {ID: "x", Match: []config.Match{{}}, Key: config.RouteKey{Query: "a"}, Secret: config.NewSecret("short")},
	} {
		if _, err := routes.New([]config.Route{wrong}, nil, d, log); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "routes[0]") {
			t.Errorf("%s: %v", says, err)
		}
	}
}
