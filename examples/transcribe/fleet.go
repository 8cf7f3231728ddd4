package transcribe

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ushergo/usher/keeper/keepertest"
	"github.com/ushergo/usher/keeper/sqlsink"
	"github.com/ushergo/usher/lease"
)

// Fleet is an upstream and worker processes that can be hurt.
type Fleet struct {
	Upstream *keepertest.Upstream
	Store    lease.Store
	Sink     *sqlsink.Sink
	Streams  []string

	o       FleetOptions
	url     string
	srv     *http.Server
	direct  *Proxy // the script's own way to the store, never frozen
	close   func()
	workers []*process
}

// FleetOptions of NewFleet.
type FleetOptions struct {
	// Command runs a worker with these arguments. Required.
	Command func(args ...string) *exec.Cmd
	// Store is for OpenStore, with {addr} where the address is: everybody reaches it through a proxy of its own.
	// StoreNetwork and StoreAddr are where it really is.
	Store, StoreNetwork, StoreAddr string
	Sink                           string // of the workers: sqlite:FILE
	Workers                        int
	Streams                        int
	Lease                          time.Duration
	Rate                           float64       // messages a second and stream
	Drop                           time.Duration // mean life of a connection at the upstream
	Log                            io.Writer     // of workers
}

func (o *FleetOptions) store(p *Proxy) string { return strings.ReplaceAll(o.Store, "{addr}", p.Addr()) }

// process is one worker, and what it is reached by.
type process struct {
	f            *Fleet
	name         string
	n            int // incarnation
	cmd          *exec.Cmd
	done         chan struct{}
	store, front *Proxy
	mu           sync.Mutex
}

// NewFleet starts everything; ctx bounds the start alone.
func NewFleet(ctx context.Context, o FleetOptions) (*Fleet, error) {
	f := &Fleet{o: o, Upstream: &keepertest.Upstream{Rate: o.Rate, Drop: o.Drop, Size: 120}}
	if err := f.start(ctx); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (f *Fleet) start(ctx context.Context) (err error) {
	if f.direct, err = NewProxy(f.o.StoreNetwork, f.o.StoreAddr); err != nil {
		return err
	}
	if f.Store, f.close, err = OpenStore(ctx, f.o.store(f.direct)); err != nil {
		return err
	}
	if f.Sink, err = sqlsink.Open(ctx, f.o.Sink, 0); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	f.srv = &http.Server{Handler: f.Upstream, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = f.srv.Serve(l) }()
	f.url = "ws://" + l.Addr().String() + "/"
	for i := range f.o.Streams {
		s := fmt.Sprintf("call-%03d", i)
		spec := Spec(f.url + s)
		put, err := spec.Put(s)
		if err != nil {
			return err
		}
		if _, err := f.Store.Put(ctx, put); err != nil {
			return err
		}
		f.Streams = append(f.Streams, s)
	}
	for i := range f.o.Workers {
		p := &process{f: f, name: fmt.Sprintf("worker-%d", i+1)}
		if p.store, err = NewProxy(f.o.StoreNetwork, f.o.StoreAddr); err != nil {
			return err
		}
		if p.front, err = NewProxy("tcp", l.Addr().String()); err != nil {
			return err
		}
		f.workers = append(f.workers, p)
		if err := p.start(); err != nil {
			return err
		}
	}
	return nil
}

// Close kills what runs.
func (f *Fleet) Close() {
	for _, p := range f.workers {
		p.kill()
		p.store.Close()
		p.front.Close()
	}
	if f.srv != nil {
		_ = f.srv.Close()
		f.Upstream.Close()
	}
	if f.Sink != nil {
		_ = f.Sink.Close()
	}
	if f.close != nil {
		f.close()
	}
	if f.direct != nil {
		f.direct.Close()
	}
}

func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	cmd := p.f.o.Command("worker", "--name", fmt.Sprintf("%s.%d", p.name, p.n), "--lease", p.f.o.Lease.String(),
		"--store", p.f.o.store(p.store), "--sink", p.f.o.Sink, "--via", p.front.Addr())
	cmd.Stdout, cmd.Stderr = p.f.o.Log, p.f.o.Log
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	return nil
}

func (p *process) signal(s os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(s)
	}
}

// kill ends it without a word, and waits until it is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	p.wait()
}

func (p *process) wait() {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done != nil {
		<-done
	}
}

// held are the streams that a worker's present incarnation has, and their fences, as the store says.
func (p *process) held(ctx context.Context) (map[string]uint64, error) {
	rows, err := p.f.Store.Get(ctx, p.f.Streams)
	if err != nil {
		return nil, err
	}
	name, held := fmt.Sprintf("%s.%d", p.name, p.n), map[string]uint64{}
	for _, r := range rows {
		if r.Owner.Worker == name {
			held[r.ID] = r.Fence
		}
	}
	return held, nil
}

// resumed waits until the upstream has each of held open under a higher fence, and says when the last was.
func (f *Fleet) resumed(ctx context.Context, held map[string]uint64) (last time.Time, err error) {
	for stream, fence := range held {
		for {
			at, ok := f.openedAbove(stream, fence)
			if ok {
				if at.After(last) {
					last = at
				}
				break
			}
			select {
			case <-ctx.Done():
				return last, fmt.Errorf("%s was not taken over: %w", stream, context.Cause(ctx))
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	return last, nil
}

func (f *Fleet) openedAbove(stream string, fence uint64) (time.Time, bool) {
	for _, e := range f.Upstream.Events(stream) {
		if e.What == "open" && e.Fence > fence {
			return e.At, true
		}
	}
	return time.Time{}, false
}
