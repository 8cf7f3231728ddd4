package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ushergo/usher/affinity"
)

// Health says how an instance's death is noticed.
type Health struct {
	Path      string        // of the probe; default /health/live. It must not wait for sessions or locks
	Every     time.Duration // between two probes; default 1s
	Timeout   time.Duration // of a probe; default 1s
	FailAfter time.Duration // without an answer it is dead; default 5s. A refused connection needs no wait
}

func (h *Health) defaults() {
	if h.Path == "" {
		h.Path = "/health/live"
	}
	if h.Every <= 0 {
		h.Every = time.Second
	}
	if h.Timeout <= 0 {
		h.Timeout = time.Second
	}
	if h.FailAfter <= 0 {
		h.FailAfter = 5 * time.Second
	}
}

var (
	errDied    = errors.New("gateway: the instance that had the session died")
	errAnother = errors.New("gateway: another instance answers at this address")
	errStatus  = errors.New("gateway: the probe's answer is an error")
)

// pulse is what is known of one start of an instance at one address. Static instances have epoch 0.
type pulse struct {
	owner affinity.Identity
	addr  string

	mu      sync.Mutex
	known   bool
	down    bool
	failing time.Time // since when; zero: it answers
	asked   time.Time // last use by somebody
	cut     context.Context
	cutNow  context.CancelCauseFunc
	probing sync.Mutex
}

type pulseID struct {
	owner affinity.Identity
	addr  string
}

func (g *Gateway) pulse(owner affinity.Identity, addr string) *pulse {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := pulseID{owner, addr}
	p := g.pulses[id]
	if p == nil {
		p = &pulse{owner: owner, addr: addr}
		p.cut, p.cutNow = context.WithCancelCause(context.Background())
		g.pulses[id] = p
	}
	p.mu.Lock()
	p.asked = time.Now()
	p.mu.Unlock()
	return p
}

// alive says whether requests may be sent there. What is not known yet is asked first.
func (g *Gateway) alive(ctx context.Context, p *pulse) bool {
	p.mu.Lock()
	known, down := p.known, p.down
	p.mu.Unlock()
	if !known {
		g.probe(ctx, p)
		p.mu.Lock()
		down = p.down
		p.mu.Unlock()
	}
	return !down
}

// suspect is called after a request failed. A refused connection is asked for once more, and is then believed.
func (g *Gateway) suspect(ctx context.Context, p *pulse) { g.probe(ctx, p) }

// ended is done when the instance is found dead; its cause is errDied.
func (p *pulse) ended() context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

func (g *Gateway) probe(ctx context.Context, p *pulse) {
	p.probing.Lock() // one at a time: many who suspect ask once
	defer p.probing.Unlock()
	err := g.askPulse(context.WithoutCancel(ctx), p)
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.down
	now := time.Now()
	p.known = true
	switch {
	case err == nil:
		p.failing = time.Time{}
		if p.down {
			p.down = false
			p.cut, p.cutNow = context.WithCancelCause(context.Background())
		}
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, errAnother):
		p.down = true
	default:
		if p.failing.IsZero() {
			p.failing = now
		}
		p.down = p.down || now.Sub(p.failing) >= g.opts.Health.FailAfter
		g.log.Debug("a probe was not answered", "instance", p.owner.Instance, "addr", p.addr, "for", now.Sub(p.failing), "err", err)
	}
	if p.down && !was {
		g.log.Warn("an instance is dead; its clients are cut off", "instance", p.owner.Instance, "addr", p.addr, "err", err)
		p.cutNow(errDied)
	} else if was && !p.down {
		g.log.Info("an instance answers again", "instance", p.owner.Instance, "addr", p.addr)
	}
}

func (g *Gateway) askPulse(ctx context.Context, p *pulse) error {
	ctx, cancel := context.WithTimeout(ctx, g.opts.Health.Timeout)
	defer cancel()
	u, err := target(p.addr)
	if err != nil {
		return err
	}
	u.Path = g.opts.Health.Path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	res, err := g.prober.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10)
	if who := res.Header.Get(HeaderInstance); who != "" {
		id, epoch, _ := strings.Cut(who, " ")
		n, _ := strconv.ParseUint(epoch, 10, 64)
		if id != p.owner.Instance || p.owner.Epoch != 0 && n != 0 && n != p.owner.Epoch {
			return errAnother
		}
	}
	if res.StatusCode >= 500 {
		return errStatus
	}
	return nil
}

func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// probeLoop asks all that are in use.
func (g *Gateway) probeLoop() {
	tick := time.NewTicker(g.opts.Health.Every)
	defer tick.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-tick.C:
		}
		g.mu.Lock()
		var all []*pulse
		for id, p := range g.pulses {
			p.mu.Lock()
			idle := time.Since(p.asked) > time.Minute && !g.inUse(p)
			p.mu.Unlock()
			if idle {
				delete(g.pulses, id)
				continue
			}
			all = append(all, p)
		}
		g.mu.Unlock()
		for _, p := range all {
			if p.probing.TryLock() { // the last one still waits: no second beside it
				p.probing.Unlock()
				g.wg.Go(func() { g.probe(g.ctx, p) })
			}
		}
	}
}

// inUse says whether requests hang on it. Called with mu held.
func (g *Gateway) inUse(p *pulse) bool { return g.running[p] > 0 }
