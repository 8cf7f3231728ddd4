package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "peer" {
		if err := peer(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "web:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "times that every peer is measured")
	flag.IntVar(&o.seconds, "seconds", 5, "length of each measurement")
	flag.IntVar(&o.conns, "connections", 256, "kept by wrk")
	flag.StringVar(&o.usher, "usher", "", "binary to measure (default: built from the module above)")
	flag.StringVar(&o.only, "only", "", "enter or proxy: just that comparison")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, &o); err != nil {
		fmt.Fprintln(os.Stderr, "web:", err)
		os.Exit(1)
	}
}

type options struct {
	rounds, seconds, conns int
	usher, only            string
	dir                    string // temporary
}

func run(ctx context.Context, o *options) error {
	if _, err := exec.LookPath("wrk"); err != nil {
		return fmt.Errorf("wrk is missing; on Debian: apt-get install wrk")
	}
	dir, err := os.MkdirTemp("", "usher-bench-web-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o.dir = dir
	if o.usher != "" {
		if o.usher, err = filepath.Abs(o.usher); err != nil {
			return err
		}
	} else {
		o.usher = filepath.Join(dir, "usher")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.usher, "./cmd/usher")
		build.Dir, build.Stderr = "..", os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("building usher (run this from bench/): %w", err)
		}
	}
	fmt.Printf("%s, %d CPUs, %s, %s\n`go run ./web -rounds %d -seconds %d -connections %d`\n",
		cpuModel(), runtime.NumCPU(), runtime.Version(), time.Now().UTC().Format("2006-01-02 15:04 UTC"), o.rounds, o.seconds, o.conns)
	if o.only != "proxy" {
		if err := compareEnter(ctx, o); err != nil {
			return err
		}
	}
	if o.only != "enter" {
		return compareProxy(ctx, o)
	}
	return nil
}

func compareEnter(ctx context.Context, o *options) error {
	var s stage
	defer s.stop()
	raw, err := s.self(ctx, "raw")
	if err != nil {
		return err
	}
	reading, err := s.self(ctx, "reading")
	if err != nil {
		return err
	}
	usher, err := s.usher(ctx, o, "http://127.0.0.1:9", 1)
	if err != nil {
		return err
	}
	path := "/.usher/v1/rooms/main/enter"
	peers := []contender{
		{name: "net/http handler that answers the same JSON", server: raw},
		{name: "the same, decoding the request", server: reading},
		{name: "usher enter, waiting, durable", server: usher, bar: 0.6},
	}
	script := filepath.Join(o.dir, "enter.lua")
	if err := os.WriteFile(script, []byte(enterLua), 0o600); err != nil {
		return err
	}
	return race(ctx, o, "HTTP enter", peers, func(base string, round int) wrkRun {
		return wrkRun{url: base + path, script: script, args: []string{token(16)}}
	})
}

func compareProxy(ctx context.Context, o *options) error {
	var s stage
	defer s.stop()
	origin, err := s.self(ctx, "origin")
	if err != nil {
		return err
	}
	tuned, err := s.self(ctx, "reverse", origin.base)
	if err != nil {
		return err
	}
	plain, err := s.self(ctx, "reverse-default", origin.base)
	if err != nil {
		return err
	}
	usher, err := s.usher(ctx, o, origin.base, 1_000_000)
	if err != nil {
		return err
	}
	tickets, err := admitted(ctx, usher.base, 256)
	if err != nil {
		return err
	}
	ticketFile := filepath.Join(o.dir, "tickets")
	if err := os.WriteFile(ticketFile, []byte(strings.Join(tickets, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	peers := []contender{
		{name: "ReverseProxy alone, tuned transport", server: tuned},
		{name: "ReverseProxy alone, default transport", server: plain},
		{name: "usher proxy, admitted visitors", server: usher, bar: 0.9},
	}
	for name, start := range map[string]func(context.Context, *options, string) (*process, error){"nginx": s.nginx, "haproxy": s.haproxy} {
		p, err := start(ctx, o, origin.base)
		if err != nil {
			fmt.Printf("\n%s is left out: %v\n", name, err)
			continue
		}
		peers = append(peers, contender{name: name, server: p})
	}
	slices.SortStableFunc(peers[3:], func(a, b contender) int { return strings.Compare(a.name, b.name) })
	script := filepath.Join(o.dir, "proxy.lua")
	if err := os.WriteFile(script, []byte(proxyLua), 0o600); err != nil {
		return err
	}
	return race(ctx, o, "Proxy", peers, func(base string, round int) wrkRun {
		return wrkRun{url: base + "/seats", script: script, args: []string{ticketFile}}
	})
}

// contender is one server of a comparison. The first of a comparison is what the others are divided by.
type contender struct {
	name   string
	server *process
	bar    float64 // the ratio that is wanted; 0: none
}

// race measures all in turn, round by round, and prints a table.
func race(ctx context.Context, o *options, title string, peers []contender, load func(base string, round int) wrkRun) error {
	results := make([][]result, len(peers))
	for round := range o.rounds {
		for i := range peers {
			p := peers[(i+round)%len(peers)] // nobody is always first
			r, err := measure(ctx, o, p.server, load(p.server.base, round))
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			results[(i+round)%len(peers)] = append(results[(i+round)%len(peers)], r)
		}
	}
	fmt.Printf("\n## %s\n\n| server | requests/s | p50 ms | p99 ms | CPU µs/request | ratio | bar |\n|---|---:|---:|---:|---:|---:|---:|\n", title)
	for i, p := range peers {
		var ratios []float64
		for round, r := range results[i] {
			ratios = append(ratios, r.rps/results[0][round].rps)
		}
		bar := ""
		if p.bar > 0 {
			bar = fmt.Sprintf("≥ %.1f", p.bar)
		}
		note := ""
		if bad := sumOf(results[i], func(r result) float64 { return r.bad }); bad > 0 {
			note = fmt.Sprintf(" (%.0f answers were errors!)", bad)
		}
		fmt.Printf("| %s%s | %.0f | %.2f | %.1f | %.1f | %.2f | %s |\n", p.name, note,
			medianOf(results[i], func(r result) float64 { return r.rps }), medianOf(results[i], func(r result) float64 { return r.p50 }),
			medianOf(results[i], func(r result) float64 { return r.p99 }), medianOf(results[i], func(r result) float64 { return r.cpu }), median(ratios), bar)
	}
	return nil
}

func sumOf(rs []result, of func(result) float64) (s float64) {
	for _, r := range rs {
		s += of(r)
	}
	return s
}

func medianOf(rs []result, of func(result) float64) float64 {
	var v []float64
	for _, r := range rs {
		v = append(v, of(r))
	}
	return median(v)
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	if len(v) == 0 {
		return 0
	}
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
