package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestTally(t *testing.T) {
	const log = `{"Action":"output","Package":"p","Test":"TestGood","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"    bad_test.go:3: it broke\n"}
{"Action":"fail","Package":"p","Test":"TestBad"}
{"Action":"output","Package":"p","Test":"TestSkip","Output":"    s_test.go:3: no redis-server here\n"}
{"Action":"skip","Package":"p","Test":"TestSkip"}
{"Action":"fail","Package":"p","Elapsed":1.5}
go: downloading something
{"ImportPath":"q","Action":"build-output","Output":"q.go:1: does not compile\n"}
{"Action":"fail","Package":"q"}
{"Action":"skip","Package":"r"}
{"Action":"pass","Package":"s","Elapsed":0.25}
`
	var out bytes.Buffer
	tl := newTally(&out)
	if err := tl.read(strings.NewReader(log)); err != nil {
		t.Fatal(err)
	}
	tl.summary()
	got := out.String()
	for _, want := range []string{
		"it broke", "skip  p TestSkip: no redis-server here\n", "FAIL  p 1.5s\n", "go: downloading something\n",
		"q.go:1: does not compile\n", "FAIL  q", "failed: p TestBad\n", "failed: q\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "noise") {
		t.Error("a passing test's output is shown")
	}
	if !strings.HasSuffix(got, "\n1 passed, 2 failed, 1 skipped\n") {
		t.Errorf("last line:\n%s", got)
	}
}

// A package that breaks in the middle of a test shows what the test said.
func TestTallyPanic(t *testing.T) {
	var out bytes.Buffer
	tl := newTally(&out)
	err := tl.read(strings.NewReader(`{"Action":"output","Package":"p","Test":"TestX","Output":"panic: oh\n"}
{"Action":"output","Package":"p","Output":"FAIL p\n"}
{"Action":"fail","Package":"p"}`))
	tl.summary()
	if err != nil || tl.failed != 1 || !strings.Contains(out.String(), "panic: oh") {
		t.Errorf("%v, %d failed:\n%s", err, tl.failed, out.String())
	}
}
