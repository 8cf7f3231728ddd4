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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ushergo/usher/internal/redistest"
	"github.com/ushergo/usher/relay"
	"github.com/ushergo/usher/relay/relaytest"
	"github.com/ushergo/usher/relay/webhook"
	"github.com/ushergo/usher/room"
)

const relayToken = "the-admin-token-of-relay-tests"

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
	case mrand.IntN(50) == 0:
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

// carried waits until every relay's kept cursor has reached the end of the log.
func (w *relayed) carried(last string) {
	w.t.Helper()
	end := time.Now().Add(90 * time.Second)
	for _, id := range []string{"to-file", "to-table", "to-hook"} {
		for {
			s := w.status(id)
			if len(s.Partitions) == 1 && s.Partitions[0].Cursor == last {
				break
			}
			if time.Now().After(end) {
				b, _ := json.MarshalIndent(s, "", "  ")
				w.t.Fatalf("%s has not come to %s:\n%s\n%s", id, last, b, w.p.log())
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// run lets visitors pass while usher is killed, and audits everything.
func (w *relayed) run(visitors, kills int) {
	t := w.t
	for i := range w.nodes {
		w.start(i)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 200}}
	defer client.CloseIdleConnections()
	var passed atomic.Int64
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(visitors, 100) {
		wg.Go(func() {
			for next.Add(1) <= int64(visitors) {
				if !w.visit(ctx, client) {
					return
				}
				passed.Add(1)
			}
		})
	}
	for k := range kills {
		for goal := int64(visitors * (k + 1) / (kills + 2)); passed.Load() < goal && ctx.Err() == nil; {
			time.Sleep(5 * time.Millisecond)
		}
		w.down.Store(k%2 == 0) // and the receiver has its troubles too
		i := k % len(w.nodes)
		if mrand.IntN(3) == 0 || w.gentle {
			w.nodes[i].signal(syscall.SIGTERM)
		} else {
			w.nodes[i].signal(syscall.SIGKILL)
		}
		w.nodes[i].exit()
		w.start(i)
		w.down.Store(false)
	}
	wg.Wait()
	if n := passed.Load(); n != int64(visitors) {
		t.Fatalf("%d of %d visitors passed\n%s", n, visitors, w.p.log())
	}
	w.audit(visitors)
}

func (w *relayed) audit(visitors int) {
	t := w.t
	all := w.logged()
	_, epoch, n, _ := relay.ParseRoomID(all[len(all)-1].ID)
	w.carried(fmt.Sprintf("%d.%d", epoch, n))
	var admitted []relay.Event
	for _, e := range all {
		if e.Type == "admitted" {
			admitted = append(admitted, e)
		}
	}
	if len(admitted) != visitors {
		t.Errorf("%d admissions of %d visitors", len(admitted), visitors)
	}

	lines := w.lines("events.jsonl")
	if err := relaytest.Audit(all, lines); err != nil {
		t.Errorf("file: %v", err)
	}
	rows := w.rows()
	if err := relaytest.Audit(admitted, rows); err != nil {
		t.Errorf("table: %v", err)
	}
	if len(rows) != len(admitted) {
		t.Errorf("the table has %d rows for %d admissions", len(rows), len(admitted))
	}

	w.aside(all)

	letters := w.letters("to-hook")
	var dead []string
	for _, l := range letters {
		if l.Class != "rejected" {
			t.Errorf("%s is dead though the receiver did not refuse it: %s", l.Event.ID, l.Reason)
		}
		dead = append(dead, l.Event.ID)
	}
	var refused []string
	for _, e := range admitted {
		if w.refuses(e.ID) {
			refused = append(refused, e.ID)
		}
	}
	slices.Sort(dead)
	slices.Sort(refused)
	if !slices.Equal(dead, refused) {
		t.Errorf("dead letters %v, the receiver refused %v", dead, refused)
	}
	if out, err := w.cli("dlq", "redrive", "to-hook", "--rate", "1000"); err != nil {
		t.Errorf("redrive: %v\n%s", err, out)
	}
	if left := w.letters("to-hook"); len(left) != 0 {
		t.Errorf("%d letters are left after all were brought back", len(left))
	}
	w.mu.Lock()
	hooked, took := slices.Clone(w.hooked), slices.Clone(w.took)
	w.mu.Unlock()
	if err := relaytest.Audit(admitted, hooked); err != nil {
		t.Errorf("webhook: %v", err)
	}
	late := 0
	for _, e := range hooked {
		if e.Late != w.refuses(e.ID) {
			t.Errorf("%s: late %v", e.ID, e.Late)
		}
		if e.Late {
			late++
		}
	}
	slices.Sort(took)
	var sum time.Duration
	for _, d := range took {
		sum += d
	}
	t.Logf("%d events, %d admissions; file %d lines, webhook %d requests (%d late); commit to webhook mean %v, p50 %v, p99 %v", len(all), len(admitted),
		len(lines), len(hooked), late, (sum / time.Duration(len(took))).Round(time.Microsecond), took[len(took)/2].Round(time.Microsecond), took[len(took)*99/100].Round(time.Microsecond))
}

// aside reads the same log by usher relay, in two goes.
func (w *relayed) aside(all []relay.Event) {
	t := w.t
	for range 2 {
		out, err := w.cli("relay", "--from", "usher://"+strings.TrimPrefix(w.p.admin, "http://")+"/premiere", "--to", filepath.Join(w.dir, "aside.jsonl"),
			"--state", filepath.Join(w.dir, "aside"), "--until-idle", "300ms", "--log-level", "error")
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	lines := w.lines("aside.jsonl")
	if err := relaytest.Audit(all, lines); err != nil {
		t.Errorf("usher relay: %v", err)
	}
	if len(lines) != len(all) {
		t.Errorf("usher relay wrote %d lines for %d events, though nobody stopped it", len(lines), len(all))
	}
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

// Every admission is in each sink, whoever is killed meanwhile.
func TestRelaysLoseNothing(t *testing.T) {
	quiet(t)
	visitors, kills := 600, 3
	if testing.Short() {
		visitors, kills = 150, 1
	}
	newRelayed(t, 1, "").run(visitors, kills)
}

// Two nodes share rooms, relays and dead letters on Redis; one at a time is stopped, and the other carries on.
func TestRelaysOnRedis(t *testing.T) {
	quiet(t)
	if testing.Short() {
		t.Skip("starts a server; -short")
	}
	redis := redistest.Start(t)
	w := newRelayed(t, 2, "{kind: redis, addrs: ["+redis.Addr+"]}")
	w.gentle = os.Getenv("USHER_SOAK") != "1" // a killed node's relays are taken over after 20 s
	w.run(300, 2)
}

func TestSoakRelays(t *testing.T) {
	if os.Getenv("USHER_SOAK") != "1" {
		t.Skip("20 runs of 5,000 visitors; USHER_SOAK=1")
	}
	for run := range 20 {
		t.Run(fmt.Sprint(run), func(t *testing.T) { newRelayed(t, 1, "").run(5000, 5) })
	}
}
