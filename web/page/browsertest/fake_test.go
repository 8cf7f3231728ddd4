package browsertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/ushergo/usher/web/page"
)

// fake answers as the API does (DESIGN §4) for any number of rooms, each of which a scenario makes for itself and
// steers through /-/{room}.
type fake struct {
	pages, custom *page.Pages
	mu            sync.Mutex
	rooms         map[string]*room
}

// room is what a scenario may set (by JSON) and read.
type room struct {
	Ticket   string `json:"ticket"` // public id of the living ticket
	State    string `json:"state"`  // waiting, admitted, or a reason with which it ended
	Place    *int64 `json:"place"`
	Waiting  int64  `json:"waiting"`
	Room     string `json:"room_state"`
	Message  string `json:"message"`
	ETA      []int  `json:"eta"`
	OpensIn  int    `json:"opens_in_ms"`  // from now; turned into opensAt when set
	EntersIn int    `json:"enters_in_ms"` // likewise
	SkewMS   int    `json:"skew_ms"`      // the server's clock against the browser's
	HoldMS   int    `json:"hold_ms"`      // how long a poll waits for news
	Deaf     bool   `json:"deaf"`         // open streams and polls are told nothing more: their network is dead
	ClaimMS  int    `json:"claim_ms"`
	Refresh  int    `json:"refresh"`
	View     string `json:"view"`    // forces what the page is rendered as
	Next     string `json:"next"`    // what the page is given as Next; empty: /inside/{room}
	Refuse   string `json:"refuse"`  // "429 room_full": how enter refuses
	Fail     int    `json:"fail"`    // the API answers this
	Drop     bool   `json:"drop"`    // the API closes the connection without a word
	SSE      bool   `json:"sse"`     // the stream is offered; else it answers 503
	Forget   bool   `json:"forget"`  // the browser's cookie is never believed
	Store    bool   `json:"store"`   // the page as 200 and without no-store, else Chromium keeps it out of its cache
	Custom   bool   `json:"custom"`  // the operator's folder
	LoseNext bool   `json:"lose"`    // the next enter is carried out, and its answer lost
	Order    string `json:"order"`   //
	Issued   int    `json:"issued"`  // tickets issued
	Pages    int    `json:"pages"`   // what was asked of us
	Asks     int    `json:"asks"`    // polls, streams and status
	Hidden   int    `json:"hidden"`  // of these, by tabs that nobody looks at
	Enters   int    `json:"enters"`  //
	Inside   int    `json:"inside"`  //
	Streams  int    `json:"streams"` // open now
	Opened   int    `json:"opened"`  // ever

	opensAt, entersAt *time.Time
	spent             map[string]string // request id to ticket
	subs              map[chan string]bool
	version           int
	changed           chan struct{} // closed when there is news
}

func (f *fake) room(id string) *room {
	r := f.rooms[id]
	if r == nil {
		r = &room{State: "waiting", Room: "open", Waiting: 5000, HoldMS: 200, Refresh: -1,
			spent: map[string]string{}, subs: map[chan string]bool{}, changed: make(chan struct{})}
		p := int64(1000)
		r.Place = &p
		f.rooms[id] = r
	}
	return r
}

func (r *room) now() time.Time { return time.Now().Add(time.Duration(r.SkewMS) * time.Millisecond) }

func (r *room) issue() {
	r.Issued++
	r.Ticket = fmt.Sprintf("ticket%d", r.Issued)
	r.State = "waiting"
}

func (f *fake) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /-/{room}", f.control)
	mux.HandleFunc("POST /-/{room}", f.control)
	mux.HandleFunc("POST /-/{room}/event", f.event)
	mux.HandleFunc("POST /-/{room}/cut", f.event)
	mux.HandleFunc("GET /wait/{room}", f.wait)
	mux.HandleFunc("GET /inside/{room}", func(w http.ResponseWriter, q *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.room(q.PathValue("room")).Inside++
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<!doctype html><title>inside</title><link rel="icon" href="data:,"><h1>INSIDE</h1>`)
	})
	mux.HandleFunc("/v1/rooms/{room}/{what}", f.api)
	return mux
}

func (f *fake) control(w http.ResponseWriter, q *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.room(q.PathValue("room"))
	if q.Method == http.MethodPost {
		r.OpensIn, r.EntersIn = 0, 0
		if err := json.NewDecoder(q.Body).Decode(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if r.OpensIn != 0 {
			t := r.now().Add(time.Duration(r.OpensIn) * time.Millisecond)
			r.opensAt = &t
		}
		if r.EntersIn != 0 {
			t := r.now().Add(time.Duration(r.EntersIn) * time.Millisecond)
			r.entersAt = &t
		}
		r.news()
	}
	r.Streams = len(r.subs)
	_ = json.NewEncoder(w).Encode(r)
}

// event sends its body to the room's streams as it is; cut ends them.
func (f *fake) event(w http.ResponseWriter, q *http.Request) {
	var body struct{ Raw string }
	_ = json.NewDecoder(q.Body).Decode(&body)
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.room(q.PathValue("room"))
	for c := range r.subs {
		if strings.HasSuffix(q.URL.Path, "/cut") {
			close(c)
			delete(r.subs, c)
			continue
		}
		c <- body.Raw
	}
}

func (f *fake) wait(w http.ResponseWriter, q *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := q.PathValue("room")
	r := f.room(id)
	r.Pages++
	next := r.Next
	if next == "" {
		next = "/inside/" + id
	}
	s := page.State{Room: id, Next: next, Refresh: r.Refresh, Grace: 5 * time.Minute,
		Claim: time.Duration(r.ClaimMS) * time.Millisecond, Order: r.Order}
	s.View.At, s.View.Message, s.View.OpensAt, s.View.EntersAt = r.now(), r.Message, r.opensAt, r.entersAt
	switch {
	case r.View != "":
		s.View.State = r.View
	default:
		if !f.knows(r, q) || r.Ticket == "" {
			r.issue()
		}
		if !r.Forget {
			http.SetCookie(w, &http.Cookie{Name: "usher-" + id, Value: "secret-" + r.Ticket, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
		}
		if r.State == "admitted" {
			w.Header().Set("Cache-Control", "no-store")
			http.Redirect(w, q, next, http.StatusSeeOther)
			return
		}
		s.View.State, s.View.TicketID, s.View.Place, s.View.Waiting = page.Waiting, r.Ticket, r.Place, &r.Waiting
		if r.Room == "paused" || r.Room == "prequeue" {
			s.View.State = r.Room
		}
	}
	p := f.pages
	if r.Custom {
		p = f.custom
	}
	if r.Store {
		w = storable{w}
	}
	_ = p.Write(w, q, http.StatusAccepted, s)
}

type storable struct{ http.ResponseWriter }

func (s storable) WriteHeader(int) {
	s.Header().Del("Cache-Control")
	s.ResponseWriter.WriteHeader(http.StatusOK)
}

func (f *fake) knows(r *room, q *http.Request) bool {
	c, err := q.Cookie("usher-" + q.PathValue("room"))
	return err == nil && !r.Forget && c.Value == "secret-"+r.Ticket
}

func (r *room) doc(id string) map[string]any {
	m := map[string]any{"room": id, "ticket_id": r.Ticket, "state": r.State, "place": r.Place, "waiting": r.Waiting, "eta": nil,
		"room_state": r.Room, "message": r.Message,
		"at": r.now().UTC().Format(time.RFC3339Nano), "admission": nil}
	if len(r.ETA) == 2 {
		m["eta"] = map[string]any{"low_s": r.ETA[0], "high_s": r.ETA[1], "basis": "measured"}
	}
	return m
}

func answer(w http.ResponseWriter, status int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(doc)
}

func problem(w http.ResponseWriter, status int, code, reason string) {
	answer(w, status, map[string]any{"type": "about:blank", "status": status, "code": code, "reason": reason})
}

func (f *fake) api(w http.ResponseWriter, q *http.Request) {
	f.mu.Lock()
	id, what := q.PathValue("room"), q.Method+" "+q.PathValue("what")
	r := f.room(id)
	defer f.mu.Unlock()
	switch what {
	case "GET status", "GET poll", "GET events":
		r.Asks++
		if q.URL.Query().Get("hidden") == "1" {
			r.Hidden++
		}
	case "POST enter":
		r.Enters++
	}
	if r.Drop {
		panic(http.ErrAbortHandler)
	}
	if r.Fail != 0 {
		w.Header().Set("Retry-After", "1")
		problem(w, r.Fail, "engine_unavailable", "")
		return
	}
	switch what {
	case "GET now":
		answer(w, 200, map[string]any{"room_state": r.Room, "waiting": r.Waiting, "message": r.Message, "opens_at": r.opensAt, "at": r.now()})
		return
	case "POST enter":
		f.enter(w, q, r)
		return
	}
	if !f.knows(r, q) {
		problem(w, 401, "ticket_required", "")
		return
	}
	if r.State != "waiting" && r.State != "admitted" {
		problem(w, 410, "ticket_ended", r.State)
		return
	}
	switch what {
	case "GET status":
		answer(w, 200, r.doc(id))
	case "GET poll":
		f.poll(w, q, r)
	case "GET events":
		f.stream(w, q, r)
	case "POST leave":
		r.State = "left"
		w.WriteHeader(204)
	default:
		http.NotFound(w, q)
	}
}

func (f *fake) enter(w http.ResponseWriter, q *http.Request, r *room) {
	if r.Refuse != "" {
		var status int
		var code string
		_, _ = fmt.Sscan(r.Refuse, &status, &code)
		problem(w, status, code, "")
		return
	}
	var body struct {
		RequestID string `json:"request_id"`
	}
	_ = json.NewDecoder(q.Body).Decode(&body)
	if r.spent[body.RequestID] == "" && !(f.knows(r, q) && r.State == "waiting") {
		r.issue()
	}
	r.spent[body.RequestID] = r.Ticket
	if r.LoseNext {
		r.LoseNext = false
		panic(http.ErrAbortHandler)
	}
	http.SetCookie(w, &http.Cookie{Name: "usher-" + q.PathValue("room"), Value: "secret-" + r.Ticket, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
	answer(w, 202, r.doc(q.PathValue("room")))
}

// news wakes whoever listens. Called with mu held, as are those below.
func (r *room) news() {
	r.version++
	if r.Deaf {
		return
	}
	close(r.changed)
	r.changed = make(chan struct{})
	for c := range r.subs {
		c <- r.events()
	}
}

func (r *room) cursor() string { return fmt.Sprint("1.", r.version) }

// messages are what push would say now.
func (r *room) messages() []any {
	at := r.now().UTC().Format(time.RFC3339Nano)
	stats := map[string]any{"type": "stats", "waiting": r.Waiting, "active": 1, "room_state": r.Room, "message": r.Message, "at": at}
	if r.State == "admitted" {
		return []any{map[string]any{"type": "admission", "status": "ADMITTED", "action": "REDIRECT", "admission": map[string]any{}, "at": at}, stats}
	}
	doc := r.doc("")
	return []any{map[string]any{"type": "rank", "status": "WAITING", "place": r.Place, "waiting": r.Waiting, "eta": doc["eta"], "at": at}, stats}
}

func (r *room) events() string {
	var b strings.Builder
	for _, m := range r.messages() {
		body, _ := json.Marshal(m)
		fmt.Fprintf(&b, "id: %s\ndata: %s\n\n", r.cursor(), body)
	}
	return b.String()
}

func (f *fake) poll(w http.ResponseWriter, q *http.Request, r *room) {
	after, messages := q.URL.Query().Get("after"), []any{}
	if after == r.cursor() {
		changed := r.changed
		hold := time.NewTimer(time.Duration(r.HoldMS) * time.Millisecond)
		defer hold.Stop()
		f.mu.Unlock()
		select {
		case <-changed:
		case <-hold.C:
		case <-q.Context().Done():
		}
		f.mu.Lock()
	}
	switch {
	case r.Drop:
		panic(http.ErrAbortHandler)
	case r.State != "waiting" && r.State != "admitted":
		problem(w, 410, "ticket_ended", r.State)
		return
	case after != r.cursor():
		messages = r.messages()
	}
	answer(w, 200, map[string]any{"cursor": r.cursor(), "reset": false, "next_poll_ms": 0, "messages": messages})
}

func (f *fake) stream(w http.ResponseWriter, q *http.Request, r *room) {
	if !r.SSE {
		problem(w, 503, "too_many", "")
		return
	}
	c := make(chan string, 100)
	r.subs[c] = true
	r.Opened++
	first := r.events()
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(r.subs, c)
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "retry: 500\n\n: hello\n\n"+first)
	w.(http.Flusher).Flush()
	for {
		select {
		case s, ok := <-c:
			if !ok {
				return
			}
			fmt.Fprint(w, s)
			w.(http.Flusher).Flush()
		case <-q.Context().Done():
			return
		}
	}
}
