package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/web"
)

const requestID = "0123456789abcdefghijkl"

// inState makes a room of one slot that is taken, in the given state.
func inState(t *testing.T, state string) *site {
	s := build(t, nil, config("premiere", 1))
	s.enter("premiere")
	if state != "" {
		s.api("POST", "/admin/v1/rooms/premiere/state", `{"state":"`+state+`","message":"back at 19:40"}`).is(t, 200, "")
	}
	return s
}

// Every row of the table for enter.
func TestEnterAnswers(t *testing.T) {
	t.Run("200 admitted", func(t *testing.T) {
		s := build(t, nil, config("premiere", 1))
		r, _ := s.enter("premiere")
		r.is(t, 200, "")
		d := r.doc(t)
		if d["state"] != "admitted" || d["place"] != 0.0 || d["admission"] == nil {
			t.Errorf("%s", r.body)
		}
		adm := d["admission"].(map[string]any)
		a, err := s.keys.Verify("premiere", adm["token"].(string), time.Now())
		if err != nil || a.TicketID != d["ticket_id"] || a.Issuer != "http://usher.test" {
			t.Errorf("admission %+v, %v", a, err)
		}
		if got := a.Expires.UTC().Format(time.RFC3339); got != adm["expires_at"] {
			t.Errorf("expires_at %v, the token says %s", adm["expires_at"], got)
		}
		if adm["renew_after_ms"] != 60000.0 {
			t.Errorf("renew_after_ms %v", adm["renew_after_ms"])
		}
		if r.header.Get("Cache-Control") != "no-store" {
			t.Error("a cache may store it")
		}
	})
	t.Run("202 waiting", func(t *testing.T) {
		s := inState(t, "")
		r, _ := s.enter("premiere")
		r.is(t, 202, "")
		d := r.doc(t)
		if d["state"] != "waiting" || d["place"] != 1.0 || d["seq"] != 2.0 || d["pos"] != 2.0 || d["waiting"] != 1.0 || d["admission"] != nil || d["room_state"] != "open" {
			t.Errorf("%s", r.body)
		}
	})
	t.Run("202 paused", func(t *testing.T) { // cases/room 26
		s := inState(t, "paused")
		r, _ := s.enter("premiere")
		r.is(t, 202, "")
		if d := r.doc(t); d["room_state"] != "paused" || d["message"] != "back at 19:40" || d["place"] != 1.0 {
			t.Errorf("%s", r.body)
		}
	})
	t.Run("403 closed", func(t *testing.T) {
		s := inState(t, "closed")
		r := s.do("POST", "/v1/rooms/premiere/enter", "")
		r.is(t, 403, "room_closed")
		if r.doc(t)["message"] != "back at 19:40" {
			t.Errorf("%s", r.body)
		}
	})
	t.Run("403 not open", func(t *testing.T) {
		c := config("premiere", 1)
		c.Schedule.OpensAt = room.Time{Time: time.Now().Add(time.Hour)}
		r := build(t, nil, c).do("POST", "/v1/rooms/premiere/enter", "")
		r.is(t, 403, "room_not_open")
		if r.header.Get("Retry-After") == "" || r.doc(t)["opens_at"] == nil || r.doc(t)["enters_at"] == nil {
			t.Errorf("%v %s", r.header, r.body)
		}
	})
	t.Run("404", func(t *testing.T) {
		s := build(t, nil, config("premiere", 1))
		s.do("POST", "/v1/rooms/nothing/enter", "").is(t, 404, "room_not_found")
		s.do("POST", "/v1/rooms/NOTHING/enter", "").is(t, 404, "room_not_found")
		s.do("POST", "/v1/rooms//enter", "").is(t, 404, "not_found")
		s.do("POST", "/v1/nothing", "").is(t, 404, "not_found")
	})
	t.Run("410 spent", func(t *testing.T) {
		s := build(t, nil, config("premiere", 1))
		body := `{"request_id":"` + requestID + `"}`
		secret := s.do("POST", "/v1/rooms/premiere/enter", body).secret(t)
		s.do("POST", "/v1/rooms/premiere/leave", "", bearer(secret)...).is(t, 204, "")
		r := s.do("POST", "/v1/rooms/premiere/enter", body)
		r.is(t, 410, "request_spent")
		if r.doc(t)["reason"] != "left" {
			t.Errorf("%s", r.body)
		}
		// An ended ticket without request id gets a new one.
		again := s.do("POST", "/v1/rooms/premiere/enter", "", bearer(secret)...)
		if again.status != 200 || again.secret(t) == secret {
			t.Errorf("%d %s", again.status, again.body)
		}
	})
	t.Run("429 full", func(t *testing.T) { // cases/room 25
		c := config("premiere", 1)
		c.Queue.Order = room.Reject
		s := build(t, nil, c)
		s.enter("premiere")
		r := s.do("POST", "/v1/rooms/premiere/enter", "")
		r.is(t, 429, "room_full")
		if r.header.Get("Retry-After") == "" || r.header.Get("Set-Cookie") != "" {
			t.Errorf("%v", r.header)
		}
	})
	t.Run("503", func(t *testing.T) {
		s := inState(t, "")
		s.store.spoil(func(*room.Command) error { return room.ErrUnavailable }, nil)
		r := s.do("POST", "/v1/rooms/premiere/enter", "")
		r.is(t, 503, "engine_unavailable")
		if r.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	})
	t.Run("405", func(t *testing.T) {
		r := build(t, nil, config("premiere", 1)).do("GET", "/v1/rooms/premiere/enter", "")
		r.is(t, 405, "method_not_allowed")
		if r.header.Get("Allow") != "POST" {
			t.Errorf("Allow %q", r.header.Get("Allow"))
		}
	})
}

// Every row of the table for what follows enter.
func TestTicketAnswers(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	_, inside := s.enter("premiere")
	_, waiting := s.enter("premiere")
	_, gone := s.enter("premiere")
	s.do("POST", "/v1/rooms/premiere/leave", "", bearer(gone)...).is(t, 204, "")
	for _, tc := range []struct {
		method, path, secret string
		status               int
		code                 string
	}{
		{"GET", "status", inside, 200, ""},
		{"GET", "status", waiting, 200, ""},
		{"GET", "status", "", 401, "ticket_missing"},
		{"GET", "status", "junk", 401, "ticket_invalid"},
		{"GET", "status", gone, 410, "ticket_ended"},
		{"POST", "presence", inside, 204, ""},
		{"POST", "presence", waiting, 204, ""},
		{"POST", "presence", "", 401, "ticket_missing"},
		{"POST", "presence", gone, 410, "ticket_ended"},
		{"POST", "claim", inside, 200, ""},
		{"POST", "claim", waiting, 409, "not_admitted"},
		{"POST", "claim", "", 401, "ticket_missing"},
		{"POST", "claim", gone, 410, "ticket_ended"},
		{"POST", "renew", inside, 200, ""},
		{"POST", "renew", waiting, 409, "not_admitted"},
		{"POST", "renew", gone, 410, "ticket_ended"},
		{"GET", "events", "", 401, "ticket_missing"},
		{"GET", "events", gone, 410, "ticket_ended"},
		{"POST", "leave", gone, 204, ""},
		{"POST", "leave", waiting, 204, ""},
		{"POST", "leave", waiting, 204, ""},
		{"POST", "leave", inside, 204, ""},
	} {
		t.Run(fmt.Sprint(tc.method, " ", tc.path, " ", tc.status), func(t *testing.T) {
			var h []string
			if tc.secret != "" {
				h = bearer(tc.secret)
			}
			r := s.do(tc.method, "/v1/rooms/premiere/"+tc.path, "", h...)
			r.is(t, tc.status, tc.code)
			if r.header.Get("Cache-Control") != "no-store" { // cases/room 2
				t.Errorf("Cache-Control %q", r.header.Get("Cache-Control"))
			}
			if strings.Contains(string(r.body), `"ticket":`) {
				t.Errorf("the secret is in the answer: %s", r.body)
			}
			if tc.status == 410 && r.doc(t)["reason"] != "left" {
				t.Errorf("%s", r.body)
			}
		})
	}
}

func TestRenewGivesFreshAdmission(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	_, secret := s.enter("premiere")
	admission := func(r reply) string {
		r.is(t, 200, "")
		return r.doc(t)["admission"].(map[string]any)["token"].(string)
	}
	first := admission(s.do("POST", "/v1/rooms/premiere/claim", "", bearer(secret)...))
	second := admission(s.do("POST", "/v1/rooms/premiere/renew", "", bearer(secret)...))
	if first == second {
		t.Error("renew gave the same token")
	}
	if third := admission(s.do("POST", "/v1/rooms/premiere/renew", "", bearer(secret)...)); third == second {
		t.Error("renew gave the same token")
	}
}

func TestRefreshKeepsPlace(t *testing.T) { // cases/room 3
	s := inState(t, "")
	first, secret := s.enter("premiere")
	name := "usher-premiere"
	for range 100 {
		r := s.do("POST", "/v1/rooms/premiere/enter", "", "Cookie", name+"="+secret)
		if r.status != 202 || r.doc(t)["seq"] != first.doc(t)["seq"] || r.secret(t) != secret {
			t.Fatalf("%d %s", r.status, r.body)
		}
		if c := r.cookie(name); c == nil || c.Value != secret {
			t.Fatalf("cookie %v", c)
		}
	}
	if sum := s.summary("premiere"); sum.LastSeq != 2 {
		t.Errorf("%d tickets were issued", sum.LastSeq)
	}
}

func (s *site) summary(id string) room.Summary {
	r, ok := s.rooms.Lookup(id)
	if !ok {
		s.t.Fatalf("no room %s", id)
	}
	return r.Summary()
}

func TestParallelEntersOfOneRequestAreOneTicket(t *testing.T) { // cases/room 4
	s := inState(t, "")
	var wg sync.WaitGroup
	seqs := make([]any, 100)
	for i := range seqs {
		wg.Go(func() {
			r := s.do("POST", "/v1/rooms/premiere/enter", `{"request_id":"`+requestID+`"}`)
			if r.status != 202 {
				t.Errorf("%d %s", r.status, r.body)
				return
			}
			seqs[i] = r.doc(t)["seq"]
		})
	}
	wg.Wait()
	for _, seq := range seqs {
		if seq != 2.0 {
			t.Fatalf("seqs %v", seqs)
		}
	}
}

func TestParallelClaimsCountOnce(t *testing.T) { // cases/room 5
	s := build(t, nil, config("premiere", 1))
	_, secret := s.enter("premiere")
	var wg sync.WaitGroup
	bodies := make([]string, 50)
	for i := range bodies {
		wg.Go(func() {
			r := s.do("POST", "/v1/rooms/premiere/claim", "", bearer(secret)...)
			if r.status != 200 {
				t.Errorf("%d %s", r.status, r.body)
				return
			}
			d := r.doc(t)
			bodies[i] = fmt.Sprint(d["state"], d["ticket_id"], d["seq"])
		})
	}
	wg.Wait()
	for _, b := range bodies {
		if b != bodies[0] {
			t.Errorf("%q and %q", b, bodies[0])
		}
	}
	rm, _ := s.rooms.Lookup("premiere")
	events, _, err := rm.Log(context.Background(), room.Cursor{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range events {
		if e.Type == room.Claimed {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d claims counted", n)
	}
}

func TestMalformedEntersChangeNothing(t *testing.T) { // cases/room 6
	s := inState(t, "")
	before := s.summary("premiere")
	for _, tc := range []struct {
		body   string
		status int
	}{
		{`{`, 400}, {`[]`, 400}, {`"x"`, 400}, {`null`, 400}, {`{"request_id":"` + requestID + `"} x`, 400},
		{`{"request_id":""}`, 400}, {`{"request_id":"short"}`, 400}, {`{"request_id":1}`, 400},
		{`{"request_id":"` + strings.Repeat("a", 65) + `"}`, 400}, {`{"request_id":"0123456789abcdefghij!!"}`, 400},
		{`{"request_id":"0123456789abcdefghijkl\n"}`, 400}, {`{"request_id":"` + strings.Repeat("é", 22) + `"}`, 400},
		{`{"request_id":"` + requestID + `","seq":1}`, 400}, {`{"Request_ID":"` + requestID + `"}`, 400},
		{`{"request_id":"` + requestID + `" "a":"b"}`, 400},
		{`{"a":"` + strings.Repeat("a", 5000) + `"}`, 413},
	} {
		r := s.do("POST", "/v1/rooms/premiere/enter", tc.body)
		if r.status != tc.status {
			t.Errorf("%.60s: %d, want %d: %s", tc.body, r.status, tc.status, r.body)
		}
		if strings.Contains(string(r.body), requestID) {
			t.Errorf("the request id is in the answer: %s", r.body)
		}
	}
	if after := s.summary("premiere"); after.LastSeq != before.LastSeq || after.Waiting != before.Waiting {
		t.Errorf("before %d %d, after %d %d", before.LastSeq, before.Waiting, after.LastSeq, after.Waiting)
	}
	for _, body := range []string{`{}`, `{"request_id":null}`, " { \"request_id\" :\n\"" + requestID + "\" } "} {
		s.do("POST", "/v1/rooms/premiere/enter", body).is(t, 202, "")
	}
}

// A body of unknown length is read to the limit and no further.
func TestChunkedBodies(t *testing.T) {
	s := inState(t, "")
	for _, tc := range []struct {
		body   string
		status int
	}{{`{"request_id":"` + requestID + `"}`, 202}, {strings.Repeat(" ", 5000), 413}} {
		req := request(t, s.public.URL, "POST", "/v1/rooms/premiere/enter", "")
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(tc.body)), -1
		if r := send(t, req); r.status != tc.status {
			t.Errorf("%d, want %d: %s", r.status, tc.status, r.body)
		}
	}
}

func TestLostReplyIsSettledByRequestID(t *testing.T) { // cases/room 20
	s := inState(t, "")
	s.store.spoil(nil, func(cmd *room.Command) error {
		if cmd.Op == room.OpEnter {
			return room.ErrUnknown
		}
		return nil
	})
	body := `{"request_id":"` + requestID + `"}`
	s.do("POST", "/v1/rooms/premiere/enter", body).is(t, 503, "engine_unavailable")
	s.store.spoil(nil, nil)
	r := s.do("POST", "/v1/rooms/premiere/enter", body)
	r.is(t, 202, "")
	if r.doc(t)["seq"] != 2.0 || s.summary("premiere").LastSeq != 2 {
		t.Errorf("%s", r.body)
	}
}

func TestFailedReadsFailAlone(t *testing.T) { // cases/room 21
	s := build(t, nil, config("premiere", 1)) // admitted: who waits is answered without the store
	_, secret := s.enter("premiere")
	var n int
	var mu sync.Mutex
	s.store.spoil(func(cmd *room.Command) error {
		mu.Lock()
		defer mu.Unlock()
		if n++; n%100 == 0 {
			return room.ErrUnavailable
		}
		return nil
	}, nil)
	failed := 0
	for range 500 {
		switch r := s.do("GET", "/v1/rooms/premiere/status", "", bearer(secret)...); r.status {
		case 200:
		case 503:
			failed++
		default:
			t.Fatalf("%d %s", r.status, r.body)
		}
	}
	if failed < 4 || failed > 6 { // the shell's own commands take some of the hundredths
		t.Errorf("%d of 500 failed", failed)
	}
}

func TestTicketIDAloneAdmitsNobody(t *testing.T) { // cases/room 16
	s := build(t, nil, config("premiere", 1))
	r, secret := s.enter("premiere")
	id := r.doc(t)["ticket_id"].(string)
	forged := []string{id, secret[:len(secret)-1] + "A", strings.ToUpper(secret), strings.Repeat("A", len(secret)), "", id + id}
	for _, f := range forged {
		if f == secret {
			continue
		}
		for _, h := range [][]string{bearer(f), {"Usher-Ticket", f}, {"Cookie", "usher-premiere=" + f}} {
			s.do("GET", "/v1/rooms/premiere/status", "", h...).is(t, 401, "")
			s.do("POST", "/v1/rooms/premiere/claim", "", h...).is(t, 401, "")
		}
	}
	// In the URL even the true one is nothing.
	s.do("GET", "/v1/rooms/premiere/status?ticket="+secret, "").is(t, 401, "ticket_missing")
	s.do("POST", "/v1/rooms/premiere/enter", `{"request_id":"`+requestID+`"}`)
	metrics := s.api("GET", "/metrics", "")
	for _, where := range []string{s.log.String(), string(metrics.body)} {
		for _, word := range []string{secret, requestID, adminToken, "eyJ"} {
			if strings.Contains(where, word) {
				t.Errorf("a secret was logged or counted: %.200s", where)
			}
		}
	}
	// A ticket of another room is none here.
	c := config("other", 1)
	if _, err := s.rooms.Configure(context.Background(), c, 0); err != nil {
		t.Fatal(err)
	}
	s.do("GET", "/v1/rooms/other/status", "", bearer(secret)...).is(t, 401, "ticket_invalid")
}

func TestTicketTravels(t *testing.T) {
	c := config("premiere", 1)
	c.Match = []room.Match{{Host: "tickets.test", Path: "/premiere"}}
	s := build(t, nil, c)
	_, secret := s.enter("premiere")
	_, other := s.enter("premiere")
	named := []string{"Host", "tickets.test"}
	get := func(path string, pairs ...string) reply { return s.do("GET", path, "", pairs...) }
	for _, tc := range []struct {
		name, path string
		header     []string
		status     int
	}{
		{"bearer", "/v1/rooms/premiere/status", bearer(secret), 200},
		{"bearer, odd case", "/v1/rooms/premiere/status", []string{"Authorization", "bEARER " + secret}, 200},
		{"header", "/v1/rooms/premiere/status", []string{"Usher-Ticket", secret}, 200},
		{"cookie", "/v1/rooms/premiere/status", []string{"Cookie", "a=b; usher-premiere=" + secret + "; c=d"}, 200},
		{"cookie of https over http", "/v1/rooms/premiere/status", []string{"Cookie", "__Host-usher-premiere=" + secret}, 401},
		{"cookie over https", "/v1/rooms/premiere/status", []string{"Cookie", "__Host-usher-premiere=" + secret, "X-Forwarded-Proto", "https"}, 200},
		{"cookie of http over https", "/v1/rooms/premiere/status", []string{"Cookie", "usher-premiere=" + secret, "X-Forwarded-Proto", "https"}, 401},
		{"basic", "/v1/rooms/premiere/status", []string{"Authorization", "Basic " + secret}, 401},
		{"conflict", "/v1/rooms/premiere/status", append(bearer(secret), "Cookie", "usher-premiere="+other), 400},
		{"conflict of headers", "/v1/rooms/premiere/status", append(bearer(secret), "Usher-Ticket", other), 400},
		{"the same twice", "/v1/rooms/premiere/status", append(bearer(secret), "Cookie", "usher-premiere="+secret), 200},
		{"junk beside a ticket", "/v1/rooms/premiere/status", append(bearer(secret), "Cookie", "usher-premiere=junk"), 200},
		{"named host, bearer", "/.usher/v1/rooms/premiere/status", append(bearer(secret), named...), 401},
		{"named host, header", "/.usher/v1/rooms/premiere/status", append([]string{"Usher-Ticket", secret}, named...), 200},
		{"named host, cookie", "/.usher/v1/rooms/premiere/status", append([]string{"Cookie", "usher-premiere=" + secret}, named...), 200},
		{"named host, the origin's bearer", "/.usher/v1/rooms/premiere/status", append([]string{"Usher-Ticket", secret, "Authorization", "Bearer " + other}, named...), 200},
		{"no prefix on named hosts", "/v1/rooms/premiere/nothing", named, 404},
		{"no named host, prefix", "/.usher/v1/rooms/premiere/status", []string{"Usher-Ticket", secret}, 404},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if r := get(tc.path, tc.header...); r.status != tc.status {
				t.Errorf("%d, want %d: %s", r.status, tc.status, r.body)
			}
		})
	}
	s.do("POST", "/v1/rooms/premiere/enter", "", append(bearer(secret), "Cookie", "usher-premiere="+other)...).is(t, 400, "ticket_conflict")
}

func TestCookie(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	r, secret := s.enter("premiere")
	c := r.cookie("usher-premiere")
	if c == nil || c.Value != secret || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Secure || c.Path != "/" || c.Domain != "" {
		t.Errorf("http: %+v", c)
	}
	r = s.do("POST", "/v1/rooms/premiere/enter", "", "X-Forwarded-Proto", "https")
	c = r.cookie("__Host-usher-premiere")
	if c == nil || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || !c.Secure || c.Path != "/" || c.Domain != "" {
		t.Errorf("https: %+v", c)
	}
	// The operator says that visitors see https, and the proxy is not named as trusted.
	s = build(t, func(o *web.Options) { o.PublicURL, o.TrustedProxies = "https://tickets.test", nil }, config("premiere", 1))
	if r = s.do("POST", "/v1/rooms/premiere/enter", "", "Host", "tickets.test"); r.cookie("__Host-usher-premiere") == nil {
		t.Errorf("%v", r.header)
	}
	if r = s.do("POST", "/v1/rooms/premiere/enter", "", "X-Forwarded-Proto", "https"); r.cookie("usher-premiere") == nil {
		t.Errorf("X-Forwarded-Proto of a stranger was believed: %v", r.header)
	}
	// Who keeps tickets by herself is given no cookie.
	if r = s.do("POST", "/v1/rooms/premiere/enter", "", bearer(secret)...); r.header.Get("Set-Cookie") != "" {
		t.Errorf("%v", r.header)
	}
}

func TestNow(t *testing.T) {
	s := inState(t, "")
	s.enter("premiere")
	r := s.do("GET", "/v1/rooms/premiere/now", "", "Origin", "https://elsewhere.test", "Sec-Fetch-Site", "cross-site")
	r.is(t, 200, "")
	if r.header.Get("Cache-Control") != "public, max-age=1" || r.header.Get("Access-Control-Allow-Origin") != "*" || r.header.Get("Set-Cookie") != "" || r.header.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("%v", r.header)
	}
	var now room.Now
	if err := json.Unmarshal(r.body, &now); err != nil {
		t.Fatal(err)
	}
	if now.Room != "premiere" || now.RoomState != "open" || now.Active != 1 || now.LastSeq != 2 || len(now.Sketch) != 1 {
		t.Errorf("%+v", now)
	}
	eventually(t, "not modified", func() bool { // the document may grow a second older in between
		tag := s.do("GET", "/v1/rooms/premiere/now", "").header.Get("ETag")
		return s.do("GET", "/v1/rooms/premiere/now", "", "If-None-Match", tag).status == 304
	})
	s.api("POST", "/admin/v1/rooms/premiere/state", `{"state":"paused","message":"soon"}`).is(t, 200, "")
	eventually(t, "paused", func() bool { // cases/room 26: within 5 s; the cache is one of them
		d := s.do("GET", "/v1/rooms/premiere/now", "").doc(t)
		return d["room_state"] == "paused" && d["message"] == "soon"
	})
	s.do("GET", "/v1/rooms/nothing/now", "").is(t, 404, "room_not_found")
}

func TestClosingDrainsAtTheRate(t *testing.T) { // cases/room 17
	s := inState(t, "")
	_, first := s.enter("premiere")
	_, second := s.enter("premiere")
	s.api("POST", "/admin/v1/rooms/premiere/state", `{"state":"closed"}`).is(t, 200, "")
	s.do("POST", "/v1/rooms/premiere/enter", "").is(t, 403, "room_closed")
	for _, secret := range []string{first, second} {
		r := s.do("POST", "/v1/rooms/premiere/enter", "", bearer(secret)...) // who waits keeps her place
		r.is(t, 202, "")
		if d := r.doc(t); d["state"] != "waiting" || d["room_state"] != "closed" {
			t.Errorf("%s", r.body)
		}
	}
	if sum := s.summary("premiere"); sum.Active != 1 || sum.Waiting != 2 {
		t.Errorf("%+v", sum)
	}
}

func TestPollingKeepsPlace(t *testing.T) { // cases/room 18
	t.Parallel()
	c := config("premiere", 1)
	c.Queue.Grace = room.Duration(6 * time.Second)
	s := build(t, nil, c)
	s.enter("premiere")
	_, polls := s.enter("premiere")
	_, silent := s.enter("premiere")
	eventually(t, "the silent one is gone", func() bool {
		s.do("GET", "/v1/rooms/premiere/status", "", bearer(polls)...).is(t, 200, "")
		return s.summary("premiere").Waiting == 1
	})
	r := s.do("GET", "/v1/rooms/premiere/status", "", bearer(silent)...)
	r.is(t, 410, "ticket_ended")
	if r.doc(t)["reason"] != "abandoned" {
		t.Errorf("%s", r.body)
	}
	s.do("GET", "/v1/rooms/premiere/status", "", bearer(polls)...).is(t, 200, "")
}

// What can go wrong on every path of a ticket does so alike.
func TestRefusalsEverywhere(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	_, one := s.enter("premiere")
	_, two := s.enter("premiere")
	calls := [][2]string{{"GET", "status"}, {"POST", "presence"}, {"POST", "claim"}, {"POST", "renew"}, {"POST", "leave"}, {"GET", "events"}}
	each := func(status int, code, id string, pairs ...string) {
		t.Helper()
		for _, call := range calls {
			s.do(call[0], "/v1/rooms/"+id+"/"+call[1], "", pairs...).is(t, status, code)
		}
	}
	each(401, "ticket_missing", "premiere")
	each(404, "room_not_found", "nothing", bearer(one)...)
	each(400, "ticket_conflict", "premiere", append(bearer(one), "Usher-Ticket", two)...)
	calls = append(calls[1:], [2]string{"POST", "enter"})
	each(403, "cross_site", "premiere", append(bearer(one), "Origin", "https://evil.test")...)
	calls[len(calls)-1] = [2]string{"GET", "status"}
	s.store.spoil(func(*room.Command) error { return room.ErrUnavailable }, nil)
	each(503, "engine_unavailable", "premiere", bearer(one)...)
	s.store.spoil(func(*room.Command) error { return context.DeadlineExceeded }, nil)
	each(503, "engine_unavailable", "premiere", bearer(one)...)
}
