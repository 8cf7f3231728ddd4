// Package nodetest runs scripts in Node, most of which drive a Chromium, as tests: each line that a script prints is one
// check, and becomes a subtest. Whatever hangs ends as a failure that says what was going on, before go test's own
// deadline, and leaves no browser behind.
package nodetest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Chromium is the browser's path: USHER_CHROMIUM, or where Debian has it.
func Chromium() string {
	if c := os.Getenv("USHER_CHROMIUM"); c != "" {
		return c
	}
	return "/usr/bin/chromium"
}

// Need skips, with the reason, where Node, the npm packages of the folder or the browser are absent; under
// USHER_TEST_ALL=1 absence is a failure.
func Need(t *testing.T, browser bool, packages ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("tests in Node are not short")
	}
	lack := func(what string) {
		t.Helper()
		if os.Getenv("USHER_TEST_ALL") == "1" {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	if _, err := exec.LookPath("node"); err != nil {
		lack("node is not installed (apt-get install nodejs)")
	}
	for _, p := range packages {
		if _, err := os.Stat(filepath.Join("node_modules", p)); err != nil {
			lack(p + " is not installed: run npm ci in the test's folder")
		}
	}
	if _, err := os.Stat(Chromium()); browser && err != nil {
		lack("chromium is not installed (apt-get install chromium fonts-noto-cjk), or name it in USHER_CHROMIUM")
	}
}

// Script is a run of node.
type Script struct {
	Args  []string      // the script's file and its arguments
	Env   []string      // beside the test's own and USHER_CHROMIUM
	Limit time.Duration // for all of it; it ends half a minute before go test's deadline, if that is sooner
	// Wish fulfils what the script asks for by a line {"do": "…"}, and says what it is answered, a line of its standard
	// input. nil: it asks for nothing.
	Wish func(do string) string
}

// stopping is how long a script has to close its browser and say what it was at.
const stopping = 20 * time.Second

// Run runs a script to its end. Its lines are {"name", "error", "note"}, a check that failed unless error is empty, or
// {"do"}. It must print one check at least.
func Run(t *testing.T, s Script) {
	t.Helper()
	limit := s.Limit
	if at, ok := t.Deadline(); ok {
		limit = min(limit, time.Until(at)-stopping-10*time.Second)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	// Browsers keep their profiles below TMPDIR, and are known by it.
	dir, err := os.MkdirTemp("", "usher-node-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, "node", s.Args...)
	cmd.Env = append(append(os.Environ(), s.Env...), "USHER_CHROMIUM="+Chromium(), "TMPDIR="+dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopping
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Files, so that Wait waits for node alone: a browser that outlives it may hold them open.
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = w, stderr
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		killThoseOf(dir)
		_ = out.SetReadDeadline(time.Now().Add(stopping))
		ended <- err
	}()
	n := 0
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var r struct{ Name, Error, Note, Do string }
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Errorf("%s: %q is no check", s.Args[0], lines.Text())
			continue
		}
		if r.Do != "" {
			answer := ""
			if s.Wish != nil {
				answer = s.Wish(r.Do)
			}
			_, _ = fmt.Fprintln(in, answer)
			continue
		}
		n++
		t.Run(r.Name, func(t *testing.T) {
			if r.Note != "" {
				t.Log(r.Note)
			}
			if r.Error != "" {
				t.Error(r.Error)
			}
		})
	}
	if err := lines.Err(); err != nil {
		t.Errorf("%s: reading its output: %v", s.Args[0], err)
	}
	err = <-ended
	said, _ := os.ReadFile(stderr.Name())
	said = said[max(0, len(said)-16<<10):]
	switch {
	case ctx.Err() != nil:
		t.Errorf("%s was not done after %v and was ended (%v), after %d checks\n%s", s.Args[0], limit.Round(time.Second), err, n, said)
	case err != nil:
		t.Errorf("%s: %v\n%s", s.Args[0], err, said)
	case n == 0:
		t.Errorf("%s checked nothing\n%s", s.Args[0], said)
	}
}

// killThoseOf ends the processes that were started with dir as their TMPDIR. Where there is no /proc it does nothing.
func killThoseOf(dir string) {
	names, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range names {
		env, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(env, []byte("TMPDIR="+dir+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
	}
}
