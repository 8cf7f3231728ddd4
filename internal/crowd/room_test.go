package crowd_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"
)

// lineRoom is the least room that speaks the API: a list, a limit, a mutex. It
// stands in for Usher so that the crowd is tested alone; its faults are
// switched on to see that the crowd notices.
type lineRoom struct {
	mu      sync.Mutex
	site    http.Handler
	limit   int
	grace   time.Duration
	claim   time.Duration
	fault   string
	nextSeq int64
	byKey   map[string]*ticket // by cookie
	byReq   map[string]*ticket
	line    []*ticket
	inside  []*ticket
	most    int // most inside at once
}

type ticket struct {
	key, state, reason string
	seq                int64
	heard, since       time.Time
	claimed, told      bool
	asked              int
}

func newLineRoom(site http.Handler, limit int) *lineRoom {
	return &lineRoom{site: site, limit: limit, grace: 2 * time.Second, claim: time.Second,
		byKey: map[string]*ticket{}, byReq: map[string]*ticket{}}
}

func (l *lineRoom) tick(now time.Time) {
	l.line = slices.DeleteFunc(l.line, func(t *ticket) bool {
		if now.Sub(t.heard) > l.grace {
			t.state, t.reason = "abandoned", "abandoned"
		}
		return t.state != "waiting"
	})
	l.inside = slices.DeleteFunc(l.inside, func(t *ticket) bool {
		if !t.claimed && now.Sub(t.since) > l.claim {
			t.state, t.reason = "expired", "claim"
		}
		return t.state != "admitted"
	})
	for len(l.inside) < l.limit && len(l.line) > 0 {
		t := l.line[0]
		l.line = l.line[1:]
		t.state, t.since = "admitted", now
		l.inside = append(l.inside, t)
	}
	l.most = max(l.most, len(l.inside))
}

func (l *lineRoom) ticket(r *http.Request) *ticket {
	c, err := r.Cookie("usher-premiere")
	if err != nil {
		return nil
	}
	return l.byKey[c.Value]
}

func (l *lineRoom) enter(req string, now time.Time) *ticket {
	if t := l.byReq[req]; t != nil && req != "" {
		return t
	}
	l.nextSeq++
	t := &ticket{key: fmt.Sprintf("secret%d", l.nextSeq), state: "waiting", seq: l.nextSeq, heard: now}
	l.byKey[t.key] = t
	if req != "" {
		l.byReq[req] = t
	}
	l.line = append(l.line, t)
	return t
}

func (l *lineRoom) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	now := time.Now()
	t := l.ticket(r)
	if t != nil {
		t.heard = now
	}
	l.tick(now)
	call, api := strings.CutPrefix(r.URL.Path, "/.usher/v1/rooms/premiere/")
	switch {
	case api && call == "enter":
		var body struct {
			RequestID string `json:"request_id"`
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		if t == nil || (t.state != "waiting" && t.state != "admitted") || l.fault == "new ticket each time" {
			t = l.enter(body.RequestID, now)
			l.tick(now)
		}
		l.show(w, t, now)
	case api && t == nil:
		l.problem(w, 401, "ticket_missing", nil)
	case api && call == "status":
		l.show(w, t, now)
	case api && call == "leave":
		if t.state == "waiting" || t.state == "admitted" {
			t.state, t.reason = "left", "left"
			l.tick(now)
		}
		w.WriteHeader(204)
	case api:
		http.NotFound(w, r)
	case t != nil && (t.state == "admitted" || l.fault == "open door"):
		t.claimed = t.claimed || t.state == "admitted"
		l.mu.Unlock()
		rec := httptest.NewRecorder()
		l.site.ServeHTTP(rec, r)
		l.mu.Lock()
		if rec.Header().Get("Usher-Session") == "end" {
			t.state, t.reason = "left", "left"
			l.tick(time.Now())
		}
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	default:
		if t == nil || t.state != "waiting" {
			t = l.enter("", now)
			http.SetCookie(w, &http.Cookie{Name: "usher-premiere", Value: t.key, Path: "/"})
		}
		w.WriteHeader(202)
		_, _ = w.Write([]byte("please wait"))
	}
	l.mu.Unlock()
}

func (l *lineRoom) show(w http.ResponseWriter, t *ticket, now time.Time) {
	t.asked++
	state, seq, place := t.state, t.seq, int64(slices.Index(l.line, t)+1)
	switch {
	case l.fault == "seq" && t.asked > 2:
		seq += 1000
	case l.fault == "place" && state == "waiting":
		place += int64(t.asked) * 1000
	case l.fault == "forget" && t.asked > 2 && state == "waiting":
		l.problem(w, 410, "ticket_ended", &ticket{state: "abandoned", reason: "abandoned"})
		return
	case l.fault == "back" && state == "admitted" && t.told:
		state = "waiting"
	}
	if state != "waiting" && state != "admitted" {
		l.problem(w, 410, "ticket_ended", t)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: "usher-premiere", Value: t.key, Path: "/"})
	t.told = t.told || state == "admitted"
	w.Header().Set("Content-Type", "application/json")
	if state == "waiting" {
		w.WriteHeader(202 - 2*min(1, t.asked-1)) // status answers 200, the first enter 202
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"ticket_id": fmt.Sprint("t", seq), "state": state, "seq": seq, "place": place,
		"poll_after_ms": 2000, "presence_after_ms": l.grace.Milliseconds() / 3})
}

func (l *lineRoom) problem(w http.ResponseWriter, code int, name string, t *ticket) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(code)
	p := map[string]string{"code": name}
	if t != nil {
		p["reason"], p["state"] = t.reason, t.state
	}
	_ = json.NewEncoder(w).Encode(p)
}
