package web

import (
	"encoding/json"
	"sort"
	"strings"
	"testing"
)

// Every route is in the document, and nothing else is.
func TestOpenAPIHasTheRoutes(t *testing.T) {
	var doc struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(openapiJSON, &doc); err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for path, methods := range doc.Paths {
		for m := range methods {
			if m != "parameters" {
				documented[strings.ToUpper(m)+" "+path] = true
			}
		}
	}
	s := &Server{}
	registered := map[string]bool{}
	for _, rt := range append(s.publicRoutes().all, s.adminRoutes().all...) {
		if rt.path == "/" || strings.HasPrefix(rt.path, "/debug/") { // a page and profiles, no API
			continue
		}
		registered[rt.method+" "+rt.path] = true
	}
	for _, missing := range difference(registered, documented) {
		t.Errorf("%s is not in the document", missing)
	}
	for _, extra := range difference(documented, registered) {
		t.Errorf("%s is in the document, but is no route", extra)
	}
}

func difference(a, b map[string]bool) (out []string) {
	for k := range a {
		if !b[k] {
			out = append(out, k)
		}
	}
	sort.Strings(out)
	return out
}
