package redis_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"
)

// proxy stands between a client and Redis. It listens as long as the test runs.
type proxy struct {
	l      net.Listener
	target atomic.Value // string
	cut    atomic.Bool  // no connection gets through
	lose   atomic.Int64 // one reply in so many is lost, with its connection; 0: none
	lost   atomic.Int64

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
}

func startProxy(t testing.TB, target string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, conns: map[net.Conn]struct{}{}}
	p.target.Store(target)
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.cutAll()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(c) })
	}
}

func (p *proxy) serve(c net.Conn) {
	defer c.Close()
	if p.cut.Load() {
		return
	}
	up, err := net.Dial("tcp", p.target.Load().(string))
	if err != nil {
		return
	}
	defer up.Close()
	p.mu.Lock()
	p.conns[c], p.conns[up] = struct{}{}, struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, c)
		delete(p.conns, up)
		p.mu.Unlock()
	}()
	p.wg.Go(func() {
		_, _ = io.Copy(up, c)
		up.Close()
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := up.Read(buf)
		if err != nil {
			return
		}
		if lose := p.lose.Load(); lose > 0 && rand.Int64N(lose) == 0 {
			p.lost.Add(1)
			return
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) cutAll() {
	p.cut.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

func (p *proxy) client(t testing.TB) rueidis.Client {
	t.Helper()
	c, err := rueidis.NewClient(plainOption(p.l.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func background() context.Context { return context.Background() }
