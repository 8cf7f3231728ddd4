package browsertest

import (
	"net"
	"strings"
	"sync"
	"testing"
)

// proxy stands between the browser and usher and misbehaves when told to.
type proxy struct {
	addr, to string
	mu       sync.Mutex
	paths    []string // requests that do not get through
	silent   bool     // they are not refused, they just hear nothing; and so do those that are open
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

// bad says whether a request must not get through.
func (p *proxy) bad(head string) (bad, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
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
	for {
		n, err := c.Read(buf)
		if err != nil {
			break
		}
		if line, _, ok := strings.Cut(string(buf[:n]), " HTTP/1.1\r\n"); ok {
			first = line
		}
		if bad, silent := p.bad(first); bad {
			if !silent {
				break
			}
			continue // swallowed
		}
		if up == nil {
			if up, err = net.Dial("tcp", p.to); err != nil {
				break
			}
			go func() {
				b := make([]byte, 32<<10)
				for {
					n, err := up.Read(b)
					if err != nil {
						break
					}
					if _, silent := p.bad(first); silent {
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
