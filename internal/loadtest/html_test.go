package loadtest

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// TestReports makes every form of a report of one run with faults and one without.
func TestReports(t *testing.T) {
	f := newFake(5)
	f.overtake = true
	public, admin := f.serve(t)
	cfg := small(public, admin)
	cfg.Steps = []int{20, 60}
	cfg.Stay = 300 * time.Millisecond
	r := load(t, cfg)
	r.URL = `http://example.test/"><script>alert(1)</script>`

	var text, page bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"order inversions", "visitors", "enter", "freed slot to told, by polling", "--transport sse", "FAULTS", "Engine", "== 60 visitors =="} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("text lacks %q:\n%s", want, text.String())
		}
	}
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script", "src=", "href=", "@import", "url(", "ZgotmplZ", "NaN", "Inf"} {
		if strings.Contains(page.String(), bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	if !strings.Contains(page.String(), "freed slot to told, by polling") || !strings.Contains(page.String(), "--transport sse shows") {
		t.Error("the page does not say that polling tells late")
	}
	if n := strings.Count(page.String(), "<svg"); n != 10 {
		t.Errorf("%d charts, want five for each step", n)
	}
	if dir := os.Getenv("USHER_KEEP_REPORT"); dir != "" { // to look at
		os.WriteFile(dir+"/report.html", page.Bytes(), 0o644)
		os.WriteFile(dir+"/report.txt", text.Bytes(), 0o644)
	}
	checkSchema(t, r)
}

// An empty report, of a run that was interrupted at once, must not break the forms.
func TestEmptyReport(t *testing.T) {
	r := &Report{Steps: []Step{{}}}
	if err := r.WriteHTML(io.Discard); err != nil {
		t.Error(err)
	}
	if err := r.WriteText(io.Discard); err != nil {
		t.Error(err)
	}
}

// checkSchema holds the JSON against JSONSchema: every field described, every required field there, types right.
func checkSchema(t *testing.T, r *Report) {
	t.Helper()
	var out bytes.Buffer
	if err := r.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var doc any
	var schema map[string]any
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(JSONSchema), &schema); err != nil {
		t.Fatal(err)
	}
	defs := schema["$defs"].(map[string]any)
	var check func(path string, v any, s map[string]any)
	check = func(path string, v any, s map[string]any) {
		if ref, ok := s["$ref"].(string); ok {
			check(path, v, defs[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any))
			return
		}
		if of, ok := s["anyOf"].([]any); ok {
			if v == nil {
				return
			}
			check(path, v, of[0].(map[string]any))
			return
		}
		types := []any{s["type"]}
		if l, ok := s["type"].([]any); ok {
			types = l
		}
		got := "null"
		switch v := v.(type) {
		case map[string]any:
			got = "object"
			props, _ := s["properties"].(map[string]any)
			for k, e := range v {
				p, ok := props[k].(map[string]any)
				if !ok {
					t.Errorf("%s.%s is not in the schema", path, k)
					continue
				}
				check(path+"."+k, e, p)
			}
			for k := range props {
				if _, ok := v[k]; !ok {
					t.Errorf("%s.%s is in the schema only", path, k)
				}
			}
		case []any:
			got = "array"
			for _, e := range v {
				check(path+"[]", e, s["items"].(map[string]any))
			}
		case string:
			got = "string"
		case bool:
			got = "boolean"
		case float64:
			got = "number"
			if v == float64(int64(v)) {
				for _, typ := range types {
					if typ == "integer" {
						got = "integer"
					}
				}
			}
		}
		for _, typ := range types {
			if typ == got {
				return
			}
		}
		t.Errorf("%s is %s, the schema says %v", path, got, types)
	}
	check("$", doc, schema)
}
