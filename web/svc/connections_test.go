package svc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/keeper"
	"github.com/ushergo/usher/lease"
	"github.com/ushergo/usher/web/svc"
)

// connections is the API for connections; every answer is held against the document.
type connections struct {
	*testing.T
	url      string
	store    lease.Store
	woken    int
	live     []keeper.Status
	advice   keeper.Advice
	compiler *jsonschema.Compiler
}

func newConnections(t *testing.T) *connections {
	t.Helper()
	store, err := memory.OpenLeases("", "svc", memory.LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := &connections{T: t, store: store, compiler: jsonschema.NewCompiler()}
	s, err := svc.New(svc.Options{Tokens: []string{token}, Connections: &svc.Connections{
		Store: store, Wake: func() { c.woken++ }, Live: func() []keeper.Status { return c.live }, Advice: func() keeper.Advice { return c.advice },
	}})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s)
	t.Cleanup(func() {
		srv.Close()
		_ = store.Close()
	})
	c.url = srv.URL
	raw, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	c.compiler.AssertFormat()
	if err := c.compiler.AddResource("https://usher.test/svc.json", doc); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *connections) call(method, path, body string, status int) map[string]any {
	c.Helper()
	req, err := http.NewRequest(method, c.url+"/svc/v1/"+path, strings.NewReader(body))
	if err != nil {
		c.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		c.Fatal(err)
	}
	if res.StatusCode != status {
		c.Fatalf("%s %s: %d %s, want %d", method, path, res.StatusCode, raw, status)
	}
	if strings.Contains(string(raw), "hunter2") {
		c.Fatalf("a header is shown: %s", raw)
	}
	pattern := "/svc/v1/keeper"
	if rest, ok := strings.CutPrefix(path, "connections"); ok {
		pattern = "/svc/v1/connections"
		if strings.HasPrefix(rest, "/") {
			pattern += "/{id}"
		}
	}
	var out map[string]any
	if len(raw) == 0 {
		return nil
	}
	kind := res.Header.Get("Content-Type")
	pointer := "https://usher.test/svc.json#"
	for _, step := range []string{"paths", pattern, strings.ToLower(method), "responses", fmt.Sprint(status), "content", kind, "schema"} {
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(step)
	}
	schema, err := c.compiler.Compile(pointer)
	if err != nil {
		c.Fatalf("%s %s %d is not in the document: %v", method, path, status, err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err == nil {
		err = schema.Validate(value)
	}
	if err != nil {
		c.Fatalf("%s %s: %v\n%s", method, path, err, raw)
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		c.Fatal(err)
	}
	return out
}

func TestConnections(t *testing.T) {
	c := newConnections(t)
	const body = `{"url":"wss://feed.example.com/v1","headers":{"Authorization":"Bearer hunter2","X-A":"hunter2"},"subprotocols":["a.v1"],
		"cursor":{"json":"seq","start":7},"resume":{"query":"from={cursor}&fence={fence}"}}`
	doc := c.call("PUT", "connections/feed/one", body, 201)
	if doc["id"] != "feed/one" || doc["desired"] != "started" || doc["last_seq"] != 7.0 || fmt.Sprint(doc["header_names"]) != "[Authorization X-A]" {
		t.Fatalf("%v", doc)
	}
	if c.woken != 1 {
		t.Error("the worker was not told")
	}
	c.call("PUT", "connections/feed/one", body, 200)
	// Headers that are not sent stay.
	doc = c.call("PUT", "connections/feed/one", `{"url":"wss://feed.example.com/v2","desired":"stopped","cursor":{"json":"seq"}}`, 200)
	if doc["url"] != "wss://feed.example.com/v2" || doc["desired"] != "stopped" || doc["last_seq"] != 7.0 || fmt.Sprint(doc["header_names"]) != "[Authorization X-A]" {
		t.Fatalf("%v", doc)
	}
	rows, err := c.store.Get(context.Background(), []string{"feed/one"})
	if err != nil || !strings.Contains(string(rows[0].Spec), "hunter2") {
		t.Fatalf("%s %v", rows[0].Spec, err)
	}
	if doc = c.call("PUT", "connections/feed/one", `{"url":"wss://feed.example.com/v2","headers":{}}`, 200); fmt.Sprint(doc["header_names"]) != "[]" {
		t.Fatalf("%v", doc)
	}
	c.live = []keeper.Status{{ID: "feed/one", State: keeper.Open, Since: time.Now(), Fence: 3, Seq: 9, Pending: 2, Lag: time.Second, PerSecond: 1.239}}
	doc = c.call("GET", "connections/feed/one", "", 200)
	if live := doc["live"].(map[string]any); live["lag_ms"] != 1000.0 || live["messages_per_second"] != 1.23 || live["state"] != "open" {
		t.Fatalf("%v", live)
	}
	for i := range 5 {
		c.call("PUT", fmt.Sprintf("connections/c%d", i), `{"url":"ws://feed.example.com/"}`, 201)
	}
	seen, after := map[string]bool{}, ""
	for pages := 0; ; pages++ {
		page := c.call("GET", "connections?limit=2&after="+after, "", 200)
		for _, d := range page["connections"].([]any) {
			seen[d.(map[string]any)["id"].(string)] = true
		}
		if after = page["next"].(string); after == "" || pages > 10 {
			break
		}
	}
	if len(seen) != 6 {
		t.Fatalf("%v", seen)
	}
	c.call("DELETE", "connections/feed/one", "", 204)
	c.call("DELETE", "connections/feed/one", "", 404)
	c.call("GET", "connections/feed/one", "", 404)
}

func TestConnectionsRefuse(t *testing.T) {
	c := newConnections(t)
	for body, want := range map[string]string{
		`{}`:                                "url is missing",
		`{"url":"http://x"}`:                "must be ws or wss",
		`{"url":"wss://u:hunter2@x/"}`:      "user name or password",
		`{"url":"wss://x/","desired":"on"}`: "started",
		`{"url":"wss://x/","headers":{"Sec-WebSocket-Key":"x"}}`:                     "handshake",
		`{"url":"wss://x/","headers":{"X-A":"a\nb"}}`:                                "line break",
		`{"url":"wss://x/","headers":{"X A":"hunter2"}}`:                             "name of a header",
		`{"url":"wss://x/","resume":{"query":"from={cursor}"}}`:                      "cursor.json",
		`{"url":"wss://x/","resume":{"query":"a b"},"cursor":{"json":"n"}}`:          "resume.query",
		`{"url":"wss://x/","resume":{"query":"from={cursr}"}}`:                       "resume.query names {cursr}; it may name {cursor}",
		`{"url":"wss://x/","cursor":{"json":"a..b"}}`:                                "cursor.json",
		`{"url":"wss://x/","cursor":{"json":"n","start":-1}}`:                        "cursor.start",
		`{"url":"wss://x/","cursor":{"json":7}}`:                                     "cursor.json",
		`{"url":"wss://x/","colour":"red"}`:                                          "colour",
		`{"url":"wss://x/","headers":{"X-A":"` + strings.Repeat("x", 17_000) + `"}}`: "headers",
	} {
		doc := c.call("PUT", "connections/a", body, 400)
		if detail := doc["detail"].(string); !strings.Contains(detail, want) {
			t.Errorf("%.80s: %s, want %s", body, detail, want)
		}
	}
	c.call("PUT", "connections/a", `{"url":"wss://x/`+strings.Repeat("x", 100_000)+`"}`, 413)
	c.call("PUT", "connections/a%20b", `{"url":"wss://x/"}`, 400)
	c.call("GET", "connections?limit=0", "", 400)
	c.call("GET", "connections?limit=x", "", 400)
}

func TestKeeperStatus(t *testing.T) {
	c := newConnections(t)
	if doc := c.call("GET", "keeper", "", 200); doc["advice"] != nil || len(doc["workers"].([]any)) != 0 {
		t.Fatalf("%v", doc)
	}
	j, err := c.store.Join(context.Background(), lease.Join{Worker: "w1", Token: "t", Cap: 700})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.store.Beat(context.Background(), lease.Beat{Owner: j.Owner, Beat: 1, Held: 12, Info: "open=11,blocked=1,pending=3,lag_ms=250,per_second=12.50"}); err != nil {
		t.Fatal(err)
	}
	c.advice = keeper.Advice{Workers: 1, Connections: 12, Cap: 700, Needed: 1, Recommended: 1, Reason: "as many as needed"}
	doc := c.call("GET", "keeper", "", 200)
	w := doc["workers"].([]any)[0].(map[string]any)
	if told := w["told"].(map[string]any); told["open"] != 11.0 || told["lag_ms"] != 250.0 || told["messages_per_second"] != 12.5 {
		t.Errorf("%v", told)
	}
	if w["worker"] != "w1" || w["connections"] != 12.0 || w["state"] != "living" || doc["advice"].(map[string]any)["recommended"] != 1.0 {
		t.Fatalf("%v", doc)
	}
}

func TestKeeperPage(t *testing.T) {
	store, err := memory.OpenLeases("", "svc", memory.LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ask := func(o svc.Options, method string) *httptest.ResponseRecorder {
		t.Helper()
		s, err := svc.New(o)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		s.Mount(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(method, "/keeper", nil))
		return w
	}
	with := svc.Options{Tokens: []string{token}, Connections: &svc.Connections{Store: store}}
	w := ask(with, "GET")
	_, nonce, _ := strings.Cut(w.Header().Get("Content-Security-Policy"), "script-src 'nonce-")
	nonce, _, _ = strings.Cut(nonce, "'")
	if w.Code != 200 || len(nonce) < 20 || strings.Count(w.Body.String(), `nonce="`+nonce+`"`) != 2 || strings.Contains(w.Body.String(), "{{") {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if strings.Contains(w.Body.String(), token) {
		t.Error("the page holds a token")
	}
	if again := ask(with, "GET"); strings.Contains(again.Header().Get("Content-Security-Policy"), nonce) {
		t.Error("a nonce came twice")
	}
	if w := ask(with, "POST"); w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
	if w := ask(svc.Options{Tokens: []string{token}}, "GET"); w.Code != 404 {
		t.Errorf("without connections: %d", w.Code)
	}
}
