package server_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/config"
)

// Reloads, an operator who changes, deletes and makes rooms, visitors of every kind and at last a stop, all at once:
// no race, no panic, nothing left behind, and everybody who is answered is answered by usher.
func TestEverythingAtOnce(t *testing.T) {
	before := runtime.NumGoroutine()
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Upgrade") != "":
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = io.Copy(c, rw)
			return
		case r.URL.Path == "/stream":
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		case r.URL.Path == "/end":
			w.Header().Set("Usher-Session", "end")
		}
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, "seats")
	}))
	c := configure(t, t.TempDir())
	c.Node.Drain = 5 * time.Second
	c.Rooms[0].Origin = origin.URL
	c.Rooms[0].Capacity.Active = 5
	c.Rooms[0].Match = []config.Match{{Host: "tickets.test", Path: "/"}}
	second := c.Rooms[0]
	second.ID, second.Match = "matinee", []config.Match{{Host: "tickets.test", Path: "/matinee"}}
	c.Rooms = append(c.Rooms, second)
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	s, log := start(t, c)
	public, admin := s.PublicURL(), s.AdminURL()

	quit := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(n int, f func(*http.Client)) {
		for range n {
			wg.Go(func() {
				tr := &http.Transport{}
				client := &http.Client{Transport: tr, Timeout: 2 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
				defer tr.CloseIdleConnections()
				for {
					select {
					case <-quit:
						return
					default:
						f(client)
					}
				}
			})
		}
	}
	rooms := []string{"premiere", "matinee", "extra"}
	do := func(cl *http.Client, method, url, body string, pairs ...string) (int, string) {
		req, err := http.NewRequest(method, url, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		for i := 0; i+1 < len(pairs); i += 2 {
			if pairs[i] == "Host" {
				req.Host = pairs[i+1]
			} else {
				req.Header.Set(pairs[i], pairs[i+1])
			}
		}
		res, err := cl.Do(req)
		if err != nil {
			return 0, ""
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		if res.StatusCode == 500 {
			t.Errorf("%s %s: 500 %s", method, url, b)
		}
		return res.StatusCode, string(b)
	}
	ticketOf := func(body string) string {
		_, rest, ok := strings.Cut(body, `"ticket":"`)
		if !ok {
			return ""
		}
		ticket, _, _ := strings.Cut(rest, `"`)
		return ticket
	}
	// visitors
	loop(6, func(cl *http.Client) {
		id := rooms[rand.N(len(rooms))]
		api := public + "/v1/rooms/" + id
		_, body := do(cl, "POST", api+"/enter", "")
		ticket := ticketOf(body)
		host := []string{"Host", "tickets.test", "Usher-Ticket", ticket}
		path := map[string]string{"premiere": "/", "matinee": "/matinee", "extra": "/extra"}[id]
		for range 1 + rand.N(5) {
			switch rand.N(9) {
			case 0:
				do(cl, "GET", api+"/status", "", "Usher-Ticket", ticket)
			case 1:
				do(cl, "POST", api+"/presence", "", "Usher-Ticket", ticket)
			case 2:
				do(cl, "GET", api+"/now", "")
			case 3:
				do(cl, "GET", api+"/check", "", "Usher-Ticket", ticket)
			case 4:
				do(cl, "POST", public+path, "seat=1", host...)
			case 5:
				do(cl, "GET", public+path, "", append(host, "Accept", "text/html")...)
			case 6:
				do(cl, "GET", public+"/wait/"+id, "", "Accept", "text/html")
			case 7:
				do(cl, "POST", api+"/renew", "", "Usher-Ticket", ticket)
			case 8:
				do(cl, "GET", public+"/end", "", host...)
			}
		}
		if rand.N(2) == 0 {
			do(cl, "POST", api+"/leave", "", "Usher-Ticket", ticket)
		}
	})
	// streams and sockets
	loop(3, func(cl *http.Client) {
		id := rooms[rand.N(2)]
		_, body := do(cl, "POST", public+"/v1/rooms/"+id+"/enter", "")
		ticket := ticketOf(body)
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.N(300))*time.Millisecond)
		defer cancel()
		url, host := public+"/v1/rooms/"+id+"/events", "usher.test"
		if rand.N(2) == 0 {
			url, host = public+"/stream", "tickets.test"
		}
		req, _ := http.NewRequestWithContext(ctx, "GET", url, nil)
		req.Host = host
		req.Header.Set("Usher-Ticket", ticket)
		if res, err := cl.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		if conn, err := net.Dial("tcp", s.Addr()); err == nil {
			fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: tickets.test\r\nUsher-Ticket: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello", ticket)
			_ = conn.SetReadDeadline(time.Now().Add(time.Duration(rand.N(300)) * time.Millisecond))
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}
		do(cl, "POST", public+"/v1/rooms/"+id+"/leave", "", "Usher-Ticket", ticket)
	})
	// the operator
	auth := []string{"Authorization", "Bearer " + adminToken, "If-Match", "*"}
	loop(2, func(cl *http.Client) {
		one := admin + "/admin/v1/rooms/" + rooms[rand.N(len(rooms))]
		switch rand.N(8) {
		case 0:
			do(cl, "PATCH", one, fmt.Sprintf(`{"capacity":{"active":%d}}`, 1+rand.N(9)), auth...)
		case 1:
			do(cl, "DELETE", one+"?force=true", "", auth...)
		case 2:
			do(cl, "PUT", admin+"/admin/v1/rooms/extra", `{"match":[{"host":"tickets.test","path":"/extra"}],"origin":"`+origin.URL+`","capacity":{"active":3}}`, auth...)
		case 3:
			do(cl, "POST", one+"/state", `{"state":"`+[]string{"open", "paused", "closed"}[rand.N(3)]+`","message":"<b>"}`, auth...)
		case 4:
			do(cl, "GET", one+"/log", "", auth...)
		case 5:
			do(cl, "GET", admin+"/metrics", "", auth...)
		case 6:
			do(cl, "GET", admin+"/admin/v1/analysis", "", auth...)
			do(cl, "GET", admin+"/admin/v1/dashboard", "", auth...)
		case 7:
			do(cl, "POST", admin+"/admin/v1/keys/rotate", "", auth...)
		}
		time.Sleep(time.Millisecond)
	})
	loop(1, func(cl *http.Client) {
		next := *c
		next.Rooms = append([]config.Room(nil), c.Rooms...)
		for i := range next.Rooms {
			next.Rooms[i].Capacity.Active = 1 + rand.N(20)
			next.Rooms[i].OnEngineFailure = []string{"closed", "admitted", "open"}[rand.N(3)]
		}
		if err := s.Reload(context.Background(), &next); err != nil && !strings.Contains(err.Error(), "key") {
			t.Log(err)
		}
		time.Sleep(5 * time.Millisecond)
	})
	time.Sleep(2 * time.Second) // of traffic
	drain := &http.Client{Timeout: 2 * time.Second}
	_, nodes := do(drain, "GET", admin+"/admin/v1/nodes", "", auth...)
	_, rest, _ := strings.Cut(nodes, `"id":"`)
	node, _, _ := strings.Cut(rest, `"`)
	do(drain, "POST", admin+"/admin/v1/nodes/"+node+"/drain", "", auth...)
	time.Sleep(300 * time.Millisecond)
	began := time.Now()
	stop(t, s)
	t.Logf("stop took %v", time.Since(began))
	close(quit)
	wg.Wait()
	drain.CloseIdleConnections()
	origin.Close()
	http.DefaultClient.CloseIdleConnections()
	for _, line := range strings.Split(log.String(), "\n") {
		if strings.Contains(line, "panic") || strings.Contains(line, "nil pointer") {
			t.Error(line)
		}
	}
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before+3 && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before+3 {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines, %d before:\n%s", n, before, buf[:runtime.Stack(buf, true)])
	}
}
