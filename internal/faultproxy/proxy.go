package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Fault is what happens to a request.
type Fault int

const (
	// Pass forwards, after Rule.Delay.
	Pass Fault = iota
	// Throttle answers as the service does beyond its throughput; nothing is done.
	Throttle
	// Fail answers 500 as the service does when it fails; nothing is done.
	Fail
	// Drop closes the connection before the request was done.
	Drop
	// LoseReply closes the connection after it was done.
	LoseReply
	// Hang does not answer, and does nothing, until the client goes or the rule is removed.
	Hang
)

// Rule says which requests are hurt. The first rule that fits counts.
type Rule struct {
	Op    string  // as UpdateItem; "": all
	Match string  // the body contains it; "": all
	Prob  float64 // of those that fit; 0: all
	Times int     // at most; 0: no bound
	Fault Fault
	Delay time.Duration // before anything else; a random part of it when Prob is set
	// Handle, when set, does all: forward sends a body to the emulator and returns what it answers. For faults that
	// need to know the operation, as records that fail one by one.
	Handle func(op string, body []byte, forward func(body []byte) (status int, answer []byte)) (status int, answer []byte)

	done chan struct{}
	used int
}

// Proxy is an endpoint for AWS clients. Safe for concurrent use.
type Proxy struct {
	URL    string
	server *http.Server
	client *http.Client
	ctx    context.Context
	stop   context.CancelFunc
	index  *index

	mu       sync.Mutex
	target   string
	rules    []*Rule
	requests map[string]int // by operation
	done     map[string]int // those that reached the emulator
	hurt     map[Fault]int
}

// New serves on a free loopback port in front of an emulator.
func New(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		URL: "http://" + l.Addr().String(), target: target,
		client:   &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}},
		requests: map[string]int{}, done: map[string]int{}, hurt: map[Fault]int{},
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.index = newIndex(p)
	p.server = &http.Server{Handler: p}
	go func() { _ = p.server.Serve(l) }()
	return p, nil
}

// Close ends it, and every request that hangs.
func (p *Proxy) Close() error {
	p.stop()
	err := p.server.Close()
	p.index.wait()
	p.client.CloseIdleConnections()
	return err
}

// Target says where the emulator is now, after it was ended and started again.
func (p *Proxy) Target(url string) { p.mu.Lock(); p.target = url; p.mu.Unlock() }

func (p *Proxy) goal() string { p.mu.Lock(); defer p.mu.Unlock(); return p.target }

// Add puts a rule behind those there are. remove takes it away and frees those that hang by it.
func (p *Proxy) Add(r Rule) (remove func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.done = make(chan struct{})
	p.rules = append(p.rules, &r)
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := range p.rules {
			if p.rules[i] == &r {
				p.rules = append(p.rules[:i:i], p.rules[i+1:]...)
				break
			}
		}
		close(r.done)
	})
}

// Requests is how many there were by operation, hurt or not.
func (p *Proxy) Requests() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.requests)
}

// Done is how many of them reached the emulator.
func (p *Proxy) Done() map[string]int { p.mu.Lock(); defer p.mu.Unlock(); return maps.Clone(p.done) }

// Hurt is how often each fault happened.
func (p *Proxy) Hurt() map[Fault]int { p.mu.Lock(); defer p.mu.Unlock(); return maps.Clone(p.hurt) }

// pick finds the rule for a request.
func (p *Proxy) pick(op string, body []byte) *Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests[op]++
	for _, r := range p.rules {
		if r.Op != "" && r.Op != op || r.Match != "" && !bytes.Contains(body, []byte(r.Match)) || r.Times > 0 && r.used >= r.Times {
			continue
		}
		if r.Prob > 0 && rand.Float64() >= r.Prob {
			continue
		}
		r.used++
		p.hurt[r.Fault]++
		return r
	}
	return nil
}

func (p *Proxy) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	service, op, _ := strings.Cut(req.Header.Get("X-Amz-Target"), ".")
	rule := p.pick(op, body)
	if rule == nil {
		rule = &Rule{}
	}
	if !p.pause(req, rule) {
		panic(http.ErrAbortHandler)
	}
	switch {
	case rule.Handle != nil:
		status, answer := rule.Handle(op, body, func(b []byte) (int, []byte) {
			resp, answer, err := p.forward(req, op, b)
			if err != nil {
				return http.StatusBadGateway, []byte(err.Error())
			}
			return resp.StatusCode, answer
		})
		w.Header().Set("Content-Type", req.Header.Get("Content-Type"))
		w.WriteHeader(status)
		_, _ = w.Write(answer)
		return
	case rule.Fault == Throttle, rule.Fault == Fail:
		refuse(w, req, service, op, rule.Fault)
		return
	case rule.Fault == Drop:
		panic(http.ErrAbortHandler) // which closes the connection
	case rule.Fault == Hang:
		select {
		case <-rule.done:
		case <-req.Context().Done():
		case <-p.ctx.Done():
		}
		panic(http.ErrAbortHandler)
	}
	resp, answer, err := p.forward(req, op, body)
	if err != nil || rule.Fault == LoseReply {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(answer)
}

// pause waits for the rule's delay.
func (p *Proxy) pause(req *http.Request, r *Rule) bool {
	if r.Delay <= 0 {
		return true
	}
	d := r.Delay
	if r.Prob > 0 {
		d = rand.N(d) + 1
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-req.Context().Done():
		return false
	case <-p.ctx.Done():
		return false
	}
}

// forward does the request whether or not the client still waits for it: a request that has left does not come back.
func (p *Proxy) forward(req *http.Request, op string, body []byte) (*http.Response, []byte, error) {
	body = p.index.redirect(op, body)
	out, err := http.NewRequestWithContext(p.ctx, req.Method, p.goal()+req.URL.Path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	for k, v := range req.Header {
		if k != "Connection" && k != "Content-Length" && k != "Accept-Encoding" {
			out.Header[k] = v
		}
	}
	resp, err := p.client.Do(out)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	p.done[op]++
	p.mu.Unlock()
	p.index.wrote(req, op, body, resp.StatusCode)
	return resp, answer, nil
}

var errAnswer = errors.New("faultproxy: the emulator refused")

// call asks the emulator on the proxy's own behalf, with the header of a client's request.
func (p *Proxy) call(header http.Header, op string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(p.ctx, http.MethodPost, p.goal()+"/", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for _, k := range []string{"Authorization", "X-Amz-Date", "Content-Type"} {
		req.Header.Set(k, header.Get(k))
	}
	req.Header.Set("X-Amz-Target", "DynamoDB_20120810."+op)
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%w %s: %s", errAnswer, op, answer)
	}
	return answer, err
}
