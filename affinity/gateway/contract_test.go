package gateway_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/ushergo/usher/affinity/gateway"
)

// contract holds every answer of the API, and the body of every request that it takes, against the published document.
type contract struct {
	t        *testing.T
	next     http.Handler
	doc      map[string]any
	mu       sync.Mutex // the compiler is not for many
	compiler *jsonschema.Compiler
	seen     map[string]bool
}

const contractURL = "https://usher.test/svc.json"

func newContract(t *testing.T, next http.Handler) *contract {
	t.Helper()
	raw, err := os.ReadFile("../../web/svc/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	c := &contract{t: t, next: next, doc: doc.(map[string]any), compiler: jsonschema.NewCompiler(), seen: map[string]bool{}}
	c.compiler.AssertFormat()
	if err := c.compiler.AddResource(contractURL, doc); err != nil {
		t.Fatal(err)
	}
	return c
}

// pattern finds the path of the document; of two that fit, the one with fewer parameters.
func (c *contract) pattern(path string) (best string) {
	got := strings.Split(path, "/")
next:
	for p := range c.doc["paths"].(map[string]any) {
		want := strings.Split(p, "/")
		if len(want) != len(got) {
			continue
		}
		for i := range want {
			if want[i] != got[i] && !strings.HasPrefix(want[i], "{") {
				continue next
			}
		}
		if best == "" || strings.Count(p, "{") < strings.Count(best, "{") {
			best = p
		}
	}
	return best
}

func (c *contract) valid(where []string, raw []byte) error {
	pointer := contractURL + "#"
	for _, step := range where {
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(step)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	schema, err := c.compiler.Compile(pointer)
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	return schema.Validate(v)
}

func (c *contract) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked bytes.Buffer
	if r.Body != nil {
		_, _ = asked.ReadFrom(r.Body)
		r.Body = http.NoBody
		if asked.Len() > 0 {
			r.Body = readCloser{bytes.NewReader(asked.Bytes())}
		}
	}
	rec := httptest.NewRecorder()
	c.next.ServeHTTP(rec, r)
	pattern, method := c.pattern(r.URL.EscapedPath()), strings.ToLower(r.Method)
	if rec.Code != http.StatusMethodNotAllowed && pattern != "" {
		status := fmt.Sprint(rec.Code)
		op, _ := c.doc["paths"].(map[string]any)[pattern].(map[string]any)[method].(map[string]any)
		answer, _ := op["responses"].(map[string]any)[status].(map[string]any)
		if answer == nil {
			c.t.Errorf("%s %s: %s is not in the document: %s", method, pattern, status, rec.Body)
		}
		c.mu.Lock()
		c.seen[method+" "+pattern] = true
		c.mu.Unlock()
		content, _ := answer["content"].(map[string]any)
		kind := rec.Header().Get("Content-Type")
		if content == nil && rec.Body.Len() > 0 || content != nil && content[kind] == nil {
			c.t.Errorf("%s %s %s: %q is not in the document", method, pattern, status, kind)
		} else if content != nil {
			if err := c.valid([]string{"paths", pattern, method, "responses", status, "content", kind, "schema"}, rec.Body.Bytes()); err != nil {
				c.t.Errorf("%s %s %s: %v\n%s", method, pattern, status, err, rec.Body)
			}
		}
		if _, takes := op["requestBody"]; takes && rec.Code < 300 && asked.Len() > 0 {
			if err := c.valid([]string{"paths", pattern, method, "requestBody", "content", "application/json", "schema"}, asked.Bytes()); err != nil {
				c.t.Errorf("%s %s was taken: %v\n%s", method, pattern, err, asked.Bytes())
			}
		}
	}
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes())
}

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }

// Every route is in the document, and nothing else is.
func TestDocumentHasTheRoutes(t *testing.T) {
	c := newContract(t, nil)
	routes := gateway.APIRoutes()
	documented := 0
	for path, item := range c.doc["paths"].(map[string]any) {
		if !strings.HasPrefix(path, "/svc/v1/affinity/") {
			continue
		}
		for method := range item.(map[string]any) {
			if method == "parameters" {
				continue
			}
			documented++
			if routes[strings.ToUpper(method)+" "+path] == nil {
				t.Errorf("%s %s is in the document, and is no route", method, path)
			}
		}
	}
	if documented != len(routes) {
		t.Errorf("%d routes, of which the document has %d", len(routes), documented)
	}
}
