package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// clients are the other ends: sockets of this process, each read by a goroutine that looks for one word.
type clients struct {
	kind, addr string
	peers      []net.Conn
	want       atomic.Int64
	done       chan struct{}
	ends       chan time.Time // when a connection ended
}

// hello is what each kind's client says first, and what it hears when it is in.
func hello(kind string) (protocol, say, hear string) {
	switch {
	case kind == "usher":
		return "v12.stomp", "CONNECT\naccept-version:1.2\nhost:x\n\n\x00SUBSCRIBE\nid:s\ndestination:/topic/stats/premiere\n\n\x00", "MESSAGE"
	case strings.HasPrefix(kind, "centrifuge"):
		return "", `{"id":1,"connect":{}}`, `"connect"`
	}
	return "", "", "101"
}

func connect(kind, addr string, n int) (*clients, error) {
	c := &clients{kind: kind, addr: addr, done: make(chan struct{}, 1), ends: make(chan time.Time, n)}
	c.peers = make([]net.Conn, n)
	errs := make(chan error, n)
	gate := make(chan struct{}, 64)
	var wg sync.WaitGroup
	for i := range n {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			var err error
			if c.peers[i], err = c.dial(); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		c.close()
		return nil, err
	default:
	}
	for _, p := range c.peers {
		go c.read(p)
	}
	return c, nil
}

// dial connects by hand: what a library would add is no concern of the server's.
func (c *clients) dial() (net.Conn, error) {
	protocol, say, hear := hello(c.kind)
	return c.open(protocol, say, hear)
}

// dialAs connects to a house as the waiter of a number, subscribed to what a page is.
func (c *clients) dialAs(n int) (net.Conn, error) {
	say := fmt.Sprintf("CONNECT\naccept-version:1.2\nhost:x\nticket:%d\n\n\x00", n)
	nc, err := c.open("v12.stomp", say, "CONNECTED")
	if err != nil {
		return nil, err
	}
	name := nc.(*greeted).ticket
	say = ""
	for _, topic := range []string{"admission/" + name, "timeout/" + name, "rank/" + name, "stats/premiere"} {
		say += "SUBSCRIBE\nid:" + topic[:1] + "\ndestination:/topic/" + topic + "\n\n\x00"
	}
	return nc, c.say(nc, say)
}

// greeted is a connection whose CONNECTED named a ticket.
type greeted struct {
	net.Conn
	ticket string
}

// say writes one masked text frame.
func (c *clients) say(nc net.Conn, text string) error {
	frame := []byte{0x81, 0x80 | 126, byte(len(text) >> 8), byte(len(text)), 0, 0, 0, 0}
	if len(text) < 126 {
		frame = []byte{0x81, 0x80 | byte(len(text)), 0, 0, 0, 0}
	}
	_, err := nc.Write(append(frame, text...))
	return err
}

func (c *clients) open(protocol, say, hear string) (net.Conn, error) {
	nc, err := net.DialTimeout("tcp", c.addr, 20*time.Second)
	if err != nil {
		return nil, err
	}
	head := "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	if protocol != "" {
		head += "Sec-WebSocket-Protocol: " + protocol + "\r\n"
	}
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := nc.Write([]byte(head + "\r\n")); err != nil {
		return nil, err
	}
	var seen []byte
	b := make([]byte, 1024)
	await := func(word string) error {
		for !bytes.Contains(seen, []byte(word)) {
			n, err := nc.Read(b)
			if err != nil {
				return fmt.Errorf("before %q: %w (%q)", word, err, seen)
			}
			seen = append(seen, b[:n]...)
		}
		return nil
	}
	if err := await("\r\n\r\n"); err != nil {
		return nil, err
	}
	if say != "" {
		if err := c.say(nc, say); err != nil {
			return nil, err
		}
		if err := await(hear); err != nil {
			return nil, err
		}
	}
	if hear == "CONNECTED" {
		if err := await("\n\n\x00"); err != nil {
			return nil, err
		}
		_, name, _ := bytes.Cut(seen, []byte("ticket-id:"))
		name, _, _ = bytes.Cut(name, []byte("\n"))
		nc = &greeted{nc, string(name)}
	}
	return nc, nc.SetDeadline(time.Time{})
}

func (c *clients) read(nc net.Conn) {
	b := make([]byte, 512)
	for {
		n, err := nc.Read(b)
		if err != nil {
			c.ends <- time.Now()
			_ = nc.Close()
			return
		}
		if bytes.Contains(b[:n], []byte("round")) && c.want.Add(-1) == 0 {
			c.done <- struct{}{}
		}
	}
}

func (c *clients) expect() { c.want.Store(int64(len(c.peers))) }

func (c *clients) wait(d time.Duration) error {
	select {
	case <-c.done:
		return nil
	case <-time.After(d):
		return fmt.Errorf("%d frames did not arrive", c.want.Load())
	}
}

func (c *clients) close() {
	for _, p := range c.peers {
		if p != nil {
			_ = p.Close()
		}
	}
}

// leave drains a server of usher's, then cuts another and has everybody come back within the window.
func leave(n, rate int) error {
	srv, err := start("usher")
	if err != nil {
		return err
	}
	defer srv.stop()
	cl, err := connect("usher", srv.addr, n)
	if err != nil {
		return err
	}
	at := time.Now()
	if _, err := srv.ask(fmt.Sprint("drain ", rate)); err != nil {
		return err
	}
	took := ended(cl, n, at)
	fmt.Printf("drain: %d connections, set %d/s, seen %.0f/s\n", n, rate, float64(n)/took.Seconds())

	srv2, err := start("usher")
	if err != nil {
		return err
	}
	defer srv2.stop()
	if cl, err = connect("usher", srv2.addr, n); err != nil {
		return err
	}
	window := min(max(time.Duration(n)*time.Second/2000, 2*time.Second), 2*time.Minute) // as CONNECTED said
	if _, err := srv2.ask("cut"); err != nil {
		return err
	}
	ended(cl, n, time.Now())
	back := make([]atomic.Int64, 10)
	var late, failed atomic.Int64
	start := time.Now()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			time.Sleep(rand.N(window))
			nc, err := cl.dial()
			if err != nil {
				failed.Add(1)
				return
			}
			if i := int(10 * time.Since(start) / window); i < len(back) {
				back[i].Add(1)
			} else {
				late.Add(1)
			}
			time.AfterFunc(time.Second, func() { nc.Close() })
		})
	}
	wg.Wait()
	fmt.Printf("storm: %d cut at once, window %v; back in each tenth of it:", n, window)
	for i := range back {
		fmt.Printf(" %d", back[i].Load())
	}
	fmt.Printf("; after it %d, not at all %d\n", late.Load(), failed.Load())
	return nil
}

// ended waits until n connections have ended and returns how long that took.
func ended(c *clients, n int, since time.Time) time.Duration {
	var last time.Time
	for range n {
		if at := <-c.ends; at.After(last) {
			last = at
		}
	}
	return last.Sub(since)
}
