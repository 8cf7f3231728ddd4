package keylockhttp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/ushergo/usher/keylock"
	"github.com/ushergo/usher/keylock/keylockhttp"
)

func key(r *http.Request) string { return r.URL.Query().Get("account") }

func get(h http.Handler, url string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", url, nil))
	return w
}

func TestOneAtATime(t *testing.T) {
	l := keylock.New(keylock.Options{})
	inside, leave := make(chan string), make(chan struct{})
	h := keylockhttp.Middleware(l, key, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inside <- r.URL.Query().Get("n")
		<-leave
	}))
	go get(h, "/?account=a&n=1")
	<-inside
	go get(h, "/?account=a&n=2")
	for l.Stats().Waiting != 1 { // until it has reached the queue
		runtime.Gosched()
	}
	go get(h, "/?account=b&n=3")
	if n := <-inside; n != "3" {
		t.Fatalf("%s came in beside 1", n)
	}
	go get(h, "/health") // cases/affinity 19: a probe does not wait
	if n := <-inside; n != "" {
		t.Fatalf("%s came in beside 1", n)
	}
	leave <- struct{}{}
	leave <- struct{}{}
	leave <- struct{}{}
	if n := <-inside; n != "2" {
		t.Fatalf("%s", n)
	}
	leave <- struct{}{}
}

func TestRefusals(t *testing.T) {
	l := keylock.New(keylock.Options{MaxWaiting: -1, MaxWait: 1})
	var inner http.Handler
	h := keylockhttp.Middleware(l, key, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(w, r)
	}))
	for _, tc := range []struct {
		inner  func(w http.ResponseWriter, r *http.Request)
		status int
		code   string
	}{
		{func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r.WithContext(context.WithoutCancel(t.Context())))
		}, 429, "key_full"},
		{func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, r) }, 409, "key_reentry"},
		{func(w http.ResponseWriter, r *http.Request) { keylockhttp.Refuse(w, r, keylock.ErrWait) }, 503, "key_busy"},
	} {
		inner = http.HandlerFunc(tc.inner)
		w := get(h, "/?account=a")
		if w.Code != tc.status || !strings.Contains(w.Body.String(), `"`+tc.code+`"`) || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s", tc.code, w.Code, w.Body)
		}
	}
}
