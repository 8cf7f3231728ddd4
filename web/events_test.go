package web_test

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/web"
)

const eventsPath = "/v1/rooms/premiere/events"

func quick(o *web.Options) { o.StatsEvery = 20 * time.Millisecond }

func TestEventsOfAWaiter(t *testing.T) {
	s := build(t, quick, config("premiere", 1))
	_, inside := s.enter("premiere")
	_, secret := s.enter("premiere")
	e := s.stream(eventsPath, bearer(secret)...)
	h := e.resp.Header
	if e.resp.StatusCode != 200 || h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-store, no-transform" || h.Get("X-Accel-Buffering") != "no" {
		t.Fatalf("%d %v", e.resp.StatusCode, h)
	}
	first, ok := e.next()
	if !ok || first.doc["type"] != "rank" || first.doc["status"] != "WAITING" || first.doc["place"] != 1.0 || first.doc["waiting"] != 1.0 || first.doc["at"] == nil {
		t.Fatalf("first event %+v", first)
	}
	if _, has := first.doc["eta"]; !has {
		t.Error("no eta")
	}
	if cursor, err := room.ParseCursor(first.id); err != nil || cursor.N == 0 {
		t.Errorf("id %q: %v", first.id, err)
	}
	if ms, err := strconv.Atoi(e.retry); err != nil || ms < 1000 {
		t.Errorf("retry %q", e.retry)
	}
	stats := e.until("stats")
	if d := stats.doc; d["waiting"] != 1.0 || d["active"] != 1.0 || d["room_state"] != "open" || d["message"] != "" || d["at"] == nil {
		t.Errorf("stats %v", d)
	}
	s.api("POST", "/admin/v1/rooms/premiere/state", `{"state":"paused","message":"soon"}`).is(t, 200, "")
	for { // cases/room 26
		if d := e.until("stats").doc; d["room_state"] == "paused" {
			if d["message"] != "soon" {
				t.Errorf("%v", d)
			}
			break
		}
	}
	s.api("POST", "/admin/v1/rooms/premiere/state", `{"state":"open"}`).is(t, 200, "")
	s.do("POST", "/v1/rooms/premiere/leave", "", bearer(inside)...).is(t, 204, "")
	d := e.until("admission").doc
	adm, _ := d["admission"].(map[string]any)
	if d["status"] != "ADMITTED" || d["action"] != "REDIRECT" || adm == nil || d["at"] == nil {
		t.Fatalf("admission %v", d)
	}
	if _, err := s.keys.Verify("premiere", adm["token"].(string), time.Now()); err != nil {
		t.Error(err)
	}
}

func TestPlacesFall(t *testing.T) {
	s := build(t, quick, config("premiere", 1))
	s.enter("premiere")
	_, ahead := s.enter("premiere")
	_, secret := s.enter("premiere")
	e := s.stream(eventsPath, bearer(secret)...)
	if f := e.until("rank"); f.doc["place"] != 2.0 {
		t.Fatalf("%v", f.doc)
	}
	s.do("POST", "/v1/rooms/premiere/leave", "", bearer(ahead)...).is(t, 204, "")
	for {
		if f := e.until("rank"); f.doc["place"] == 1.0 {
			return
		}
	}
}

func TestEventsEndWithTheTicket(t *testing.T) {
	for _, reason := range []string{"claim", "idle", "max", "abandoned"} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			c := config("premiere", 1)
			soon := room.Duration(5 * time.Second) // but not before a slow machine has opened the stream
			switch reason {
			case "claim":
				c.Session.Claim = soon
			case "idle":
				c.Session.Idle = soon
			case "max":
				c.Session.Idle, c.Session.Max = soon, soon
			case "abandoned":
				c.Queue.Grace = soon
			}
			s := build(t, nil, c)
			if reason == "abandoned" { // the stream is a sign of life; these get lost
				s.store.spoil(func(cmd *room.Command) error {
					if cmd.Op == room.OpHeard {
						return room.ErrUnavailable
					}
					return nil
				}, nil)
			}
			_, secret := s.enter("premiere")
			kind := "admission"
			switch reason {
			case "idle":
				s.do("POST", "/v1/rooms/premiere/claim", "", bearer(secret)...).is(t, 200, "")
			case "abandoned":
				_, secret = s.enter("premiere")
				kind = "rank"
			}
			e := s.stream(eventsPath, bearer(secret)...)
			if f, ok := e.next(); !ok || f.doc["type"] != kind {
				t.Fatalf("first event %v", f.doc)
			}
			f := e.until("timeout")
			if f.doc["reason"] != reason || f.doc["at"] == nil {
				t.Errorf("%v", f.doc)
			}
			if f, ok := e.next(); ok {
				t.Errorf("the stream went on: %v", f)
			}
			s.do("GET", eventsPath, "", bearer(secret)...).is(t, 410, "ticket_ended")
		})
	}
}

func TestWhoListensIsKept(t *testing.T) { // cases/room 18
	t.Parallel()
	c := config("premiere", 1)
	c.Queue.Grace = room.Duration(6 * time.Second)
	s := build(t, quick, c)
	s.enter("premiere")
	_, silent := s.enter("premiere")
	_, secret := s.enter("premiere")
	e := s.stream(eventsPath, bearer(secret)...)
	for s.do("GET", "/v1/rooms/premiere/now", "").doc(t)["waiting"] != 1.0 { // until the silent one is gone
		if _, ok := e.next(); !ok {
			t.Fatal("who listens was abandoned")
		}
	}
	s.do("GET", "/v1/rooms/premiere/status", "", bearer(silent)...).is(t, 410, "ticket_ended")
	s.do("GET", "/v1/rooms/premiere/status", "", bearer(secret)...).is(t, 200, "")
}

func TestLeavingEndsTheStream(t *testing.T) {
	s := build(t, quick, config("premiere", 1))
	_, secret := s.enter("premiere")
	e := s.stream(eventsPath, bearer(secret)...)
	e.until("admission")
	s.do("POST", "/v1/rooms/premiere/leave", "", bearer(secret)...).is(t, 204, "")
	for {
		f, ok := e.next()
		if !ok {
			return
		}
		if f.doc["type"] == "timeout" {
			t.Errorf("%v", f.doc)
		}
	}
}

func TestDeletingTheRoomEndsTheStream(t *testing.T) {
	s := build(t, quick, config("premiere", 1))
	s.enter("premiere")
	_, secret := s.enter("premiere")
	e := s.stream(eventsPath, bearer(secret)...)
	e.until("rank")
	s.api("DELETE", "/admin/v1/rooms/premiere?force=true", "").is(t, 204, "")
	for {
		if _, ok := e.next(); !ok {
			break
		}
	}
	s.do("GET", eventsPath, "", bearer(secret)...).is(t, 404, "room_not_found")
}

func TestHeartbeat(t *testing.T) {
	c := config("premiere", 1)
	c.Queue.Grace = room.Duration(4 * time.Second) // a beat is a quarter of it at least
	s := build(t, quick, c)
	s.enter("premiere")
	_, secret := s.enter("premiere")
	e := s.stream(eventsPath, bearer(secret)...)
	for {
		f, ok := e.next()
		if !ok {
			t.Fatal("the stream ended")
		}
		if f.comment != "" {
			return
		}
	}
}

func TestManyStreams(t *testing.T) {
	s := build(t, func(o *web.Options) { o.MaxStreams = 10 }, config("premiere", 1))
	_, one := s.enter("premiere")
	_, two := s.enter("premiere")
	for range 8 {
		s.stream(eventsPath, bearer(one)...).next()
	}
	s.do("GET", eventsPath, "", bearer(one)...).is(t, 429, "too_many")
	s.stream(eventsPath, bearer(two)...).next()
	s.stream(eventsPath, bearer(two)...).next()
	r := s.do("GET", eventsPath, "", bearer(two)...)
	r.is(t, 503, "streams_full")
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if m := s.api("GET", "/metrics", ""); !strings.Contains(string(m.body), "usher_http_event_streams 10\n") {
		t.Error("the streams are not counted")
	}
}

func TestDrainTellsWhenToComeBack(t *testing.T) {
	s := build(t, quick, config("premiere", 1))
	s.enter("premiere")
	streams := make([]*eventStream, 20)
	for i := range streams {
		_, secret := s.enter("premiere")
		streams[i] = s.stream(eventsPath, bearer(secret)...)
		streams[i].until("rank")
	}
	_, late := s.enter("premiere")
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.server.Drain(ctx) }()
	var wg sync.WaitGroup
	var mu sync.Mutex
	slots := map[float64]bool{}
	for _, e := range streams {
		wg.Go(func() {
			f := e.until("RECONNECT_SOON")
			after, _ := f.doc["after_ms"].(float64)
			if f.doc["reason"] != "SERVER_SHUTDOWN" || after < 1000 || e.retry != strconv.Itoa(int(after)) {
				t.Errorf("%v, retry %s", f.doc, e.retry)
			}
			mu.Lock()
			slots[after] = true
			mu.Unlock()
			for {
				if _, ok := e.next(); !ok {
					return
				}
			}
		})
	}
	wg.Wait()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(slots) < 10 {
		t.Errorf("only %d different slots", len(slots))
	}
	s.do("GET", "/health/ready", "").is(t, 503, "draining")
	s.do("GET", "/health/live", "").is(t, 200, "")
	s.do("GET", eventsPath, "", bearer(late)...).is(t, 503, "draining")
	s.do("GET", "/v1/rooms/premiere/status", "", bearer(late)...).is(t, 200, "") // it answers what it has
	if err := s.server.Drain(ctx); err != nil {
		t.Error(err)
	}
}

func TestSlowReaderIsCutOff(t *testing.T) {
	w := &stuckWriter{header: http.Header{}}
	s := build(t, quick, config("premiere", 1))
	_, secret := s.enter("premiere")
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.server.Public().ServeHTTP(w, request(t, "", "GET", eventsPath, "", bearer(secret)...))
	}()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatal("the stream outlived its reader")
	}
	if !w.deadline {
		t.Error("it wrote without a deadline")
	}
}

// stuckWriter is a connection whose reader does not read: the deadline is what ends a write.
type stuckWriter struct {
	header   http.Header
	deadline bool
	reading  time.Time
}

func (w *stuckWriter) SetReadDeadline(t time.Time) error {
	w.reading = t
	return nil
}

func (w *stuckWriter) Header() http.Header { return w.header }
func (w *stuckWriter) WriteHeader(int)     {}
func (w *stuckWriter) Write([]byte) (int, error) {
	return 0, context.DeadlineExceeded
}
func (w *stuckWriter) SetWriteDeadline(t time.Time) error {
	w.deadline = !t.IsZero()
	return nil
}

// What a client can be slow at has a limit, except where it may take its time.
func TestDeadlines(t *testing.T) {
	s := build(t, quick, config("premiere", 1))
	_, secret := s.enter("premiere")
	w := &stuckWriter{header: http.Header{}}
	s.server.Public().ServeHTTP(w, request(t, "", "POST", "/v1/rooms/premiere/presence", "x", bearer(secret)...))
	if !w.deadline || w.reading.IsZero() {
		t.Error("a request with a body has no limit")
	}
	w = &stuckWriter{header: http.Header{}, reading: time.Now()}
	s.server.Public().ServeHTTP(w, request(t, "", "GET", eventsPath, "", bearer(secret)...))
	if !w.reading.IsZero() {
		t.Error("the stream's connection would be cut by the limit on requests")
	}
}

func TestStreamsKeepUpWithTheGrace(t *testing.T) {
	t.Parallel()
	s := build(t, quick, config("premiere", 1))
	s.enter("premiere")
	_, silent := s.enter("premiere")
	_, secret := s.enter("premiere")
	e := s.stream(eventsPath, bearer(secret)...)
	e.until("rank")
	s.api("PATCH", premiere, `{"queue":{"grace":"6s"}}`, "If-Match", "*").is(t, 200, "")
	for s.do("GET", "/v1/rooms/premiere/now", "").doc(t)["waiting"] != 1.0 { // until the silent one is gone
		if _, ok := e.next(); !ok {
			t.Fatal("who listens was abandoned")
		}
	}
	s.do("GET", "/v1/rooms/premiere/status", "", bearer(silent)...).is(t, 410, "ticket_ended")
	s.do("GET", "/v1/rooms/premiere/status", "", bearer(secret)...).is(t, 200, "")
}

func pollOf(t *testing.T, s *site, secret, after string) (cursor string, kinds map[string]map[string]any) {
	t.Helper()
	r := s.do("GET", "/v1/rooms/premiere/poll?after="+after, "", bearer(secret)...)
	r.is(t, 200, "")
	d := r.doc(t)
	kinds = map[string]map[string]any{}
	for _, m := range d["messages"].([]any) {
		doc := m.(map[string]any)
		checkEvent(t, doc)
		kinds[doc["type"].(string)] = doc
	}
	return d["cursor"].(string), kinds
}

func TestPolling(t *testing.T) { // cases/push 12
	s := build(t, quick, config("premiere", 1))
	_, inside := s.enter("premiere")
	_, secret := s.enter("premiere")
	cursor, m := pollOf(t, s, secret, "")
	if m["rank"]["place"] != 1.0 || m["stats"] == nil {
		t.Fatalf("%v", m)
	}
	s.do("POST", "/v1/rooms/premiere/leave", "", bearer(inside)...).is(t, 204, "")
	first := cursor
	for range 2 { // what was lost on the way is asked for with the old cursor
		for cursor = first; m["admission"] == nil; {
			cursor, m = pollOf(t, s, secret, cursor)
		}
		m = nil
	}
	s.do("POST", "/v1/rooms/premiere/leave", "", bearer(secret)...).is(t, 204, "")
	s.do("GET", "/v1/rooms/premiere/poll?after="+cursor, "", bearer(secret)...).is(t, 410, "ticket_ended")
	s.do("GET", "/v1/rooms/premiere/poll?after=x", "", bearer(secret)...).is(t, 400, "bad_request")
	s.do("GET", "/v1/rooms/premiere/poll", "").is(t, 401, "ticket_missing")
}

// An EventSource that is answered with anything but 200 never comes back.
func TestEventSourceSurvivesShedding(t *testing.T) { // cases/push 19
	s := build(t, func(o *web.Options) { o.MaxStreams = 1 }, config("premiere", 1))
	_, secret := s.enter("premiere")
	s.stream(eventsPath, bearer(secret)...).next()
	r := s.do("GET", eventsPath, "", append(bearer(secret), "Accept", "text/event-stream")...)
	if r.status != 200 || !strings.HasPrefix(string(r.body), "retry: ") || strings.Contains(string(r.body), "data") {
		t.Errorf("%d %q", r.status, r.body)
	}
}

func TestTheClientIsServed(t *testing.T) {
	s := build(t, nil, config("premiere", 1))
	r := s.do("GET", "/v1/usher.js", "")
	r.is(t, 200, "")
	if !strings.HasPrefix(r.header.Get("Content-Type"), "text/javascript") || !strings.Contains(string(r.body), "usher.join") {
		t.Error(r.header)
	}
	if len(r.body) > 10<<10 {
		t.Errorf("usher.js has grown to %d bytes", len(r.body))
	}
}
