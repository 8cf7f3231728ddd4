package arrows_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/ushergo/usher"

// pkg is what go list says of a package.
type pkg struct {
	ImportPath string
	Dir        string
	Name       string
	GoFiles    []string
	Imports    []string // of non-test files
}

// rel is the folder from the module's root; "" is the root itself.
func (p pkg) rel() string { return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/") }

func (p pkg) suite() bool { return strings.HasSuffix(p.Name, "test") }

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Name,GoFiles,Imports", "./...")
	cmd.Dir = filepath.Join("..", "..")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var list []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

func TestImportArrows(t *testing.T) {
	for _, p := range packages(t) {
		for _, wrong := range wrongArrows(p) {
			t.Error(wrong)
		}
	}
}

// wrongArrows is apart so that the test can be tested.
func wrongArrows(p pkg) []string {
	var r *rule
	for _, candidate := range table() {
		if fits(candidate.folder, p.rel()) {
			r = &candidate
			break
		}
	}
	if r == nil {
		return []string{fmt.Sprintf("%s: no rule says what it may import; add one to internal/arrows/table_test.go and to ARCHITECTURE.md", p.rel())}
	}
	var wrong []string
	for _, imp := range p.Imports {
		if !r.allows(p, imp) {
			wrong = append(wrong, fmt.Sprintf("%s must not import %s: %s", p.rel(), strings.TrimPrefix(imp, module+"/"), r.why))
		}
	}
	return wrong
}

func (r rule) allows(p pkg, imp string) bool {
	if our, ok := strings.CutPrefix(imp, module+"/"); ok {
		if strings.HasPrefix(our, "cmd/usher") && !strings.HasPrefix(p.rel(), "cmd/usher") {
			return false // imported by nobody
		}
		return slices.ContainsFunc(r.ours, func(f string) bool { return f == "*" || fits(f, our) })
	}
	first, _, _ := strings.Cut(imp, "/")
	if strings.Contains(first, ".") {
		return slices.ContainsFunc(r.others, func(o string) bool { return o == "*" || strings.HasPrefix(imp, o) })
	}
	if imp == "testing" || strings.HasPrefix(imp, "testing/") {
		return p.suite()
	}
	if imp == "net/http" || strings.HasPrefix(imp, "net/http/") {
		return r.http
	}
	return imp != "unsafe" || strings.HasPrefix(p.rel(), "cmd/") || strings.HasPrefix(p.rel(), "internal/")
}

func fits(folder, rel string) bool {
	if base, ok := strings.CutSuffix(folder, "/..."); ok {
		return strings.HasPrefix(rel, base+"/")
	}
	return folder == rel
}

func TestWrongArrowsAreFound(t *testing.T) {
	for _, tc := range []struct {
		rel, imp string
		wrong    bool
	}{
		{"room", "time", false},
		{"room", "net/http", true},
		{"room", module + "/engine/memory", true},
		{"room", "github.com/prometheus/client_golang/prometheus", true},
		{"room", "testing", true},
		{"room/roomtest", "testing", false},
		{"room/roomtest", module + "/engine/memory", true},
		{"engine/memory", module + "/room", false},
		{"engine/memory", module + "/engine/redis", true},
		{"engine/redis", module + "/web", true},
		{"web", module + "/engine/memory", true},
		{"keylock", module + "/room", true},
		{"affinity", module + "/keylock", false},
		{"cmd/usher", module + "/web", false},
		{"internal/crowd", module + "/cmd/usher/internal/server", true},
		{"surprise", "fmt", true},
	} {
		p := pkg{ImportPath: module + "/" + tc.rel, Name: filepath.Base(tc.rel), Imports: []string{tc.imp}}
		if got := wrongArrows(p); (len(got) > 0) != tc.wrong {
			t.Errorf("%s imports %s: %v", tc.rel, tc.imp, got)
		}
	}
}
