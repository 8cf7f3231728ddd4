package gatehttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/gate"
	"github.com/ushergo/usher/gate/gatehttp"
)

func store(t *testing.T) *memory.Gates {
	t.Helper()
	s, err := memory.OpenGates("", memory.GateOptions{Now: func() int64 { return time.Now().UnixMicro() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func open(t *testing.T, s gate.Store, o gate.Options) *gate.Gate {
	t.Helper()
	g, err := gate.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func code(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	var doc struct{ Code string }
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	return doc.Code
}

func byKey(r *http.Request) string { return r.URL.Query().Get("key") }

func TestHandlerLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := open(t, store(t), gate.Options{Permits: 2, Wait: -1})
		var most, now atomic.Int64
		release := make(chan struct{})
		h := gatehttp.Handler(g, byKey, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			<-release
			now.Add(-1)
		}), gatehttp.Options{})
		codes := make(chan int, 6)
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { codes <- get(h, "/?key=a/b").Code })
		}
		synctest.Wait()
		w := get(h, "/?key=a/b")
		if w.Code != 429 || code(t, w) != "gate_full" || w.Header().Get("Retry-After") == "" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		close(release)
		wg.Wait()
		if w := get(h, "/"); w.Code != 200 {
			t.Errorf("without a key: %d", w.Code)
		}
		close(codes)
		n := map[int]int{}
		for c := range codes {
			n[c]++
		}
		if most.Load() != 2 || n[200] != 2 || n[429] != 3 {
			t.Errorf("%d at once, %v", most.Load(), n)
		}
	})
}

// A request that takes longer than the lease keeps its permit; one that lost it is told.
func TestHandlerKeepsThePermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store(t)
		g := open(t, s, gate.Options{Permits: 1, Wait: -1})
		lose := false
		h := gatehttp.Handler(g, byKey, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p := gatehttp.FromContext(r.Context())
			if p == nil || p.Fence() == 0 {
				t.Error("no permit in the context")
			}
			if lose {
				if err := g.Delete(t.Context(), p.Key()); err != nil {
					t.Error(err)
				}
			}
			select {
			case <-r.Context().Done():
				if !errors.Is(context.Cause(r.Context()), gate.ErrExpired) {
					t.Error(context.Cause(r.Context()))
				}
				w.WriteHeader(500)
			case <-time.After(time.Minute):
			}
		}), gatehttp.Options{Lease: 3 * time.Second})
		done := make(chan int, 1)
		go func() { done <- get(h, "/?key=k").Code }()
		time.Sleep(30 * time.Second)
		if w := get(h, "/?key=k"); w.Code != 429 {
			t.Errorf("after ten leases: %d", w.Code)
		}
		if c := <-done; c != 200 {
			t.Errorf("the long request: %d", c)
		}
		lose = true
		if w := get(h, "/?key=k"); w.Code != 500 {
			t.Errorf("whose permit was lost: %d", w.Code)
		}
	})
}

func TestHandlerSettledAndFailing(t *testing.T) {
	g := open(t, store(t), gate.Options{Permits: 1, Wait: -1})
	h := gatehttp.Handler(g, byKey, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := gatehttp.FromContext(r.Context()).Settle(r.Context(), "sold \"out\"", time.Minute); err != nil {
			t.Error(err)
		}
	}), gatehttp.Options{})
	if w := get(h, "/?key=k"); w.Code != 200 {
		t.Fatal(w.Code)
	}
	if w := get(h, "/?key=k"); w.Code != 409 || code(t, w) != "gate_settled" || !strings.Contains(w.Body.String(), `"verdict":"sold \"out\""`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	broken := memoryClosed(t)
	for _, openly := range []bool{false, true} {
		h := gatehttp.Handler(open(t, broken, gate.Options{Permits: 1}), byKey, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), gatehttp.Options{Open: openly})
		w := get(h, "/?key=k")
		if openly && w.Code != 200 || !openly && (w.Code != 503 || code(t, w) != "engine_unavailable") {
			t.Errorf("open %v: %d %s", openly, w.Code, w.Body)
		}
	}
}

func memoryClosed(t *testing.T) gate.Store {
	s := store(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inside := make(chan string, 10)
		release := make(chan struct{})
		rules, err := gatehttp.NewRules(store(t), []gatehttp.Rule{
			{ID: "checkout", Match: []gatehttp.Match{{Host: "tickets.test", Path: "/Checkout"}}, Key: "header:X-Account", Permits: 1},
			{ID: "all", Match: []gatehttp.Match{{Path: "/", Methods: []string{"GET"}}}, Permits: 3, Wait: time.Minute},
		}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inside <- r.URL.Path
			<-release
		}), gatehttp.RulesOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer rules.Close()
		const at = "http://tickets.test"
		var wg sync.WaitGroup
		wg.Go(func() { get(rules, at+"/checkout/pay", "X-Account", "a") })
		synctest.Wait()
		for _, path := range []string{"/checkout", "//checkout", "/CHECKOUT/x", "/a/../checkout", "/checkout//y", "/checkout;v=1/z", "/x/..;/checkout", "/%63heckout", "/checkout%2fpay"} { // no way around by spelling
			if w := get(rules, at+path, "X-Account", "a"); w.Code != 429 {
				t.Errorf("%s: %d", path, w.Code)
			}
		}
		wg.Go(func() { get(rules, at+"/checkout/pay", "X-Account", "b") })   // another account
		wg.Go(func() { get(rules, "http://other.test/checkout", "X", "a") }) // another host
		synctest.Wait()
		if len(inside) != 3 {
			t.Errorf("%d inside", len(inside))
		}
		waits := make(chan int, 1)
		go func() { waits <- get(rules, at+"/elsewhere").Code }()
		synctest.Wait()
		if st := rules.Stats()["all"]; st.Waiting != 1 || st.Held != 3 {
			t.Errorf("%+v", st)
		}
		close(release)
		if c := <-waits; c != 200 {
			t.Errorf("one who waited: %d", c)
		}
		wg.Wait()
	})
}

func TestRulesAreChecked(t *testing.T) {
	for _, tc := range []struct {
		rule gatehttp.Rule
		want string
	}{
		{gatehttp.Rule{ID: "A b"}, "id:"},
		{gatehttp.Rule{ID: "a", Permits: 1}, "match:"},
		{gatehttp.Rule{ID: "a", Permits: 1, Match: []gatehttp.Match{{Path: "x"}}}, "match[0].path"},
		{gatehttp.Rule{ID: "a", Permits: 1, Match: []gatehttp.Match{{Path: "/", Methods: []string{"get"}}}}, "match[0].methods"},
		{gatehttp.Rule{ID: "a", Permits: 0, Match: []gatehttp.Match{{Path: "/"}}}, "permits"},
		{gatehttp.Rule{ID: "a", Permits: 1, Match: []gatehttp.Match{{Path: "/"}}, Key: "header:"}, "key"},
		{gatehttp.Rule{ID: "a", Permits: 1, Match: []gatehttp.Match{{Path: "/"}}, Key: "user"}, "key"},
		{gatehttp.Rule{ID: "a", Permits: 1, Match: []gatehttp.Match{{Path: "/"}}, Wait: time.Hour}, "wait"},
		{gatehttp.Rule{ID: "a", Permits: 1, Match: []gatehttp.Match{{Path: "/"}}, Lease: time.Millisecond}, "lease"},
		{gatehttp.Rule{ID: "a", Permits: 1, Match: []gatehttp.Match{{Path: "/"}}, OnEngineFailure: "maybe"}, "on_engine_failure"},
	} {
		_, err := gatehttp.NewRules(store(t), []gatehttp.Rule{tc.rule}, http.NotFoundHandler(), gatehttp.RulesOptions{})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc.rule, err)
		}
	}
	ok := gatehttp.Rule{ID: "a", Permits: 1, Match: []gatehttp.Match{{Path: "/"}}}
	if _, err := gatehttp.NewRules(store(t), []gatehttp.Rule{ok, ok}, http.NotFoundHandler(), gatehttp.RulesOptions{}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Error(err)
	}
}
