package main

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

const wrkOutput = `Running 5s test @ http://127.0.0.1:8080/
  2 threads and 256 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     5.42ms    2.76ms  46.44ms   77.39%
  Latency Distribution
     50%  812.00us
     75%    6.50ms
     90%    8.71ms
     99%    1.20s
  225341 requests in 5.04s, 55.01MB read
  Socket errors: connect 1, read 2, write 3, timeout 4
  Non-2xx or 3xx responses: 7
Requests/sec:  44707.96
Transfer/sec:     10.91MB
`

func TestWrkOutputIsRead(t *testing.T) {
	out := []byte(wrkOutput)
	if v := number(reRate, out); v != 44707.96 {
		t.Error("rate", v)
	}
	if p50, p99 := millis(reP50, out), millis(reP99, out); p50 != 0.812 || p99 != 1200 {
		t.Error("latency", p50, p99)
	}
	if number(reTotal, out) != 225341 || number(reStatus, out) != 7 || reSockets.FindSubmatch(out) == nil {
		t.Error("counts")
	}
}

// Every peer that is installed serves a page, under a short load and without an error.
func TestPeersServe(t *testing.T) {
	for _, name := range []string{"wrk", "nginx", "haproxy"} {
		if _, err := exec.LookPath(name); err != nil {
			if os.Getenv("USHER_TEST_ALL") == "1" {
				t.Fatalf("%s is not installed", name)
			}
			t.Skipf("%s is not installed", name)
		}
	}
	exe := t.TempDir() + "/web"
	if out, err := exec.Command("go", "build", "-o", exe, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o := &options{dir: t.TempDir(), seconds: 1, conns: 16}
	var s stage
	defer s.stop()
	origin, err := s.role(ctx, exe, "origin")
	if err != nil {
		t.Fatal(err)
	}
	tickets := o.dir + "/tickets"
	script := o.dir + "/proxy.lua"
	writeFile(t, tickets, "one\ntwo\n")
	writeFile(t, script, proxyLua)
	starts := map[string]func() (*process, error){
		"origin":          func() (*process, error) { return origin, nil },
		"reverse":         func() (*process, error) { return s.role(ctx, exe, "reverse", origin.base) },
		"reverse-default": func() (*process, error) { return s.role(ctx, exe, "reverse-default", origin.base) },
		"nginx":           func() (*process, error) { return s.nginx(ctx, o, origin.base) },
		"haproxy":         func() (*process, error) { return s.haproxy(ctx, o, origin.base) },
	}
	for name, start := range starts {
		p, err := start()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r, err := measure(ctx, o, p, wrkRun{url: p.base + "/seats", script: script, args: []string{tickets}})
		if err != nil || r.bad > 0 || r.rps == 0 || r.cpu == 0 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		t.Logf("%s: %+v", name, r)
	}
	script = o.dir + "/enter.lua"
	writeFile(t, script, enterLua)
	for _, role := range []string{"raw", "reading"} {
		p, err := s.role(ctx, exe, role)
		if err != nil {
			t.Fatal(err)
		}
		r, err := measure(ctx, o, p, wrkRun{url: p.base + "/.usher/v1/rooms/main/enter", script: script, args: []string{token(16)}})
		if err != nil || r.bad > 0 {
			t.Errorf("%s: %+v, %v", role, r, err)
		}
		t.Logf("%s: %+v", role, r)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
