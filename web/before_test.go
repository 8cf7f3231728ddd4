package web_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/web"
)

// What stands in front of the origin sees who was admitted, as trusted proxies tell of them, and never who is asked to
// wait or usher's own paths.
func TestBeforeOrigin(t *testing.T) {
	type seenBefore struct {
		addr, host string
		paths      []string
	}
	var asked []seenBefore
	var refuse atomic.Bool
	s, ticket := inside(t, func(o *web.Options) {
		o.BeforeOrigin = func() http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, seenBefore{web.VisitorAddr(r), r.Host, web.Readings(r)})
				if refuse.Load() {
					web.Refuse(w, r, 429, "gate_full", "as many as may are at work", 2*time.Second)
					return
				}
				web.Forward(w, r)
			})
		}
	}, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte("the site")) })

	s.do("GET", "/premiere", "", append(bearer(""), "Usher-Ticket", ticket, "X-Forwarded-For", "203.0.113.9, 2001:db8:1:2:3:4:5:6", "X-Forwarded-Host", "tickets.test:8443")...).is(t, 200, "")
	if len(asked) != 1 || asked[0].addr != "2001:db8:1:2::/64" || asked[0].host != "tickets.test:8443" || !slices.Equal(asked[0].paths, []string{"/premiere"}) {
		t.Errorf("%+v", asked)
	}
	s.do("GET", "/premiere/%2570ay;x", "", "Usher-Ticket", ticket).is(t, 200, "")
	if got := asked[len(asked)-1].paths; !slices.Contains(got, "/premiere/pay") {
		t.Errorf("readings %q", got)
	}
	n := len(asked)
	s.do("GET", "/premiere", "").is(t, 401, "ticket_missing")
	s.do("GET", "/.usher/v1/rooms/premiere/now", "").is(t, 200, "")
	if len(asked) != n {
		t.Errorf("asked for what goes to no origin: %+v", asked[n:])
	}
	refuse.Store(true)
	r := s.do("GET", "/premiere", "", "Usher-Ticket", ticket)
	r.is(t, 429, "gate_full")
	if r.header.Get("Retry-After") != "2" || r.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%v", r.header)
	}
	b := s.browser() // whose ticket is given out by the request that is refused
	if r := b.open("/premiere"); r.status != 429 || len(r.header["Set-Cookie"]) == 0 {
		t.Fatalf("%d %v", r.status, r.header)
	} else if !strings.Contains(string(r.body), `data-state="origin"`) || r.header.Get("Retry-After") != "2" {
		t.Errorf("a person sees %v %.300s", r.header, r.body)
	}
	refuse.Store(false)
	b.open("/premiere").is(t, 200, "")
	if got := s.summary("premiere").Active; got != 2 {
		t.Errorf("%d sessions for two visitors", got)
	}
}

// What else a node needs makes it unready, and the operator reads why.
func TestReadyAsksForMore(t *testing.T) {
	var sick atomic.Bool
	s := build(t, func(o *web.Options) {
		o.Health = func() error {
			if sick.Load() {
				return errors.New("the gates' journal waits for the disk")
			}
			return nil
		}
	}, config("premiere", 1))
	ready := func(base string) reply { return send(t, request(t, base, "GET", "/health/ready", "")) }
	ready(s.public.URL).is(t, 200, "")
	sick.Store(true)
	ready(s.public.URL).is(t, 503, "engine_unavailable")
	r := ready(s.admin.URL)
	r.is(t, 503, "engine_unavailable")
	if d, _ := r.doc(t)["detail"].(string); !strings.Contains(d, "the gates' journal waits for the disk") {
		t.Errorf("detail %q", d)
	}
}
