package browsertest

import (
	"net"
	"strings"
	"sync"
	"testing"
)

// proxy stands between the browser and usher and misbehaves when told to.
type proxy struct {
	addr   string
	mu     sync.Mutex
	to     string
	paths  []string // requests that do not get through
	silent bool     // they are not refused, they just hear nothing; and so do those that are open
	stalls int      // connections from before the last stall hear nothing more; new ones are well
}

func between(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := &proxy{addr: l.Addr().String(), to: to}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return p
}

func (p *proxy) set(paths string, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paths, p.silent = strings.Fields(paths), silent
}

// stall makes what is open dead without a sign, as a phone's sockets are after it slept.
func (p *proxy) stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalls++
}

func (p *proxy) lead(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
}

func (p *proxy) now() (to string, stalls int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.to, p.stalls
}

// bad says whether a request, of a connection that began after some stalls, must not get through.
func (p *proxy) bad(head string, began int) (bad, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if began < p.stalls {
		return true, true
	}
	for _, path := range p.paths {
		if strings.Contains(head, path) {
			return true, p.silent
		}
	}
	return false, false
}

func (p *proxy) serve(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 32<<10)
	var up net.Conn
	first := ""
	to, began := p.now()
	for {
		n, err := c.Read(buf)
		if err != nil {
			break
		}
		if line, _, ok := strings.Cut(string(buf[:n]), " HTTP/1.1\r\n"); ok {
			first = line
		}
		if bad, silent := p.bad(first, began); bad {
			if !silent {
				break
			}
			continue // swallowed
		}
		if up == nil {
			if up, err = net.Dial("tcp", to); err != nil {
				break
			}
			go func() {
				b := make([]byte, 32<<10)
				for {
					n, err := up.Read(b)
					if err != nil {
						break
					}
					if _, silent := p.bad(first, began); silent {
						continue
					}
					if _, err := c.Write(b[:n]); err != nil {
						break
					}
				}
				c.Close()
			}()
		}
		if _, err := up.Write(buf[:n]); err != nil {
			break
		}
	}
	if up != nil {
		_ = up.Close()
	}
}
