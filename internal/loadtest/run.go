package loadtest

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// step is one run of one size.
type step struct {
	cfg       *Config
	manners   manners
	t         *target
	transport Transport // nil: poll
	tally     *tally
	visitors  []visitor
	sched     *schedule
	work      chan *visitor
	done      chan struct{} // closed when nobody is left
	left      atomic.Int64
	workers   atomic.Int64
	streams   atomic.Int64
	conns     int // most workers, each with one connection
	wg        sync.WaitGroup
}

const sampled = 12 // visitors whose places are charted

func newStep(cfg *Config, t *target, n, index int) *step {
	s := &step{cfg: cfg, t: t, tally: newTally(), work: make(chan *visitor), done: make(chan struct{})}
	s.manners = manners{poll: cfg.Poll, visit: cfg.Proxy != "", think: cfg.Think, patience: cfg.Patience}
	switch cfg.Transport {
	case "sse":
		s.transport = &sse{t, cfg.Room}
	case "ws":
		s.transport = &websocket{t, cfg.Room}
	}
	s.conns = cfg.Connections
	if s.conns == 0 {
		s.conns = min(n, 4000)
	}
	s.conns = min(s.conns, max(openFiles()-500, 16))
	rng := mrand.New(mrand.NewPCG(cfg.Seed, uint64(index)))
	s.visitors = make([]visitor, n)
	every := max(n/sampled, 1)
	for i := range s.visitors {
		v := &s.visitors[i]
		v.index = int32(i)
		v.sample = i%every == every/2
		// Open loop: when a visitor comes depends on no answer.
		v.arriveAt = s.tally.start.Add(time.Duration((float64(i) + rng.Float64()) / float64(n) * float64(cfg.Ramp)))
		v.due = v.arriveAt
		v.stay = time.Duration(float64(cfg.Stay) * (0.75 + rng.Float64()/2))
		within := max(cfg.Ramp, 10*time.Second)
		if rng.Float64() < cfg.Abandon {
			v.vanish = time.Duration(rng.Float64()*float64(within)) + 1
		}
		if rng.Float64() < cfg.Refresh {
			v.refresh = time.Duration(rng.Float64()*float64(within)) + 1
		}
	}
	s.sched = newSchedule(s.visitors)
	s.left.Store(int64(n))
	return s
}

// run makes the load until everybody is gone or ctx ends.
func (s *step) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		v := s.sched.next(ctx)
		if v == nil {
			break
		}
		if v.op == opVanish {
			s.gone(v, vanished)
			continue
		}
		select {
		case s.work <- v:
			continue
		default:
		}
		if int(s.workers.Load()) < s.conns {
			s.workers.Add(1)
			s.wg.Add(1)
			go s.worker(ctx, v)
			continue
		}
		select {
		case s.work <- v:
		case <-ctx.Done():
		}
	}
	s.t.interrupt()
	s.wg.Wait()
	s.t.revive()
}

// worker is one connection, shared by whoever is due.
func (s *step) worker(ctx context.Context, v *visitor) {
	defer s.wg.Done()
	c := s.t.conn()
	defer c.close()
	rng := mrand.New(mrand.NewPCG(mrand.Uint64(), mrand.Uint64()))
	for {
		s.serve(ctx, c, v, rng)
		select {
		case v = <-s.work:
		case <-ctx.Done():
			return
		}
	}
}

func (s *step) serve(ctx context.Context, c *conn, v *visitor, rng *mrand.Rand) {
	o, intended := v.op, v.due
	if o == opEnter && v.requestID == "" {
		v.requestID = newRequestID()
		s.tally.arrived()
	}
	r := s.request(v)
	sent := time.Now()
	if sent.Before(intended) { // see early
		intended = sent
	}
	resp, err := c.do(&r)
	now := time.Now()
	if ctx.Err() != nil && err != nil {
		return // the interruption's own doing
	}
	n := v.exchanged(resp, err, sent, now, &s.manners, rng)
	reason := ""
	if n.fault == perhapsLost {
		reason = decodeProblem(resp.body).Reason
	}
	s.tally.exchange(v, o, intended, sent, now, err == nil && resp.status < 500, &n, reason)
	s.settle(ctx, v, &n)
}

// settle sends a visitor on her way after something happened to her.
func (s *step) settle(ctx context.Context, v *visitor, n *news) {
	switch {
	case n.ended != stillThere:
		s.finish()
	case s.transport != nil && v.phase == waiting && v.attempts == 0:
		s.streams.Add(1)
		s.wg.Add(1)
		go s.follow(ctx, v)
	default:
		s.sched.put(v)
	}
}

func (s *step) gone(v *visitor, e ending) {
	v.phase = gone
	s.tally.mu.Lock()
	s.tally.end(v, e)
	s.tally.mu.Unlock()
	s.finish()
}

func (s *step) finish() {
	if s.left.Add(-1) == 0 {
		close(s.done)
	}
}

// follow waits for news by the transport. It owns the visitor meanwhile.
func (s *step) follow(ctx context.Context, v *visitor) {
	defer s.wg.Done()
	defer s.streams.Add(-1)
	until, stop := ctx, context.CancelFunc(func() {})
	var next op
	var at time.Time
	for o, t := range map[op]time.Time{opVanish: v.vanishAt, opRefresh: v.refreshAt} {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			next, at = o, t
		}
	}
	if !at.IsZero() {
		until, stop = context.WithDeadline(ctx, at)
	}
	defer stop()
	var n news
	err := s.transport.Follow(until, v.secret, s.from(v), func(u Update) bool {
		n = news{}
		now := time.Now()
		reason := ""
		switch u.Type {
		case "rank", "admission":
			a := answer{TicketID: v.ticketID, Seq: &v.seq, Pos: &v.pos, Place: u.Place, At: u.At, Admission: u.Admission, State: "waiting"}
			if u.Type == "admission" {
				a.State = "admitted"
			}
			v.learn(&a, now, &s.manners, &n)
		case "timeout":
			v.phase, n.ended, n.fault, reason = gone, ended, perhapsLost, plain(u.Reason)
			n.detail = fmt.Sprintf("ticket %s, pos %d: ended on the stream: %s", v.ticketID, v.pos, reason)
		}
		s.tally.heard(v, now, &n, reason)
		return v.phase == waiting
	})
	now := time.Now()
	switch {
	case n.ended != stillThere:
		s.finish()
	case v.phase == inside:
		v.plan(now, &s.manners)
		s.sched.put(v)
	case ctx.Err() != nil:
	case until.Err() != nil: // it is time to vanish, or to refresh
		v.op, v.due = next, at
		s.sched.put(v)
	default:
		// Cut off: ask for the status after a random while, and then follow again.
		wait := time.Second
		var again *errReconnect
		if errors.As(err, &again) {
			wait = min(again.after, time.Minute)
		} else {
			s.tally.mu.Lock()
			s.tally.fail("events: " + streamErrorKind(err))
			s.tally.mu.Unlock()
		}
		v.op, v.due = opStatus, now.Add(wait/2+mrand.N(wait+1))
		s.sched.put(v)
	}
}

func streamErrorKind(err error) string {
	var f *followError
	if errors.As(err, &f) {
		return f.Error()
	}
	if err == nil {
		return "connection closed"
	}
	return errorKind(response{}, err)
}

func (s *step) request(v *visitor) request {
	room := s.t.base + "/v1/rooms/" + url.PathEscape(s.cfg.Room)
	r := request{method: "POST", ticket: v.secret, from: s.from(v)}
	switch v.op {
	case opEnter, opRefresh:
		r.path = room + "/enter"
		r.body = []byte(`{"request_id":"` + v.requestID + `"}`)
	case opStatus:
		r.method, r.path = "GET", room+"/status"
	case opPresence:
		r.path = room + "/presence"
	case opRenew:
		r.path = room + "/renew"
	case opVisit:
		r.method, r.path, r.accept = "GET", s.t.origin+s.cfg.Proxy, "*/*"
	case opLeave:
		r.path = room + "/leave"
	}
	return r
}

// from is an address out of 198.18.0.0/15, the network set aside for benchmarks.
func (s *step) from(v *visitor) string {
	if !s.cfg.Forwarded {
		return ""
	}
	i := v.index & 0x1ffff
	return fmt.Sprintf("198.%d.%d.%d", 18+i>>16, i>>8&255, i&255)
}

// newRequestID is never drawn from the seed: it is a secret, and a second run with the same seed is a new crowd.
func newRequestID() string {
	var b [18]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// tidy takes those who still hold a ticket out of the room, so that the next step and the next user find it free.
func (s *step) tidy(ctx context.Context) {
	work := make(chan *visitor)
	var wg sync.WaitGroup
	for range min(256, s.conns) {
		wg.Go(func() {
			c := s.t.conn()
			defer c.close()
			for v := range work {
				v.op = opLeave
				r := s.request(v)
				c.do(&r) // best effort: the room's grace and idle do the rest
			}
		})
	}
	for i := len(s.visitors) - 1; i >= 0; i-- { // the last first: who leaves from inside lets the next one in
		v := &s.visitors[i]
		if v.secret == "" || v.op == opLeave && v.phase == gone {
			continue
		}
		select {
		case work <- v:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil {
		s.t.interrupt()
		defer s.t.revive()
	}
	close(work)
	wg.Wait()
}
