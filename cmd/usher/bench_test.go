package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/internal/loadtest"
)

func TestShareReadsPercentAndFraction(t *testing.T) {
	for text, want := range map[string]float64{"5%": 0.05, "0.05": 0.05, "0": 0, "100%": 1, " 12.5 % ": 0.125} {
		var v float64
		if err := (share{&v}).Set(text); err != nil || v != want {
			t.Errorf("%q: %v, %v", text, v, err)
		}
	}
	for _, text := range []string{"", "5", "-1%", "101%", "NaN", "many"} {
		var v float64
		if err := (share{&v}).Set(text); err == nil || !strings.Contains(err.Error(), "5%") {
			t.Errorf("%q: %v, %v", text, v, err)
		}
	}
}

// A run that fails leaves the report of an earlier one alone, and no litter.
func TestOutputIsWholeOrAbsent(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "report.html")
	write := func(form func(io.Writer) error) error {
		o, err := newOutput(path)
		if err != nil {
			t.Fatal(err)
		}
		defer o.drop()
		return o.write(io.Discard, form)
	}
	if err := write(func(w io.Writer) error { _, err := io.WriteString(w, "first"); return err }); err != nil {
		t.Fatal(err)
	}
	if err := write(func(w io.Writer) error { io.WriteString(w, "half"); return errors.New("no") }); err == nil {
		t.Fatal("no error")
	}
	if text, _ := os.ReadFile(path); string(text) != "first" {
		t.Errorf("the report is now %q", text)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, ".usher-bench-*")); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
	if _, err := newOutput(filepath.Join(dir, "none", "x.html")); err == nil || !strings.Contains(err.Error(), "cannot write") {
		t.Errorf("got %v", err)
	}
}

func TestBenchViewOffATerminal(t *testing.T) {
	var out bytes.Buffer
	v := newBenchView(&out, "main", "http://127.0.0.1:8080")
	p := loadtest.Progress{Step: 1, Steps: 2, Visitors: 100, Arrived: 40, Waiting: 30, Inside: 10, Elapsed: 3 * time.Second}
	v.show(p)
	v.show(p) // within five seconds: nothing new to say
	p.Doing = "judging the room's log"
	v.show(p)
	v.end()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "came 40/100") || !strings.Contains(lines[1], "judging") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%q", lines)
	}
	for _, l := range (&benchView{}).lines(p) {
		if strings.Contains(l, "%!") {
			t.Error(l)
		}
	}
}

func TestBenchRefusesBadOptions(t *testing.T) {
	quiet(t)
	file := write(t, "usher.yaml", "public: {listen: ':1'}\n")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"a", "b"}, 2, "one URL"},
		{[]string{"--renew", "--proxy", "/x"}, 2, "exclude"},
		{[]string{"--abandon", "5"}, 2, "share"},
		{[]string{"--room", "r", "http://127.0.0.1:1"}, 1, "connection refused"},
		{[]string{"--room", "r", "--config", file}, 1, "no answer from http://127.0.0.1:1 "},
	} {
		var stdout, stderr bytes.Buffer
		args := append([]string{"bench", "--data", t.TempDir()}, c.args...)
		if code := run(t.Context(), args, &stdout, &stderr); code != c.code || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%v: exit %d, %q", c.args, code, stderr.String())
		}
	}
}
