package arrows_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func parse(t *testing.T, p pkg) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = f
	}
	return files
}

func TestMachinesArePure(t *testing.T) {
	for _, p := range packages(t) {
		for name, f := range parse(t, p) {
			if name != "machine.go" && !slices.Contains(alsoMachines(), p.rel()+"/"+name) {
				continue
			}
			for _, wrong := range impurities(f) {
				t.Errorf("%s/%s %s: a machine takes state, command and time, and gives result and events", p.rel(), name, wrong)
			}
		}
	}
}

// clockCalls are what package time offers beside values.
func clockCalls() []string {
	return []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
}

func impurities(f *ast.File) []string {
	var wrong []string
	for _, imp := range f.Imports {
		if path, _ := strconv.Unquote(imp.Path.Value); !slices.Contains(machineImports(), path) {
			wrong = append(wrong, "imports "+path)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			wrong = append(wrong, "starts a goroutine")
		case *ast.ChanType:
			wrong = append(wrong, "uses a channel")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clockCalls(), n.Sel.Name) {
				wrong = append(wrong, "calls time."+n.Sel.Name)
			}
		}
		return true
	})
	return wrong
}

func TestNoMutablePackageState(t *testing.T) {
	for _, p := range packages(t) {
		for _, wrong := range mutableState(parse(t, p)) {
			t.Errorf("%s: %s; put it into a value that somebody owns", p.rel(), wrong)
		}
	}
}

// mutableState finds package variables that can change: those without a value,
// those that are assigned to, and those whose value is made to be changed. What
// is left are constants that Go cannot call so: errors, expressions, tables.
func mutableState(files map[string]*ast.File) []string {
	vars := map[string]string{} // name → where
	var wrong []string
	for name, f := range files {
		if ast.IsGenerated(f) { // as whoever made the generator likes it
			continue
		}
		for _, decl := range f.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.VAR {
				continue
			}
			for _, spec := range gen.Specs {
				vs := spec.(*ast.ValueSpec)
				if embedded(gen.Doc) || embedded(vs.Doc) {
					continue
				}
				for i, id := range vs.Names {
					if id.Name == "_" {
						continue
					}
					vars[id.Name] = name
					var val ast.Expr
					if i < len(vs.Values) {
						val = vs.Values[i]
					}
					if why := changeable(val); why != "" {
						wrong = append(wrong, fmt.Sprintf("%s: var %s %s", name, id.Name, why))
					}
				}
			}
		}
	}
	for name, f := range files {
		for _, id := range assigned(f) {
			if _, ok := vars[id]; ok {
				wrong = append(wrong, fmt.Sprintf("%s: package variable %s is assigned to", name, id))
			}
		}
	}
	slices.Sort(wrong)
	return slices.Compact(wrong)
}

func embedded(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed") })
}

func changeable(val ast.Expr) string {
	switch v := val.(type) {
	case nil:
		return "has no value yet"
	case *ast.UnaryExpr:
		if v.Op == token.AND && !errorValue(v.X) {
			return "points to a value that can change"
		}
	case *ast.CompositeLit:
		if sel, ok := v.Type.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && (x.Name == "sync" && sel.Sel.Name != "Pool" || x.Name == "atomic") {
				return "is a " + x.Name + "." + sel.Sel.Name
			}
		}
	case *ast.CallExpr:
		if fn, ok := v.Fun.(*ast.Ident); ok && (fn.Name == "make" || fn.Name == "new") {
			return "is made to be changed"
		}
	}
	return ""
}

// errorValue reports an error made from a literal: a sentinel that carries data.
func errorValue(e ast.Expr) bool {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return false
	}
	id, ok := lit.Type.(*ast.Ident)
	return ok && strings.HasSuffix(strings.ToLower(id.Name), "error")
}

// assigned gives the roots of everything that is assigned to or counted up or
// down, and that the parser could not resolve to something declared in a
// function. (What is changed through a pointer escapes it.)
func assigned(f *ast.File) []string {
	var out []string
	note := func(e ast.Expr) {
		for {
			switch x := e.(type) {
			case *ast.IndexExpr:
				e = x.X
			case *ast.SelectorExpr:
				e = x.X
			case *ast.ParenExpr:
				e = x.X
			case *ast.StarExpr:
				e = x.X
			case *ast.Ident:
				if x.Obj == nil || f.Scope.Lookup(x.Name) == x.Obj {
					out = append(out, x.Name)
				}
				return
			default:
				return
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, l := range n.Lhs {
					note(l)
				}
			}
		case *ast.IncDecStmt:
			note(n.X)
		}
		return true
	})
	return out
}

func TestImpurityIsFound(t *testing.T) {
	for _, tc := range []struct {
		code         string
		pure, frozen bool
	}{
		{`import "time"; func f(t time.Time) time.Time { return t.Add(time.Second) }`, true, true},
		{`import "time"; func f() time.Time { return time.Now() }`, false, true},
		{`import "sync"; type m struct { mu sync.Mutex }`, false, true},
		{`func f() { go f() }`, false, true},
		{`import "errors"; var ErrX = errors.New("x")`, true, true},
		{`var table = [...]string{"a"}; func f() string { return table[0] }`, true, true},
		{`var table = map[string]int{}; func f() { table["a"] = 1 }`, true, false},
		{`var n int; func f() { n++ }`, true, false},
		{`var n = 1; func f() { n := 2; n++ }`, true, true},
		{`var p = &struct{ n int }{}`, true, false},
		{`var c = make(map[string]int)`, true, false},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x; "+tc.code, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if got := impurities(f); (len(got) == 0) != tc.pure {
			t.Errorf("%s: pure %v: %v", tc.code, tc.pure, got)
		}
		if got := mutableState(map[string]*ast.File{"x.go": f}); (len(got) == 0) != tc.frozen {
			t.Errorf("%s: frozen %v: %v", tc.code, tc.frozen, got)
		}
	}
}
