package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ushergo/usher/egress"
	"github.com/ushergo/usher/engine/redis"
	"github.com/ushergo/usher/examples/transcribe"
	"github.com/ushergo/usher/keeper"
	"github.com/ushergo/usher/keeper/keepertest"
	"github.com/ushergo/usher/keeper/sqlsink"
	"github.com/ushergo/usher/lease"
)

// figures are what a worker tells once a second, on its standard output.
type figures struct {
	Beats, Held, Open int64
	Stored            int64
	Heap              uint64 // bytes in use
}

type beats struct{ n atomic.Int64 }

func (b *beats) Beaten(_ time.Duration, err error) {
	if err == nil {
		b.n.Add(1)
	}
}
func (*beats) Taken(string, lease.Owner) {}
func (*beats) Ended(string, error)       {}
func (*beats) Died(lease.Owner)          {}

// work is one worker with the defaults of usher keep.
func work(ctx context.Context, name, addr, dsn string) error {
	client, err := redis.Connect(ctx, redis.Config{Addrs: []string{addr}})
	if err != nil {
		return err
	}
	defer client.Close()
	store, err := redis.NewLeases(client, "bench")
	if err != nil {
		return err
	}
	sink, err := sqlsink.Open(ctx, dsn, 0)
	if err != nil {
		return err
	}
	defer sink.Close()
	d := &egress.Dialer{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	k, err := keeper.New(keeper.Options{Sink: sink, Dial: d.DialContext})
	if err != nil {
		return err
	}
	b := &beats{}
	go func() {
		for ; ctx.Err() == nil; time.Sleep(time.Second) {
			s := k.Stats()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			_ = json.NewEncoder(os.Stdout).Encode(figures{b.n.Load(), int64(s.Connections), int64(s.Open), s.Stored, m.HeapInuse + m.StackInuse})
		}
	}()
	return k.Run(ctx, store, lease.Options{Worker: name, Observer: b})
}

// proc is a worker process.
type proc struct {
	cmd  *exec.Cmd
	last atomic.Pointer[figures]
	done chan error
}

func startWorker(self, name, addr, dsn string) (*proc, error) {
	p := &proc{cmd: exec.Command(self, "-worker", name, "-redis", addr, "-sink", dsn), done: make(chan error, 1)}
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.last.Store(&figures{})
	go func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			var f figures
			if json.Unmarshal(in.Bytes(), &f) == nil {
				p.last.Store(&f)
			}
		}
		_, _ = io.Copy(io.Discard, out)
		p.done <- p.cmd.Wait()
	}()
	return p, nil
}

// rss is the resident memory of the process in bytes, and cpu its time.
func (p *proc) rss() (int64, time.Duration) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	var kb int64
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ = strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	var ticks int64
	for _, i := range []int{11, 12} {
		if i < len(fields) {
			n, _ := strconv.ParseInt(fields[i], 10, 64)
			ticks += n
		}
	}
	return kb << 10, time.Duration(ticks) * 10 * time.Millisecond
}

func until(ctx context.Context, f func() bool) error {
	for !f() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
}

func hold(ctx context.Context, connections, workers int, rate float64, size int, long time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute+long)
	defer cancel()
	dir, err := os.MkdirTemp("", "keeper")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	socket, stopRedis, err := transcribe.StartRedis(ctx, dir)
	if err != nil {
		return err
	}
	defer stopRedis()
	front, err := transcribe.NewProxy("unix", socket)
	if err != nil {
		return err
	}
	defer front.Close()
	up := &keepertest.Upstream{Rate: rate, Size: size}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: up, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()

	self, err := os.Executable()
	if err != nil {
		return err
	}
	dsn := "sqlite:" + filepath.Join(dir, "messages.db")
	var ps []*proc
	defer func() {
		for _, p := range ps {
			_ = p.cmd.Process.Kill()
		}
	}()
	for i := range workers {
		p, err := startWorker(self, fmt.Sprintf("w%d", i+1), front.Addr(), dsn)
		if err != nil {
			return err
		}
		ps = append(ps, p)
	}
	if err := until(ctx, func() bool {
		for _, p := range ps {
			if p.last.Load().Beats == 0 {
				return false
			}
		}
		return true
	}); err != nil {
		return err
	}
	var empty []int64
	for _, p := range ps {
		n, _ := p.rss()
		empty = append(empty, n)
	}
	client, err := redis.Connect(ctx, redis.Config{Addrs: []string{front.Addr()}})
	if err != nil {
		return err
	}
	defer client.Close()
	store, err := redis.NewLeases(client, "bench")
	if err != nil {
		return err
	}
	for i := range connections {
		id := fmt.Sprintf("c%05d", i)
		spec := transcribe.Spec("ws://" + l.Addr().String() + "/" + id)
		put, err := spec.Put(id)
		if err == nil {
			_, err = store.Put(ctx, put)
		}
		if err != nil {
			return err
		}
	}
	began := time.Now()
	if err := until(ctx, func() bool { return up.Open() == connections }); err != nil {
		return fmt.Errorf("%d of %d are open: %w", up.Open(), connections, err)
	}
	fmt.Printf("%d connections, %d worker processes, %.3g messages/s each of %d bytes; leases in Redis, messages in SQLite\n", connections, workers, rate, size)
	fmt.Printf("all open after                       %v\n", time.Since(began).Round(time.Millisecond))
	if err := until(ctx, func() bool { return time.Since(began) > 10*time.Second }); err != nil { // shares are even, buffers in use
		return err
	}
	measure(ctx, ps, empty, connections, long)
	ps, err = stops(ctx, ps, func(name string) (*proc, error) { return startWorker(self, name, front.Addr(), dsn) }, up, connections)
	return err
}

func measure(ctx context.Context, ps []*proc, empty []int64, connections int, long time.Duration) {
	var beats, stored int64
	var cpu time.Duration
	for _, p := range ps {
		f := p.last.Load()
		beats, stored = beats-f.Beats, stored-f.Stored
		_, c := p.rss()
		cpu -= c
	}
	began := time.Now()
	select {
	case <-ctx.Done():
	case <-time.After(long):
	}
	var grown, heap int64
	for i, p := range ps {
		f := p.last.Load()
		beats, stored = beats+f.Beats, stored+f.Stored
		rss, c := p.rss()
		cpu += c
		grown += rss - empty[i]
		heap += int64(f.Heap)
	}
	s := time.Since(began).Seconds()
	fmt.Printf("heart-beat writes a second, in all   %.2f   (one per connection each 5 s would be %.0f)\n", float64(beats)/s, float64(connections)/5)
	fmt.Printf("messages stored a second             %.0f\n", float64(stored)/s)
	fmt.Printf("CPU, in all                          %.1f %% of one core, %.0f µs a message\n", 100*cpu.Seconds()/s, float64(cpu.Microseconds())/float64(max(stored, 1)))
	fmt.Printf("memory a connection                  %.1f KB RSS grown, %.1f KB heap and stacks\n", float64(grown)/1024/float64(connections), float64(heap)/1024/float64(connections))
}

// stops times a graceful stop and a crash, each with a replacement that was started before, and the stop of all.
func stops(ctx context.Context, ps []*proc, start func(name string) (*proc, error), up *keepertest.Upstream, connections int) ([]*proc, error) {
	for i, how := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		p, err := start(fmt.Sprintf("r%d", i+1))
		if err != nil {
			return ps, err
		}
		ps = append(ps, p)
		if err := until(ctx, func() bool { return p.last.Load().Beats > 1 && up.Open() == connections }); err != nil {
			return ps, err
		}
		victim := ps[i]
		n := victim.last.Load().Held
		began := time.Now()
		_ = victim.cmd.Process.Signal(how)
		<-victim.done
		ended := time.Since(began)
		if err := until(ctx, func() bool { return up.Open() < connections || time.Since(began) > 5*time.Second }); err != nil {
			return ps, err
		}
		if err := until(ctx, func() bool { return up.Open() == connections }); err != nil {
			return ps, err
		}
		fmt.Printf("%v on %d connections, ended after %v; all open again after %v (lease 20 s)\n", how, n, ended.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	}
	began := time.Now()
	for _, p := range ps[2:] {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, p := range ps[2:] {
		<-p.done
	}
	fmt.Printf("SIGTERM of all, %d connections, ended after %v\n", connections, time.Since(began).Round(time.Millisecond))
	return ps, nil
}
