package chaos

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// balancer is a TCP load balancer as a site has in front of usher: it asks each node's /health/ready, sends new
// connections round robin to those that answer 200, and cuts those of a node that does not answer at all.
type balancer struct {
	l    net.Listener
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu    sync.Mutex
	nodes []*backend
	next  int
}

type backend struct {
	name, addr, health string
	ready              bool
	conns              map[net.Conn]struct{} // the client's sides
	stop               context.CancelFunc
}

const (
	checkEvery = 100 * time.Millisecond
	checkFor   = time.Second // a node that takes longer is down
)

func newBalancer() (*balancer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &balancer{l: l}
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.wg.Go(b.accept)
	return b, nil
}

// url is where clients find the balancer.
func (b *balancer) url() string { return "http://" + b.l.Addr().String() }

func (b *balancer) close() {
	b.stop()
	b.l.Close()
	b.mu.Lock()
	for _, n := range b.nodes {
		n.cut()
	}
	b.mu.Unlock()
	b.wg.Wait()
}

// set puts a node at addr (host:port) in, in place of one of that name; health is the URL that is asked.
func (b *balancer) set(name, addr, health string) {
	b.remove(name)
	ctx, stop := context.WithCancel(b.ctx)
	n := &backend{name: name, addr: addr, health: health, conns: map[net.Conn]struct{}{}, stop: stop}
	b.mu.Lock()
	b.nodes = append(b.nodes, n)
	b.mu.Unlock()
	b.wg.Go(func() { b.check(ctx, n) })
}

// remove takes a node out. Its connections go on to their ends.
func (b *balancer) remove(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, n := range b.nodes {
		if n.name == name {
			n.stop()
			b.nodes = append(b.nodes[:i:i], b.nodes[i+1:]...)
			return
		}
	}
}

// ready counts the nodes that take visitors.
func (b *balancer) ready() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, node := range b.nodes {
		if node.ready {
			n++
		}
	}
	return n
}

func (b *balancer) check(ctx context.Context, n *backend) {
	client := &http.Client{Timeout: checkFor, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		res, err := client.Get(n.health)
		if err == nil {
			res.Body.Close()
		}
		b.mu.Lock()
		n.ready = err == nil && res.StatusCode == http.StatusOK
		if err != nil && ctx.Err() == nil {
			n.cut()
		}
		b.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// cut closes what is open. It is called with the balancer's mu held.
func (n *backend) cut() {
	for c := range n.conns {
		c.Close()
	}
}

func (b *balancer) accept() {
	for {
		c, err := b.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of files for a moment
			time.Sleep(10 * time.Millisecond)
			continue
		}
		b.wg.Go(func() { b.serve(c) })
	}
}

// pick gives the ready nodes, beginning with the one whose turn it is.
func (b *balancer) pick() []*backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	var list []*backend
	for i := range b.nodes {
		if n := b.nodes[(b.next+i)%len(b.nodes)]; n.ready {
			list = append(list, n)
		}
	}
	return list
}

func (b *balancer) serve(c net.Conn) {
	defer c.Close()
	for _, n := range b.pick() {
		d := net.Dialer{Timeout: checkFor}
		up, err := d.DialContext(b.ctx, "tcp", n.addr)
		if err != nil {
			continue
		}
		b.mu.Lock()
		n.conns[c] = struct{}{}
		b.mu.Unlock()
		splice(c, up)
		b.mu.Lock()
		delete(n.conns, c)
		b.mu.Unlock()
		return
	}
}

// splice copies both ways until both are done, or one breaks.
func splice(a, b net.Conn) {
	var wg sync.WaitGroup
	one := func(to, from net.Conn) {
		_, err := io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from}) // not by splice: its pipes are files too
		if err != nil {
			a.Close()
			b.Close()
			return
		}
		if t, ok := to.(*net.TCPConn); ok {
			_ = t.CloseWrite()
		}
	}
	wg.Go(func() { one(a, b) })
	wg.Go(func() { one(b, a) })
	wg.Wait()
	b.Close()
}
