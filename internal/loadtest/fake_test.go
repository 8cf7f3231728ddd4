package loadtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeRoom is a small fifo room with the API of the real one, honest unless told otherwise.
type fakeRoom struct {
	// What it does wrong, each once it is possible.
	overtake   bool // admits the last in line instead of the first, once every tenth time
	twice      bool // admits a ticket two times
	overrun    bool // lets one more in than the limit
	forget     bool // forgets a waiting ticket: 401
	shift      bool // moves a ticket's pos back by a hundred when it is asked about
	unlogged   bool // admits without an event
	dropEnter  bool // answers an enter whose ticket is nowhere
	share      bool // gives two visitors one ticket
	rise       bool // shows a place that rises
	flaky      bool // every seventh request answers 503
	noAdmin    bool // admin calls answer 401
	prefix     string
	limit      int
	trimmed    int // so many of the log's events are gone
	base       int // for tests of that
	enterDelay time.Duration

	mu       sync.Mutex
	byID     map[string]*fakeTicket
	byReq    map[string]*fakeTicket
	line     []*fakeTicket
	active   int
	log      []map[string]any
	done     map[string]bool // faults committed
	requests int
}

type fakeTicket struct {
	id, secret string
	seq, pos   int
	state      string // waiting, admitted, left
	changed    chan struct{}
}

func newFake(limit int) *fakeRoom {
	f := &fakeRoom{limit: limit, byID: map[string]*fakeTicket{}, byReq: map[string]*fakeTicket{}, done: map[string]bool{}}
	f.event("limit", nil, map[string]any{"limit": limit, "order": "fifo"})
	return f
}

func (f *fakeRoom) setLimit(n int) {
	f.limit = n
	f.event("limit", nil, map[string]any{"limit": n, "order": "fifo"})
}

// serve starts both listeners and returns their addresses.
func (f *fakeRoom) serve(t *testing.T) (public, admin string) {
	t.Helper()
	p := httptest.NewServer(http.HandlerFunc(f.public))
	t.Cleanup(p.Close)
	a := httptest.NewServer(http.HandlerFunc(f.adminAPI))
	t.Cleanup(a.Close)
	return p.URL, a.URL
}

func (f *fakeRoom) event(typ string, t *fakeTicket, data map[string]any) {
	e := map[string]any{"room": "r", "epoch": 1, "n": len(f.log) + 1, "at": time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), "type": typ}
	if t != nil {
		e["ticket_id"] = t.id
		data = map[string]any{"seq": t.seq, "pos": t.pos, "from": data["from"], "reason": data["reason"]}
	}
	e["data"] = data
	f.log = append(f.log, e)
}

// once says yes the first time that a fault which is switched on becomes possible.
func (f *fakeRoom) once(on bool, name string) bool {
	if !on || f.done[name] {
		return false
	}
	f.done[name] = true
	return true
}

func (f *fakeRoom) promote() {
	for len(f.line) > 0 && (f.active < f.limit || f.once(f.overrun, "overrun")) {
		i := 0
		if len(f.line) > 3 && f.overtake {
			i = len(f.line) - 1
		}
		t := f.line[i]
		f.line = append(f.line[:i:i], f.line[i+1:]...)
		f.active++
		t.state = "admitted"
		if !f.once(f.unlogged, "unlogged") {
			f.event("admitted", t, nil)
		}
		if f.once(f.twice, "twice") {
			f.event("admitted", t, nil)
		}
		close(t.changed)
	}
}

func (f *fakeRoom) answer(t *fakeTicket, secret bool) map[string]any {
	place := 0
	for i, w := range f.line {
		if w == t {
			place = i + 1
		}
	}
	pos := t.pos
	if f.shift && t.state == "waiting" && place > 2 && !secret && f.once(true, "shift") {
		pos += 100
	}
	if f.rise && place > 2 && !secret && f.once(true, "rise") {
		place += 1000
	}
	m := map[string]any{"room": "r", "ticket_id": t.id, "state": t.state, "seq": t.seq, "pos": pos, "place": place, "waiting": len(f.line),
		"eta": nil, "poll_after_ms": 200, "presence_after_ms": 2000, "room_state": "open", "message": "",
		"at": time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), "admission": nil}
	if secret {
		m["ticket"] = t.secret
	}
	if t.state == "admitted" {
		m["admission"] = map[string]any{"token": "eyJ", "expires_at": time.Now().Add(time.Minute).UTC().Format(time.RFC3339Nano), "renew_after_ms": 300}
	}
	return m
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if body != nil {
		json.NewEncoder(w).Encode(body)
	}
}

func problemJSON(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Retry-After", "0")
	reply(w, status, map[string]any{"code": code, "status": status})
}

func (f *fakeRoom) public(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, f.prefix+"/v1/rooms/r/")
	if !ok {
		if strings.HasPrefix(r.URL.Path, "/shop") {
			f.shop(w, r)
			return
		}
		problemJSON(w, 404, "room_not_found")
		return
	}
	f.mu.Lock()
	f.requests++
	flaky := f.flaky && f.requests%7 == 0
	f.mu.Unlock()
	if flaky {
		problemJSON(w, 503, "engine_unavailable")
		return
	}
	switch path {
	case "now":
		reply(w, 200, map[string]any{"room": "r", "waiting": len(f.line)})
		return
	case "enter":
		f.enter(w, r)
		return
	case "events":
		f.events(w, r)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.find(r)
	if t == nil || t.state == "waiting" && path == "status" && len(f.line) > 2 && f.once(f.forget, "forget") {
		problemJSON(w, 401, "no_ticket")
		return
	}
	if t.state == "left" && path != "leave" {
		problemJSON(w, 410, "ticket_ended")
		return
	}
	switch path {
	case "status":
		reply(w, 200, f.answer(t, false))
	case "presence":
		w.WriteHeader(204)
	case "claim", "renew":
		if t.state != "admitted" {
			problemJSON(w, 409, "not_admitted")
			return
		}
		reply(w, 200, f.answer(t, false))
	case "leave":
		f.leave(t)
		w.WriteHeader(204)
	default:
		problemJSON(w, 404, "not_found")
	}
}

// shop is what stands behind the room.
func (f *fakeRoom) shop(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.find(r); t == nil || t.state != "admitted" {
		reply(w, 401, nil)
		return
	}
	fmt.Fprint(w, strings.Repeat("seat ", 1000))
}

func (f *fakeRoom) find(r *http.Request) *fakeTicket {
	id, ok := strings.CutPrefix(r.Header.Get("Usher-Ticket"), "secret-")
	if !ok {
		return nil
	}
	return f.byID[id]
}

func (f *fakeRoom) leave(t *fakeTicket) {
	switch t.state {
	case "admitted":
		f.active--
		f.event("left", t, map[string]any{"from": "admitted", "reason": "left"})
	case "waiting":
		for i, w := range f.line {
			if w == t {
				f.line = append(f.line[:i:i], f.line[i+1:]...)
				break
			}
		}
		f.event("left", t, map[string]any{"from": "waiting", "reason": "left"})
	}
	t.state = "left"
	f.promote()
}

func (f *fakeRoom) enter(w http.ResponseWriter, r *http.Request) {
	var body struct {
		RequestID string `json:"request_id"`
	}
	if json.NewDecoder(r.Body).Decode(&body) != nil || len(body.RequestID) < 22 {
		problemJSON(w, 400, "bad_request")
		return
	}
	time.Sleep(f.enterDelay) // the delay under test in TestResponseCountsFromTheIntendedStart
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.find(r)
	if t == nil {
		t = f.byReq[body.RequestID]
	}
	if t == nil && len(f.byID) > 5 && f.once(f.share, "share") {
		for _, other := range f.byID {
			t = other
		}
	}
	if t == nil {
		seq := len(f.byID) + 1
		t = &fakeTicket{id: "t" + strconv.Itoa(seq), seq: seq, pos: seq, state: "waiting", changed: make(chan struct{})}
		t.secret = "secret-" + t.id
		f.byID[t.id], f.byReq[body.RequestID] = t, t
		if f.once(f.dropEnter, "drop") {
			t.state = "admitted"
		} else {
			f.line = append(f.line, t)
			f.event("entered", t, nil)
			f.promote()
		}
	}
	status := 202
	if t.state == "admitted" {
		status = 200
	}
	reply(w, status, f.answer(t, true))
}

func (f *fakeRoom) events(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	t := f.find(r)
	f.mu.Unlock()
	if t == nil {
		problemJSON(w, 401, "no_ticket")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func() bool {
		f.mu.Lock()
		a := f.answer(t, false)
		f.mu.Unlock()
		m := map[string]any{"type": "rank", "status": "WAITING", "place": a["place"], "waiting": a["waiting"], "at": a["at"]}
		if a["state"] == "admitted" {
			m = map[string]any{"type": "admission", "status": "ADMITTED", "admission": a["admission"], "at": a["at"]}
		}
		b, _ := json.Marshal(m)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", m["type"], b)
		w.(http.Flusher).Flush()
		return a["state"] == "waiting"
	}
	for send() {
		select {
		case <-t.changed:
		case <-time.After(300 * time.Millisecond):
		case <-r.Context().Done():
			return
		}
	}
}

func (f *fakeRoom) adminAPI(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/metrics" {
		fmt.Fprint(w, "# HELP process_cpu_seconds_total x\n# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 1.5\n"+
			"# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes 1.2e+07\n")
		f.mu.Lock()
		n := len(f.log)
		f.mu.Unlock()
		fmt.Fprintf(w, "# TYPE usher_engine_step_seconds histogram\nusher_engine_step_seconds_bucket{op=\"enter\",le=\"0.001\"} %d\n"+
			"usher_engine_step_seconds_bucket{op=\"enter\",le=\"+Inf\"} %d\nusher_engine_step_seconds_sum{op=\"enter\"} %g\nusher_engine_step_seconds_count{op=\"enter\"} %d\n",
			n, n, float64(n)*0.0005, n)
		return
	}
	if f.noAdmin || r.Header.Get("Authorization") != "Bearer admin" {
		problemJSON(w, 401, "unauthorized")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch r.URL.Path {
	case "/admin/v1/rooms/r":
		reply(w, 200, map[string]any{"config": map[string]any{"queue": map[string]any{"order": "fifo", "grace": "5m"}},
			"revision": 1, "active": f.active, "waiting": len(f.line), "limit": f.limit})
	case "/admin/v1/rooms/r/log":
		after, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Query().Get("after"), "1."))
		if after > 0 && after < f.trimmed {
			reply(w, 410, map[string]any{"code": "log_trimmed", "next_cursor": fmt.Sprintf("1.%d", f.trimmed)})
			return
		}
		after = max(after, f.trimmed)
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		end := min(after+limit, len(f.log))
		reply(w, 200, map[string]any{"events": f.log[min(after, end):end], "next": end, "next_cursor": fmt.Sprintf("1.%d", end)})
	default:
		problemJSON(w, 404, "room_not_found")
	}
}
