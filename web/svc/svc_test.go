package svc_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/gate"
	"github.com/ushergo/usher/web/svc"
)

const token = "a-service-token-of-24-ch"

// api is a server and its document: every answer is held against it.
type api struct {
	*testing.T
	url      string
	gate     *gate.Gate
	doc      map[string]any
	compiler *jsonschema.Compiler
}

func newAPI(t *testing.T) *api {
	t.Helper()
	store, err := memory.OpenGates("", memory.GateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	m := svc.NewGateMetrics(reg)
	g, err := gate.New(store, gate.Options{Observer: m})
	if err != nil {
		t.Fatal(err)
	}
	m.Watch(g)
	s, err := svc.New(svc.Options{Tokens: []string{"another-token-that-works", token}, Gate: g})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s.Mount(http.NotFoundHandler()))
	t.Cleanup(func() {
		srv.Close()
		g.Close()
		_ = store.Close()
		if families, err := reg.Gather(); err != nil || len(families) < 4 {
			t.Errorf("%d metrics, %v", len(families), err)
		}
	})
	raw, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	a := &api{T: t, url: srv.URL, gate: g, doc: doc.(map[string]any), compiler: jsonschema.NewCompiler()}
	a.compiler.AssertFormat()
	if err := a.compiler.AddResource("https://usher.test/svc.json", doc); err != nil {
		t.Fatal(err)
	}
	return a
}

// call sends a request to a gate and returns the answer, which must be of the status.
func (a *api) call(method, path, body string, status int) map[string]any {
	a.Helper()
	req, err := http.NewRequest(method, a.url+"/svc/v1/gates/"+path, strings.NewReader(body))
	if err != nil {
		a.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		a.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		a.Fatal(err)
	}
	if res.StatusCode != status {
		a.Fatalf("%s %s %s: %d %s, want %d", method, path, body, res.StatusCode, raw, status)
	}
	if res.StatusCode == 429 && res.Header.Get("Retry-After") == "" {
		a.Error("429 without Retry-After")
	}
	if status != 405 && !strings.Contains(path, "%") {
		a.held(method, path, res, raw)
	}
	var out map[string]any
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &out); err != nil {
			a.Fatal(err)
		}
	}
	return out
}

// held fails unless the document knows the answer.
func (a *api) held(method, path string, res *http.Response, raw []byte) {
	a.Helper()
	_, verb, _ := strings.Cut(path, "/")
	pattern := "/svc/v1/gates/{key}"
	if verb != "" {
		pattern += "/" + verb
	}
	where := []string{"paths", pattern, strings.ToLower(method), "responses", fmt.Sprint(res.StatusCode)}
	at := any(a.doc)
	for _, step := range where {
		m, _ := at.(map[string]any)
		if at = m[step]; at == nil {
			a.Fatalf("%v is not in the document", where)
		}
	}
	content, _ := at.(map[string]any)["content"].(map[string]any)
	if content == nil {
		if len(raw) > 0 {
			a.Errorf("%v has a body", where)
		}
		return
	}
	kind := res.Header.Get("Content-Type")
	if content[kind] == nil {
		a.Fatalf("%v is %s", where, kind)
	}
	pointer := "https://usher.test/svc.json#"
	for _, step := range append(where, "content", kind, "schema") {
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(step)
	}
	schema, err := a.compiler.Compile(pointer)
	if err != nil {
		a.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err == nil {
		err = schema.Validate(v)
	}
	if err != nil {
		a.Errorf("%v: %s: %v", where, raw, err)
	}
}

func TestGates(t *testing.T) {
	a := newAPI(t)
	const id1, id2 = "000102030405060708090a0b0c0d0e0f", "100102030405060708090a0b0c0d0e0f"
	if p := a.call("POST", "job:1/acquire", `{}`, 404); p["code"] != "gate_not_found" {
		t.Error(p)
	}
	a.call("GET", "job:1", "", 404)
	if d := a.call("PUT", "job:1", `{"permits":1}`, 200); d["permits"] != 1.0 || d["free"] != 1.0 {
		t.Error(d)
	}
	first := a.call("POST", "job:1/acquire", `{"id":"`+id1+`","lease_ms":60000}`, 200)
	if first["id"] != id1 || first["fence"].(float64) < 1e15 || first["again"] != false {
		t.Error(first)
	}
	if again := a.call("POST", "job:1/acquire", `{"id":"`+id1+`"}`, 200); again["again"] != true || again["fence"] != first["fence"] || again["expires_at"] != first["expires_at"] {
		t.Error(again)
	}
	if p := a.call("POST", "job:1/acquire", `{"wait_ms":0}`, 429); p["code"] != "gate_full" {
		t.Error(p)
	}
	a.call("POST", "job:1/extend", `{"id":"`+id1+`","lease_ms":90000}`, 200)
	if d := a.call("GET", "job:1", "", 200); d["held"] != 1.0 || d["settled"] != nil {
		t.Error(d)
	}

	waits := make(chan map[string]any, 1)
	go func() { waits <- a.call("POST", "job:1/acquire", `{"wait_ms":60000}`, 409) }()
	for a.gate.Stats().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	fence := fmt.Sprintf("%.0f", first["fence"])
	a.call("POST", "job:1/settle", `{"id":"`+id1+`","fence":`+fence+`,"verdict":"taken by 7","ttl_ms":60000}`, 204)
	if p := <-waits; p["code"] != "gate_settled" || p["verdict"] != "taken by 7" {
		t.Error(p)
	}
	if d := a.call("GET", "job:1", "", 200); d["settled"].(map[string]any)["verdict"] != "taken by 7" {
		t.Error(d)
	}
	a.call("POST", "job:1/release", `{"id":"`+id1+`"}`, 204)
	a.call("POST", "job:1/release", `{"id":"`+id1+`"}`, 204) // the first answer was lost
	if r := a.call("POST", "job:1/reopen", "", 200); r["fence"].(float64) <= first["fence"].(float64) {
		t.Error(r)
	}
	if p := a.call("POST", "job:1/settle", `{"id":"`+id1+`","fence":`+fence+`,"verdict":"late","ttl_ms":1}`, 409); p["code"] != "gate_reopened" {
		t.Error(p)
	}
	if p := a.call("POST", "job:1/acquire", `{"id":"`+id1+`"}`, 410); p["code"] != "permit_released" {
		t.Error(p)
	}
	if p := a.call("POST", "job:1/release", `{"id":"`+id2+`"}`, 410); p["code"] != "permit_expired" {
		t.Error(p)
	}
	if p := a.call("POST", "job:1/extend", `{"id":"`+id1+`"}`, 410); p["code"] != "permit_released" {
		t.Error(p)
	}
	if d := a.call("POST", "job:2/acquire", `{"permits":5,"n":5,"id":"`+id2+`"}`, 200); d["n"] != 5.0 {
		t.Error(d)
	}
	a.call("POST", "job:2/release", `{"id":"`+id2+`"}`, 204)
	if d := a.call("GET", "job:2", "", 200); d["free"] != 5.0 {
		t.Error(d)
	}
	a.call("DELETE", "job:2", "", 204)
	a.call("GET", "job:2", "", 404)
}

func TestHostileInput(t *testing.T) {
	a := newAPI(t)
	for _, tc := range []struct{ method, path, body, want string }{
		{"PUT", "k", ``, "permits is missing"},
		{"PUT", "k", `{"permits":-1}`, "permits"},
		{"PUT", "k", `{"permits":1e99}`, "permits"},
		{"PUT", "k", `{"permits":"20"}`, "permits is a JSON string"},
		{"PUT", "k", `{"permit":20}`, `unknown field \"permit\"`},
		{"PUT", "k", `{"permits":20}{}`, "goes on"},
		{"PUT", "k", `[`, "JSON"},
		{"PUT", "usher:k", `{"permits":20}`, "usher:"},
		{"PUT", "a%2Fb", `{"permits":20}`, "must be 1 to 128"},
		{"PUT", "%7Bk%7D", `{"permits":20}`, "must be 1 to 128"},
		{"PUT", strings.Repeat("k", 129), `{"permits":20}`, "must be 1 to 128"},
		{"POST", "k/acquire", `{"lease_ms":0}`, "lease_ms"},
		{"POST", "k/acquire", `{"lease_ms":86400001}`, "lease_ms"},
		{"POST", "k/acquire", `{"wait_ms":-1}`, "wait_ms"},
		{"POST", "k/acquire", `{"wait_ms":9223372036854775807}`, "wait_ms"},
		{"POST", "k/acquire", `{"id":"x"}`, "id"},
		{"POST", "k/acquire", `{"n":0}`, "n is 0"},
		{"POST", "k/acquire", `{"n":501}`, "n is 501"},
		{"POST", "k/acquire", `{"permits":-1}`, "permits"},
		{"POST", "k/release", `{}`, "id"},
		{"POST", "k/extend", `{"id":"000102030405060708090a0b0c0d0e0f","lease_ms":-5}`, "lease_ms"},
		{"POST", "k/settle", `{"id":"000102030405060708090a0b0c0d0e0f","fence":1,"verdict":"` + strings.Repeat("x", 1025) + `","ttl_ms":1}`, "verdict"},
		{"POST", "k/settle", `{"id":"000102030405060708090a0b0c0d0e0f","fence":1,"verdict":"x","ttl_ms":60001}`, "ttl_ms"},
		{"POST", "k/settle", `{"id":"000102030405060708090a0b0c0d0e0f","fence":0,"verdict":"x","ttl_ms":1}`, "fence"},
	} {
		p := a.call(tc.method, tc.path, tc.body, 400)
		raw, _ := json.Marshal(p["detail"])
		if p["code"] != "bad_request" || !strings.Contains(string(raw), tc.want) {
			t.Errorf("%s %s %s: %v, want %q in it", tc.method, tc.path, tc.body, p, tc.want)
		}
	}
	a.call("PUT", "k", `{"permits":1,"x":"`+strings.Repeat("x", 20<<10)+`"}`, 413)
	if p := a.call("POST", "k", ``, 405); p["code"] != "method_not_allowed" {
		t.Error(p)
	}
}

func TestTokens(t *testing.T) {
	a := newAPI(t)
	for header, want := range map[string]int{
		"": 401, "Bearer": 401, "Bearer ": 401, "Bearer wrong-token-of-24-chars-": 401, "Basic " + token: 401, token: 401,
		"Bearer " + token: 404, "bearer  " + token: 404, "Bearer another-token-that-works": 404,
	} {
		req, _ := http.NewRequest("GET", a.url+"/svc/v1/gates/k", nil)
		if header != "" {
			req.Header.Set("Authorization", header)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%q: %d, want %d", header, res.StatusCode, want)
		}
	}
	none, err := svc.New(svc.Options{Gate: a.gate})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/svc/v1/gates/k", nil)
	r.Header.Set("Authorization", "Bearer ")
	w := httptest.NewRecorder()
	if none.ServeHTTP(w, r); w.Code != 401 {
		t.Errorf("without tokens: %d", w.Code)
	}
	if _, err := svc.New(svc.Options{Tokens: []string{"short"}}); err == nil {
		t.Error("a short token was taken")
	}
}

// Many callers over HTTP, one permit: never two inside, and everybody is answered.
func TestManyCallers(t *testing.T) {
	a := newAPI(t)
	a.call("PUT", "k", `{"permits":1}`, 200)
	var mu sync.Mutex
	inside, got := 0, 0
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			p := a.call("POST", "k/acquire", `{"wait_ms":60000}`, 200)
			mu.Lock()
			if inside++; inside > 1 {
				t.Error("two inside")
			}
			got++
			inside--
			mu.Unlock()
			a.call("POST", "k/release", fmt.Sprintf(`{"id":%q}`, p["id"]), 204)
		})
	}
	wg.Wait()
	if got != 30 {
		t.Errorf("%d of 30", got)
	}
}
