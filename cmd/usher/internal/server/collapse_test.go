package server_test

import (
	"context"
	"fmt"
	"net/http"
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

// slow is an origin whose answers wait until they are let go.
type slow struct {
	*httptest.Server
	asked   atomic.Int64
	named   atomic.Int64 // requests that named a visitor
	let     chan struct{}
	letOnce sync.Once
}

func newSlow(t *testing.T) *slow {
	o := &slow{let: make(chan struct{})}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := o.asked.Add(1)
		if r.Header.Get("X-Usher-Ticket-Id") != "" || r.Header.Get("X-Usher-Token") != "" {
			o.named.Add(1)
		}
		select {
		case <-o.let:
		case <-r.Context().Done():
			return
		}
		switch {
		case strings.HasSuffix(r.URL.Path, "/cookie"):
			w.Header().Set("Set-Cookie", fmt.Sprintf("cart=%d", n))
		case strings.HasSuffix(r.URL.Path, "/private"):
			w.Header().Set("Cache-Control", "private")
		case strings.HasSuffix(r.URL.Path, "/bye"):
			w.Header().Set("Usher-Session", "end")
		case strings.HasSuffix(r.URL.Path, "/broken"):
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprintf(w, "answer %d", n)
	}))
	t.Cleanup(o.Close)
	t.Cleanup(o.release) // first, else Close waits
	return o
}

func (o *slow) release() { o.letOnce.Do(func() { close(o.let) }) }

func collapsing(t *testing.T, origin string, section string) *config.Config {
	t.Helper()
	c, err := config.Parse([]byte(`
public: {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0", token: ` + adminToken + `}
engine: {dir: ` + filepath.Join(t.TempDir(), "data") + `}
rooms:
- {id: premiere, origin: "` + origin + `", match: [{host: tickets.test, path: /premiere}], capacity: {active: 1000}` + section + `}
`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// admitted are n visitors' tickets.
func admitted(t *testing.T, s *server.Server, n int) []string {
	t.Helper()
	var out []string
	for range n {
		v := enter(t, http.DefaultClient, s.PublicURL(), "")
		if v.State != "admitted" {
			t.Fatalf("%+v", v)
		}
		out = append(out, v.Ticket)
	}
	return out
}

type answer struct {
	status int
	header http.Header
	text   string
}

// together sends one request of each ticket at once, and returns when the site's answers are due and all have come.
func together(t *testing.T, s *server.Server, o *slow, tickets []string, path string, due func() bool, header ...string) []answer {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	out := make([]answer, len(tickets))
	var all sync.WaitGroup
	for i, ticket := range tickets {
		all.Go(func() {
			status, h, text, err := get(client, s, path, append([]string{"Usher-Ticket", ticket}, header...)...)
			if err != nil {
				t.Error(err)
			}
			out[i] = answer{status, h, text}
		})
	}
	until(t, "all wait for "+path, due)
	o.release()
	all.Wait()
	return out
}

func active(t *testing.T, s *server.Server) int64 {
	t.Helper()
	return int64(s.Rooms().List()[0].Summary().Active)
}

// inside counts the requests that wait for a site's answer.
func inside(t *testing.T, s *server.Server) string {
	t.Helper()
	text, _ := adminGet(t, s, "/metrics")
	for line := range strings.SplitSeq(text, "\n") {
		if n, ok := strings.CutPrefix(line, `usher_collapse_waiting{room="premiere"} `); ok {
			return n
		}
	}
	return ""
}

// 50 visitors who want one page are one request to the site, which does not learn of one of them alone.
func TestCollapse(t *testing.T) {
	o := newSlow(t)
	s, _ := start(t, collapsing(t, o.URL, ", collapse: {}"))
	for i, a := range together(t, s, o, admitted(t, s, 50), "/premiere/map", func() bool { return inside(t, s) == "50" }) {
		if a.status != 200 || a.text != "answer 1" || a.header.Get("Cache-Control") != "private" {
			t.Fatalf("visitor %d: %+v", i, a)
		}
	}
	if o.asked.Load() != 1 || o.named.Load() != 0 {
		t.Errorf("%d requests at the site, %d named a visitor", o.asked.Load(), o.named.Load())
	}
}

// Off unless asked for.
func TestCollapseIsOff(t *testing.T) {
	o := newSlow(t)
	s, _ := start(t, collapsing(t, o.URL, ""))
	for _, a := range together(t, s, o, admitted(t, s, 10), "/premiere/map", func() bool { return o.asked.Load() == 10 }) {
		if a.status != 200 {
			t.Errorf("%+v", a)
		}
	}
	if o.named.Load() != 10 {
		t.Errorf("%d of 10 named a visitor", o.named.Load())
	}
}

// What is somebody's is hers alone.
func TestCollapseSharesNothingPersonal(t *testing.T) {
	for _, path := range []string{"/premiere/cookie", "/premiere/private", "/premiere/bye"} {
		t.Run(path[10:], func(t *testing.T) {
			o := newSlow(t)
			s, _ := start(t, collapsing(t, o.URL, ", shared_cache: true, collapse: {}"))
			seen := map[string]bool{}
			for _, a := range together(t, s, o, admitted(t, s, 20), path, func() bool { return inside(t, s) == "20" }) {
				if a.status != 200 || seen[a.text] || seen[a.header.Get("Set-Cookie")+"c"] && path == "/premiere/cookie" {
					t.Errorf("%+v", a)
				}
				seen[a.text], seen[a.header.Get("Set-Cookie")+"c"] = true, true
			}
			if n := active(t, s); path == "/premiere/bye" && n != 0 {
				t.Errorf("%d sessions that were ended are there", n)
			}
			if o.asked.Load() != 20 {
				t.Errorf("%d requests", o.asked.Load())
			}
		})
	}
	for _, header := range [][]string{{"Cookie", "sid=1"}, {"Authorization", "Basic eDp5"}} {
		o := newSlow(t)
		s, _ := start(t, collapsing(t, o.URL, ", collapse: {}"))
		together(t, s, o, admitted(t, s, 5), "/premiere/map", func() bool { return o.asked.Load() == 5 }, header...)
	}
}

func TestCollapseLeavesPOST(t *testing.T) {
	o := newSlow(t)
	s, _ := start(t, collapsing(t, o.URL, ", collapse: {}"))
	var all sync.WaitGroup
	for _, ticket := range admitted(t, s, 10) {
		all.Go(func() {
			req, err := http.NewRequest(http.MethodPost, s.PublicURL()+"/premiere/map", nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Host = "tickets.test"
			req.Header.Set("Usher-Ticket", ticket)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode != 200 {
				t.Error(resp.Status)
			}
		})
	}
	until(t, "each is at the site", func() bool { return o.asked.Load() == 10 })
	o.release()
	all.Wait()
}

// The first visitor leaves: the others get what she asked for.
func TestCollapseOutlivesTheFirst(t *testing.T) {
	o := newSlow(t)
	s, _ := start(t, collapsing(t, o.URL, ", collapse: {}"))
	tickets := admitted(t, s, 6)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	left := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.PublicURL()+"/premiere/map", nil)
		if err == nil {
			req.Host = "tickets.test"
			req.Header.Set("Usher-Ticket", tickets[0])
			_, err = http.DefaultClient.Do(req)
		}
		left <- err
	}()
	until(t, "the first is at the site", func() bool { return o.asked.Load() == 1 })
	gone := false
	for _, a := range together(t, s, o, tickets[1:], "/premiere/map", func() bool {
		if !gone && inside(t, s) == "6" {
			gone = true
			leave()
		}
		return gone && inside(t, s) == "5"
	}) {
		if a.status != 200 || a.text != "answer 1" {
			t.Errorf("%+v", a)
		}
	}
	if err := <-left; err == nil {
		t.Error("the first did not leave")
	}
	if o.asked.Load() != 1 {
		t.Errorf("%d requests", o.asked.Load())
	}
}

// A page that fails is left alone for a while, and visitors are told when to come again.
func TestCollapseBacksOff(t *testing.T) {
	o := newSlow(t)
	o.release()
	s, _ := start(t, collapsing(t, o.URL, ", collapse: {}"))
	ticket := admitted(t, s, 1)[0]
	until(t, "it is left alone", func() bool {
		status, h, text, err := get(http.DefaultClient, s, "/premiere/broken", "Usher-Ticket", ticket)
		if err != nil || status != 500 && status != 503 {
			t.Fatal(status, text, err)
		}
		return status == 503 && strings.Contains(text, `"origin_failing"`) && h.Get("Retry-After") != ""
	})
	if n := active(t, s); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// The section is read again while requests run, which end as they began.
func TestCollapseReload(t *testing.T) {
	o := newSlow(t)
	off, on := collapsing(t, o.URL, ""), collapsing(t, o.URL, ", collapse: {}")
	s, j := start(t, collapsing(t, o.URL, ", collapse: {}"))
	tickets := admitted(t, s, 10)
	var all sync.WaitGroup
	for _, ticket := range tickets {
		all.Go(func() {
			if status, _, text, err := get(http.DefaultClient, s, "/premiere/map", "Usher-Ticket", ticket); err != nil || status != 200 || text != "answer 1" {
				t.Error(status, text, err)
			}
		})
	}
	until(t, "all wait", func() bool { return inside(t, s) == "10" })
	if err := s.Reload(t.Context(), off); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		all.Go(func() {
			if status, _, text, err := get(http.DefaultClient, s, "/premiere/map", "Usher-Ticket", tickets[0]); err != nil || status != 200 || text == "answer 1" {
				t.Error(status, text, err)
			}
		})
	}
	until(t, "it is off", func() bool { return o.asked.Load() == 6 })
	if err := s.Reload(t.Context(), on); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		all.Go(func() {
			if status, _, text, err := get(http.DefaultClient, s, "/premiere/map", "Usher-Ticket", tickets[0]); err != nil || status != 200 || text != "answer 7" {
				t.Error(status, text, err)
			}
		})
	}
	until(t, "it is on again", func() bool { return o.asked.Load() == 7 && inside(t, s) == "5" })
	o.release()
	all.Wait()
	if log := j.String(); strings.Contains(log, "key=rooms") {
		t.Error(log)
	}
}

// A room that has gone from the file stays as it is, and so does its section.
func TestCollapseOfRoomGone(t *testing.T) {
	o := newSlow(t)
	s, _ := start(t, collapsing(t, o.URL, ", collapse: {}"))
	none := collapsing(t, o.URL, "")
	none.Rooms = nil
	if err := s.Reload(t.Context(), none); err != nil {
		t.Fatal(err)
	}
	together(t, s, o, admitted(t, s, 5), "/premiere/map", func() bool { return inside(t, s) == "5" })
	if o.asked.Load() != 1 {
		t.Errorf("%d requests", o.asked.Load())
	}
}

// With the ticket as principal a visitor's own requests are shared, cookies or not, and nobody else's.
func TestCollapseByTicket(t *testing.T) {
	o := newSlow(t)
	s, _ := start(t, collapsing(t, o.URL, ", collapse: {principal_header: X-Usher-Ticket-Id, drop_headers: []}"))
	two := admitted(t, s, 2)
	all := []string{two[0], two[1], two[0], two[1], two[0], two[1]}
	got := together(t, s, o, all, "/premiere/map", func() bool { return inside(t, s) == "6" }, "Cookie", "sid=1")
	for i, a := range got {
		if a.status != 200 || a.text != got[i%2].text {
			t.Errorf("%+v", a)
		}
	}
	if got[0].text == got[1].text || o.asked.Load() != 2 || o.named.Load() != 2 {
		t.Errorf("%d requests, %d with a name", o.asked.Load(), o.named.Load())
	}
}

// A stop does not wait for a request that everybody has left.
func TestCollapseStops(t *testing.T) {
	o := newSlow(t)
	s, _ := start(t, collapsing(t, o.URL, ", collapse: {}"))
	ticket := admitted(t, s, 1)[0]
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	go func() {
		until(t, "she is at the site", func() bool { return o.asked.Load() == 1 })
		leave()
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.PublicURL()+"/premiere/map", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "tickets.test"
	req.Header.Set("Usher-Ticket", ticket)
	if _, err := http.DefaultClient.Do(req); err == nil {
		t.Fatal("answered")
	}
	stopped, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.Shutdown(stopped); err != nil {
		t.Error(err)
	}
}
