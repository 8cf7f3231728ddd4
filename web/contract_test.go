package web_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// contract checks what a test was answered against the OpenAPI document: the status, the content type and the
// body must be in it. Every answer that these tests get goes through it.
type contract struct {
	doc      map[string]any
	compiler *jsonschema.Compiler
	mu       sync.Mutex
	schemas  map[string]*jsonschema.Schema
	seen     map[string]bool
}

const contractURL = "https://usher.test/openapi.json"

var theContract = sync.OnceValues(func() (*contract, error) {
	raw, err := os.ReadFile("openapi/openapi.json")
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := &contract{doc: doc.(map[string]any), compiler: jsonschema.NewCompiler(), schemas: map[string]*jsonschema.Schema{}, seen: map[string]bool{}}
	c.compiler.AssertFormat()
	return c, c.compiler.AddResource(contractURL, doc)
})

// check returns what is wrong with an answer, or nil. Paths that are not in the document are passed over.
func (c *contract) check(method, path string, r reply) error {
	if method == "HEAD" || method == "OPTIONS" || r.status == http.StatusMethodNotAllowed {
		return nil
	}
	path = strings.TrimPrefix(path, "/.usher")
	if r.status == http.StatusNotFound && bytes.Contains(r.body, []byte(`"code":"not_found"`)) {
		return nil // no such path on that listener
	}
	for pattern, item := range c.doc["paths"].(map[string]any) {
		op, ok := item.(map[string]any)[strings.ToLower(method)].(map[string]any)
		if !ok || !fits(pattern, path) {
			continue
		}
		status := fmt.Sprint(r.status)
		answer, ok := op["responses"].(map[string]any)[status].(map[string]any)
		if !ok {
			return fmt.Errorf("%s %s: status %s is not in the document", method, pattern, status)
		}
		c.mu.Lock()
		c.seen[method+" "+pattern+" "+status] = true
		c.mu.Unlock()
		content, _ := answer["content"].(map[string]any)
		if len(content) == 0 {
			return nil
		}
		kind, _, err := mime.ParseMediaType(r.header.Get("Content-Type"))
		if err != nil || content[kind] == nil {
			return fmt.Errorf("%s %s %s: content type %q is not in the document", method, pattern, status, r.header.Get("Content-Type"))
		}
		if !strings.HasSuffix(kind, "json") {
			return nil
		}
		escape := strings.NewReplacer("~", "~0", "/", "~1").Replace
		at := contractURL + "#/paths/" + escape(pattern) + "/" + strings.ToLower(method) + "/responses/" + status + "/content/" + escape(kind) + "/schema"
		schema, err := c.schema(at)
		if err != nil {
			return err
		}
		body, err := jsonschema.UnmarshalJSON(bytes.NewReader(r.body))
		if err != nil {
			return fmt.Errorf("%s %s %s: %w", method, pattern, status, err)
		}
		if err := schema.Validate(body); err != nil {
			return fmt.Errorf("%s %s %s: %w\n%s", method, pattern, status, err, r.body)
		}
		return nil
	}
	return nil
}

func (c *contract) schema(at string) (*jsonschema.Schema, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.schemas[at]; s != nil {
		return s, nil
	}
	s, err := c.compiler.Compile(at)
	c.schemas[at] = s
	return s, err
}

func fits(pattern, path string) bool {
	a, b := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] && !strings.HasPrefix(a[i], "{") {
			return false
		}
	}
	return true
}

func checkContract(t testing.TB, req *http.Request, r reply) {
	t.Helper()
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.check(req.Method, req.URL.Path, r); err != nil {
		t.Error(err)
	}
}

func checkEvent(t testing.TB, doc map[string]any) {
	t.Helper()
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	schema, err := c.schema(contractURL + "#/components/schemas/Event")
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := json.Marshal(doc)
	body, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(body); err != nil {
		t.Errorf("event %s: %v", raw, err)
	}
}

func TestContractFindsFaults(t *testing.T) {
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	h := func(kind string) http.Header { return http.Header{"Content-Type": {kind}} }
	for _, tc := range []struct {
		r  reply
		ok bool
	}{
		{reply{200, h("application/json"), []byte(`{"status":"live"}`)}, true},
		{reply{200, h("application/json"), []byte(`{"status":"dead"}`)}, false},
		{reply{200, h("application/json"), []byte(`{"status":"live","more":1}`)}, false},
		{reply{200, h("text/html"), []byte(`{"status":"live"}`)}, false},
		{reply{500, h("application/json"), []byte(`{"status":"live"}`)}, false},
	} {
		if err := c.check("GET", "/health/live", tc.r); (err == nil) != tc.ok {
			t.Errorf("%d %s: %v", tc.r.status, tc.r.body, err)
		}
	}
}
