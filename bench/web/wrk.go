package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"time"
)

// wrkRun is one load.
type wrkRun struct {
	url, script string
	args        []string
}

// result is what one load measured.
type result struct {
	rps, p50, p99 float64 // ms
	cpu           float64 // µs of the server's CPU a request
	bad           float64 // answers other than 2xx and 3xx, and socket errors
}

var (
	reRate    = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	reTotal   = regexp.MustCompile(`(\d+) requests in`)
	reP50     = regexp.MustCompile(`(?m)^\s+50%\s+([0-9.]+)(us|ms|s)`)
	reP99     = regexp.MustCompile(`(?m)^\s+99%\s+([0-9.]+)(us|ms|s)`)
	reStatus  = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
	reSockets = regexp.MustCompile(`Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)`)
)

func measure(ctx context.Context, o *options, server *process, w wrkRun) (result, error) {
	args := []string{"-t", strconv.Itoa(min(2, runtime.NumCPU())), "-c", strconv.Itoa(o.conns), "-d", fmt.Sprintf("%ds", o.seconds), "--latency", "--timeout", "10s", "-s", w.script, w.url, "--"}
	before := server.cpu()
	out, err := exec.CommandContext(ctx, "wrk", append(args, w.args...)...).CombinedOutput()
	if err != nil {
		return result{}, fmt.Errorf("wrk: %w\n%s", err, out)
	}
	used := server.cpu() - before
	r := result{rps: number(reRate, out), p50: millis(reP50, out), p99: millis(reP99, out), bad: number(reStatus, out)}
	if m := reSockets.FindSubmatch(out); m != nil {
		for _, n := range m[1:] {
			v, _ := strconv.ParseFloat(string(n), 64)
			r.bad += v
		}
	}
	total := number(reTotal, out)
	if total == 0 || r.rps == 0 {
		return result{}, fmt.Errorf("wrk made no requests:\n%s", out)
	}
	r.cpu = float64(used/time.Microsecond) / total
	return r, nil
}

func number(re *regexp.Regexp, text []byte) float64 {
	m := re.FindSubmatch(text)
	if m == nil {
		return 0
	}
	v, _ := strconv.ParseFloat(string(m[1]), 64)
	return v
}

func millis(re *regexp.Regexp, text []byte) float64 {
	v := number(re, text)
	if m := re.FindSubmatch(text); m != nil {
		switch string(m[2]) {
		case "us":
			v /= 1000
		case "s":
			v *= 1000
		}
	}
	return v
}

func token(n int) string {
	b := make([]byte, n/2)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// enterLua sends an enter with a request id that was never used before.
const enterLua = `
local threads = 0
function setup(thread) threads = threads + 1; thread:set("id", threads) end
function init(args) run = args[1]; n = 0; headers = {["Content-Type"] = "application/json"} end
function request()
  n = n + 1
  return wrk.format("POST", nil, headers, string.format('{"request_id":"%s%02d%012d"}', run, id, n))
end
`

// proxyLua asks for a page as one of many admitted visitors; peers other than usher ignore the cookie.
const proxyLua = `
function init(args)
  requests, n = {}, 0
  for line in io.lines(args[1]) do
    requests[#requests + 1] = wrk.format("GET", nil, {["Cookie"] = "usher-main=" .. line})
  end
end
function request() n = n % #requests + 1; return requests[n] end
`
