package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ushergo/usher/internal/loadtest"
)

const benchToken = "a-token-for-the-bench-test"

// benching is usher bench under way on a process.
type benching struct {
	file           string
	stdout, stderr bytes.Buffer
	code           chan int
}

func startBench(t *testing.T, p *process, args ...string) *benching {
	b := &benching{file: filepath.Join(t.TempDir(), "report.json"), code: make(chan int, 1)}
	args = append([]string{"bench", p.public, "--admin", p.admin, "--quiet", "--json", b.file}, args...)
	go func() { b.code <- run(t.Context(), args, &b.stdout, &b.stderr) }()
	return b
}

// report waits for the end.
func (b *benching) report(t *testing.T) (*loadtest.Report, string) {
	t.Helper()
	if code := <-b.code; code != 0 {
		t.Errorf("exit %d: %s%s", code, b.stdout.String(), b.stderr.String())
	}
	var r loadtest.Report
	if text, err := os.ReadFile(b.file); err != nil {
		t.Fatal(err)
	} else if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return &r, b.stdout.String()
}

// A crowd on a real process: by polling and by stream, by the API and through the proxy, and nobody is wronged.
func TestBenchOnARunningUsher(t *testing.T) {
	quiet(t)
	t.Setenv("USHER_ADMIN_TOKEN", benchToken)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("seats")) }))
	defer origin.Close()
	p := startProcess(t, nil, append(freeListeners(), "--origin", origin.URL, "--active", "10", "--data", t.TempDir())...).up()
	for name, args := range map[string][]string{
		"poll":   {"--poll", "100ms"},
		"stream": {"--transport", "sse"},
		"proxy":  {"--poll", "100ms", "--proxy", "/seats", "--think", "20ms"},
		"steps":  {"--poll", "100ms", "--steps", "15,30"},
	} {
		t.Run(name, func(t *testing.T) {
			page := filepath.Join(t.TempDir(), "report.html")
			r, text := startBench(t, p, append(args, "--visitors", "60", "--ramp", "500ms", "--stay", "100ms", "--abandon", "0", "--refresh", "20%", "--html", page)...).report(t)
			if !r.OK || r.Room != "main" || r.Order != "fifo" {
				t.Errorf("%s", text)
			}
			for _, s := range r.Steps {
				if s.Crowd.Left != int64(s.Visitors) || s.Told == nil || len(s.Server.Engine) == 0 || !s.Server.LogWhole || s.Faults.LimitOverruns.Count == nil {
					t.Errorf("%d visitors: %s", s.Visitors, text)
				}
			}
			if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "</html>") {
				t.Error(err)
			}
		})
	}
}

// The server is killed while the crowd is at it, and comes back: the crowd goes on, and nobody is lost.
func TestBenchThroughAKill(t *testing.T) {
	quiet(t)
	t.Setenv("USHER_ADMIN_TOKEN", benchToken)
	rest := []string{"--origin", "http://127.0.0.1:1", "--active", "10", "--data", t.TempDir()}
	p := startProcess(t, nil, append(freeListeners(), rest...)...).up()
	b := startBench(t, p, "--visitors", "150", "--ramp", "1s", "--stay", "100ms", "--abandon", "0", "--poll", "100ms")
	for inside := int64(0); inside == 0; {
		room, err := p.client(benchToken).Room(t.Context(), "main")
		if err != nil {
			t.Fatal(err)
		}
		inside = room.Active
	}
	p.signal(os.Kill)
	<-p.ended
	same := []string{"--listen", strings.TrimPrefix(p.public, "http://"), "--admin-listen", strings.TrimPrefix(p.admin, "http://")}
	startProcess(t, nil, append(same, rest...)...).up()
	r, text := b.report(t)
	if s := r.Steps[0]; !r.OK || s.Crowd.Answered != 150 || s.Crowd.Left != 150 || !s.Server.Restarted {
		t.Errorf("%s", text)
	}
}
