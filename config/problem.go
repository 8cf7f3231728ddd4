package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong, or worth a warning.
type Problem struct {
	File string // "" when the value did not come from a file
	Line int    // from 1; 0 when unknown
	Col  int    // from 1; 0 when unknown
	Path string // rooms[0].session.idle; "" for the file as a whole
	What string // what is wrong
	Mend string // what to do about it
}

// At gives file:line:col as far as they are known; "" without a file.
func (p Problem) At() string {
	if p.File == "" || p.Line == 0 {
		return p.File
	}
	if p.Col == 0 {
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col)
}

// Error gives file:line:col: path: what; mend.
func (p Problem) Error() string {
	var b strings.Builder
	if at := p.At(); at != "" {
		b.WriteString(at + ": ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.What)
	if p.Mend != "" {
		b.WriteString("; " + p.Mend)
	}
	return b.String()
}

// Problems is everything that is wrong, in the order of the file.
type Problems []Problem

// Error gives one problem a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// ProblemsOf returns the problems in err, or nil if it carries none.
func ProblemsOf(err error) Problems {
	var ps Problems
	if errors.As(err, &ps) {
		return ps
	}
	return nil
}

func (ps Problems) sorted() Problems {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Col - b.Col
	})
	return ps
}

func (ps Problems) orNil() error {
	if len(ps) == 0 {
		return nil
	}
	return ps.sorted()
}

// position is a place in the file, both from 1.
type position struct{ line, col int }

// source remembers where each value stood, so that a check made after decoding
// can still point at it.
type source struct {
	file string
	at   map[string]position
	env  map[string]string // paths whose value came from an environment variable
	open bool              // others than the owner may read the file
}

// forget drops what the file said about path, which variable has replaced.
func (s *source) forget(path, variable string) {
	for at := range s.at {
		if at == path || strings.HasPrefix(at, path+"[") {
			delete(s.at, at)
		}
	}
	if s.env == nil {
		s.env = map[string]string{}
	}
	s.env[path] = variable
}

// set reports whether the file gave a value for path.
func (s source) set(path string) bool { _, ok := s.at[path]; return ok }

// problem points at path, or at the nearest thing around it that the file has.
func (s source) problem(path, what, mend string) Problem {
	p := Problem{File: s.file, Path: path, What: what, Mend: mend}
	for at := path; ; at = parentPath(at) {
		if variable, ok := s.env[at]; ok {
			return Problem{Path: variable, What: what, Mend: mend}
		}
		if pos, ok := s.at[at]; ok {
			p.Line, p.Col = pos.line, pos.col
			return p
		}
		if at == "" {
			return p
		}
	}
}

// parentPath cuts the last step: a.b[0] becomes a.b, a.b becomes a, a becomes "".
func parentPath(path string) string {
	if i := strings.LastIndexAny(path, ".["); i >= 0 {
		return path[:i]
	}
	return ""
}

func joinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// nearest returns the candidate that a typing mistake most likely meant.
func nearest(word string, candidates []string) string {
	best, bestAt := "", 3 // more than two edits is another word
	if len(word) < 4 {
		bestAt = 2
	}
	norm := func(s string) string { return strings.NewReplacer("-", "_", " ", "_").Replace(strings.ToLower(s)) }
	word = norm(word)
	for _, c := range candidates {
		if norm(c) == word {
			return c
		}
		if d := distance(word, norm(c)); d < bestAt {
			best, bestAt = c, d
		}
	}
	return best
}

// distance is the number of letters to add, drop, change or swap.
func distance(a, b string) int {
	prev2 := make([]int, len(b)+1)
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
		}
		prev2, prev = prev, row
	}
	return prev[len(b)]
}
