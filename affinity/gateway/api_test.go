package gateway_test

import (
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity/affinitytest"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/web/svc"
)

const token = "a-service-token-for-tests"

// The API says everything that a directory does: what is behind it passes the directory's own suite.
func TestAPIIsADirectory(t *testing.T) {
	var skip atomic.Int64
	d := memory.NewDirectory(func() int64 { return time.Now().UnixMicro() + skip.Load() })
	s, err := svc.New(svc.Options{Tokens: []string{token}})
	if err != nil {
		t.Fatal(err)
	}
	s.Handle("/svc/v1/affinity/", gateway.API(d))
	held := newContract(t, s)
	srv := httptest.NewServer(held)
	defer srv.Close()
	affinitytest.TestStore(t, func(*testing.T) affinitytest.Fixture {
		d.Forget("test")
		return affinitytest.Fixture{
			Store: gateway.NewRemote(srv.URL, token, nil), Advance: func(x time.Duration) { skip.Add(x.Microseconds()) },
			Forget: func() { d.Forget("test") },
		}
	})
	for route := range gateway.APIRoutes() {
		if method, path, _ := strings.Cut(route, " "); !held.seen[strings.ToLower(method)+" "+path] && path != "/svc/v1/affinity/{space}/{key}/refresh" {
			t.Errorf("%s was never asked for", route) // the client refreshes by batches; TestAPIRefuses asks for the other
		}
	}
}

func TestAPIRefuses(t *testing.T) {
	h := newContract(t, gateway.API(memory.NewDirectory(nil)))
	for _, tc := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/svc/v1/affinity/s/k/claim", `{"instance":"a","epoch":1}`, 400, "token"},
		{"POST", "/svc/v1/affinity/s/k/claim", `{"instance":"a","epoch":1,"token":"t","build":1}`, 400, "build"},
		{"POST", "/svc/v1/affinity/s/k/claim", `{"instance":"a","epoch":-1,"token":"t"}`, 400, "epoch"},
		{"POST", "/svc/v1/affinity/s{}/k/claim", `{"instance":"a","epoch":1,"token":"t"}`, 400, "space"},
		{"POST", "/svc/v1/affinity/s/k/refresh", `{"instance":"a","epoch":1,"generation":1}`, 409, "not_owner"},
		{"POST", "/svc/v1/affinity/s/k/refresh", `{"instance":"a","epoch":1,"generation":1,"ttl_ms":-1}`, 400, "ttl"},
		{"POST", "/svc/v1/affinity/s/k/clear", `{"instance":"a","epoch":1,"generation":1}`, 409, "not_owner"},
		{"GET", "/svc/v1/affinity/s/k", "", 404, "no_session"},
		{"POST", "/svc/v1/affinity/s/-/instances/x/drain", "", 404, "no_instance"},
		{"PATCH", "/svc/v1/affinity/s/k", "", 405, "use GET"},
		{"POST", "/svc/v1/affinity/s/-/instances/x", "", 405, "use DELETE, PUT"},
		{"GET", "/svc/v1/elsewhere", "", 404, "not_found"},
		{"POST", "/svc/v1/affinity/s/k/claim", `{"instance":"` + strings.Repeat("x", 2<<20) + `"}`, 413, "too_large"},
		{"POST", "/svc/v1/affinity/s/a%2Fb/claim", `{"instance":"a","epoch":1,"token":"t"}`, 200, `"state":"building"`},
		{"GET", "/svc/v1/affinity/s/a%2Fb", "", 200, `"instance":"a"`},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.body)))
		if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.says) {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, w.Code, w.Body)
		}
	}
}
