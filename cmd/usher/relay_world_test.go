package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/webhook"
	"github.com/ushergo/usher/room"
)

// relayed is a world of one usher with relays, which is killed and started again, and of what they reach.
type relayed struct {
	t       *testing.T
	dir     string
	file    string
	hook    *httptest.Server
	refuses func(id string) bool // what the webhook never takes
	down    atomic.Bool          // it takes nothing
	gentle  bool                 // nodes are stopped, and never killed

	mu     sync.Mutex
	hooked []relay.Event
	took   []time.Duration

	p     *process     // the node that is asked about
	nodes []*process   // all of them
	base  atomic.Value // []string: where visitors ask
}

// newRelayed makes a world of n nodes; engine is their engine: section, or empty for the memory engine and one node.
func newRelayed(t *testing.T, n int, engine string) *relayed {
	w := &relayed{t: t, dir: t.TempDir(), nodes: make([]*process, n)}
	if engine == "" {
		engine = fmt.Sprintf("{dir: %s}", filepath.Join(w.dir, "data"))
	}
	w.refuses = func(id string) bool { _, _, n, _ := relay.ParseRoomID(id); return n%97 == 0 }
	w.hook = httptest.NewServer(http.HandlerFunc(w.receive))
	t.Cleanup(w.hook.Close)
	w.file = filepath.Join(w.dir, "usher.yaml")
	conf := fmt.Sprintf(`
public: {listen: 127.0.0.1:0}
admin: {listen: 127.0.0.1:0, token: %s}
engine: %s
egress: {allow: [127.0.0.0/8]}
rooms:
  - id: premiere
    capacity: {active: 40}
    session: {claim: 0s}
relay:
  - {id: to-file, from: {rooms: [premiere]}, to: {file: {path: %s}}}
  - {id: to-table, from: {rooms: [premiere]}, events: [admitted], to: {sql: {driver: sqlite, dsn: %s}}}
  - {id: to-hook, from: {rooms: ["*"]}, events: [admitted], to: {webhook: {url: %s/hook, secret: the-secret-of-the-webhook}}, retry: {max_pause: 1s}}
`, relayToken, engine, filepath.Join(w.dir, "events.jsonl"), filepath.Join(w.dir, "events.db"), w.hook.URL)
	if err := os.WriteFile(w.file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// receive is the webhook's receiver.
func (w *relayed) receive(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	id := r.Header.Get("Usher-Event-Id")
	switch err := webhook.Verify(r.Header, body, time.Now(), 5*time.Minute, "the-secret-of-the-webhook"); {
	case err != nil:
		w.t.Error(err)
	case w.down.Load():
		http.Error(rw, "down", http.StatusInternalServerError)
		return
	case w.refuses(id) && r.Header.Get("Usher-Event-Late") == "":
		http.Error(rw, "not that one", http.StatusUnprocessableEntity)
		return
	case mrand.IntN(50) == 0 && r.Header.Get("Usher-Event-Late") == "": // a redrive tries but once
		http.Error(rw, "not now", http.StatusBadGateway)
		return
	}
	var e room.PublicEvent
	if err := json.Unmarshal(body, &e); err != nil || relay.RoomID(e.Room, e.Epoch, e.N) != id {
		w.t.Errorf("%s: %v: %s", id, err, body)
	}
	at, _ := time.Parse(time.RFC3339, e.At)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hooked = append(w.hooked, relay.Event{ID: id, Key: r.Header.Get("Usher-Event-Key"), Late: r.Header.Get("Usher-Event-Late") != ""})
	w.took = append(w.took, time.Since(at))
}

// start starts the i-th node.
func (w *relayed) start(i int) {
	w.nodes[i] = startProcess(w.t, nil, "--config", w.file).up()
	w.p = w.nodes[i]
	var bases []string
	for _, p := range w.nodes {
		if p != nil {
			bases = append(bases, p.public)
		}
	}
	w.base.Store(bases)
}

// visit enters, waits until admitted and leaves, whatever happens to usher meanwhile. It gives up when ctx ends.
func (w *relayed) visit(ctx context.Context, client *http.Client) bool {
	request := rand.Text()
	ticket := ""
	for ctx.Err() == nil {
		bases := w.base.Load().([]string)
		base := bases[mrand.IntN(len(bases))]
		path, body := "enter", `{"request_id":"`+request+`"}`
		switch {
		case ticket != "":
			path, body = "status", ""
		}
		var out struct{ Ticket, State string }
		method := http.MethodPost
		if path == "status" {
			method = http.MethodGet
		}
		code := ask(ctx, client, method, base+"/v1/rooms/premiere/"+path, ticket, body, &out)
		if out.Ticket != "" {
			ticket = out.Ticket
		}
		switch {
		case code == 200 && out.State == "admitted":
			if ask(ctx, client, http.MethodPost, base+"/v1/rooms/premiere/leave", ticket, "", nil) == 204 {
				return true
			}
		case code == 410:
			return true // it had left, and the answer was lost
		}
		select {
		case <-time.After(time.Duration(5+mrand.IntN(20)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return false
}

func ask(ctx context.Context, client *http.Client, method, url, ticket, body string, out any) int {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if ticket != "" {
		req.Header.Set("Authorization", "Bearer "+ticket)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	if out != nil {
		_ = json.Unmarshal(b, out)
	}
	return resp.StatusCode
}

// logged reads the whole log of the room.
func (w *relayed) logged() (events []relay.Event) {
	w.t.Helper()
	c := w.p.client(relayToken)
	for after := ""; ; {
		var page struct {
			Events []room.PublicEvent `json:"events"`
			Next   string             `json:"next_cursor"`
		}
		path := "/admin/v1/rooms/premiere/log?limit=1000"
		if after != "" {
			path += "&after=" + after
		}
		if _, err := c.Do(context.Background(), http.MethodGet, path, nil, nil, &page); err != nil {
			w.t.Fatal(err)
		}
		if len(page.Events) == 0 {
			return events
		}
		for _, e := range page.Events {
			key := e.TicketID
			if key == "" {
				key = e.Room
			}
			events = append(events, relay.Event{ID: relay.RoomID(e.Room, e.Epoch, e.N), Key: key, Type: e.Type})
		}
		after = page.Next
	}
}

func (w *relayed) status(id string) (s relay.Status) {
	w.t.Helper()
	if _, err := w.p.client(relayToken).Do(context.Background(), http.MethodGet, "/admin/v1/relays/"+id, nil, nil, &s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *relayed) cli(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := newRootCmd()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	w.t.Setenv("USHER_ADMIN_TOKEN", relayToken)
	if args[0] != "relay" {
		args = append(args, "--admin", w.p.admin)
	}
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(context.Background())
	return out.String(), err
}

func (w *relayed) lines(name string) (events []relay.Event) {
	f, err := os.Open(filepath.Join(w.dir, name))
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		e, err := relay.ReadEnvelope(in.Bytes())
		if err != nil {
			w.t.Fatalf("%v: %s", err, in.Text())
		}
		events = append(events, e)
	}
	return events
}

func (w *relayed) rows() (events []relay.Event) {
	db, err := sql.Open("sqlite", filepath.Join(w.dir, "events.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query("SELECT id, event_key FROM usher_events ORDER BY n")
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var e relay.Event
		if err := rows.Scan(&e.ID, &e.Key); err != nil {
			w.t.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}

func (w *relayed) letters(id string) (all []relay.Letter) {
	w.t.Helper()
	for after := uint64(0); ; {
		var page struct {
			Letters []relay.Letter `json:"letters"`
			Next    uint64         `json:"next"`
		}
		path := fmt.Sprintf("/admin/v1/relays/%s/dlq?limit=100&after=%d", id, after)
		if _, err := w.p.client(relayToken).Do(context.Background(), http.MethodGet, path, nil, nil, &page); err != nil {
			w.t.Fatal(err)
		}
		if len(page.Letters) == 0 {
			return all
		}
		all, after = append(all, page.Letters...), page.Next
	}
}
