package transcribe

import (
	"io"
	"net"
	"sync"
)

// Proxy forwards connections to one address, and can be frozen: nothing goes through, and nobody is told, as in a
// partition. What was held up goes on when it thaws. Safe for concurrent use.
type Proxy struct {
	l       net.Listener
	network string
	to      string

	mu    sync.Mutex
	open  chan struct{} // closed: not frozen
	conns map[net.Conn]struct{}
	done  bool
}

// NewProxy listens on a free loopback port.
func NewProxy(network, to string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{l: l, network: network, to: to, open: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	close(p.open)
	go p.accept()
	return p, nil
}

// Addr is where it listens.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// Freeze holds everything up.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		p.open = make(chan struct{})
	default:
	}
}

// Thaw lets what was held up go on; cut: it is lost instead, with its connections.
func (p *Proxy) Thaw(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cut {
		p.cut()
	}
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

// Close ends it and cuts all connections.
func (p *Proxy) Close() {
	_ = p.l.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = true
	p.cut()
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

func (p *Proxy) cut() {
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		go p.serve(c)
	}
}

func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		_ = c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = c.Close()
	delete(p.conns, c)
}

func (p *Proxy) gate() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

func (p *Proxy) serve(c net.Conn) {
	if !p.keep(c) {
		return
	}
	defer p.drop(c)
	<-p.gate()
	up, err := net.Dial(p.network, p.to)
	if err != nil || !p.keep(up) {
		return
	}
	defer p.drop(up)
	go p.pump(up, c)
	p.pump(c, up)
}

func (p *Proxy) pump(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			<-p.gate()
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if err == io.EOF {
				<-p.gate()
			}
			return
		}
	}
}
