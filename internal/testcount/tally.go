package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// event is a line of go test -json.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

// tally counts events. Tests with subtests are counted as one each, subtests
// too: each can fail by itself.
type tally struct {
	w                       io.Writer
	passed, failed, skipped int
	said                    map[string][]string // output by package and test, until it is known whether to show it
	pkgFailed               map[string]bool     // a test of the package failed, and so was counted
	failures                []string
}

func newTally(w io.Writer) *tally {
	return &tally{w: w, said: map[string][]string{}, pkgFailed: map[string]bool{}}
}

func (t *tally) read(r io.Reader) error {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil && e.Action != "" {
				t.event(e)
			} else {
				fmt.Fprint(t.w, line) // not an event: go itself speaks
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *tally) event(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		t.said[key] = append(t.said[key], e.Output)
	case "build-output":
		fmt.Fprint(t.w, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			t.packageEnd(e, key)
		} else {
			t.testEnd(e, key)
		}
		delete(t.said, key)
	}
}

func (t *tally) testEnd(e event, key string) {
	switch e.Action {
	case "pass":
		t.passed++
	case "skip":
		t.skipped++
		fmt.Fprintf(t.w, "skip  %s %s: %s\n", e.Package, e.Test, reason(t.said[key]))
	case "fail":
		t.failed++
		t.pkgFailed[e.Package] = true
		t.failures = append(t.failures, e.Package+" "+e.Test)
		t.show(t.said[key])
	}
}

func (t *tally) packageEnd(e event, key string) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(t.w, "ok    %s %.1fs\n", e.Package, e.Elapsed)
	case "fail":
		fmt.Fprintf(t.w, "FAIL  %s %.1fs\n", e.Package, e.Elapsed)
		if !t.pkgFailed[e.Package] { // did not build, panicked, timed out
			t.failed++
			t.failures = append(t.failures, e.Package)
		}
		t.show(t.said[key])
		for k, lines := range t.said { // tests that were running when it broke
			if strings.HasPrefix(k, e.Package+" ") && k != key {
				t.show(lines)
				delete(t.said, k)
			}
		}
	}
}

func (t *tally) show(lines []string) {
	for _, l := range lines {
		fmt.Fprint(t.w, l)
	}
}

// reason is what the test said to t.Skip.
func reason(lines []string) string {
	for _, l := range lines {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "===") || strings.HasPrefix(l, "---") {
			continue
		}
		if _, why, ok := strings.Cut(l, ": "); ok {
			return why
		}
		return l
	}
	return "no reason given"
}

func (t *tally) summary() {
	for _, f := range t.failures {
		fmt.Fprintln(t.w, "failed:", f)
	}
	fmt.Fprintf(t.w, "%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
}
