package keeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gobwas/ws"

	"github.com/ushergo/usher/egress"
	"github.com/ushergo/usher/lease"
)

// State of a held connection.
type State string

const (
	Connecting State = "connecting"
	Open       State = "open"
	Pausing    State = "pausing" // until the next attempt
	Invalid    State = "invalid" // its row cannot be read
	Closing    State = "closing" // what was read is being stored
)

// conn is one connection while this worker holds it, under one fence.
type conn struct {
	k     *Keeper
	res   lease.Resource
	spec  Spec
	path  []string
	queue *queue

	last   int64    // number of the last message read; for the receive loop
	carry  *Message // read when the socket ended, of an upstream that cannot send it again
	stored atomic.Int64

	received, duplicates, skipped, opened atomic.Int64

	mu    sync.Mutex
	state State
	since time.Time
	err   error // why it is not open, or was not
	rate  float64
	at    int64 // messages at the last look, for the rate
}

// Hold holds a connection until ctx ends; it is the function that lease.Run takes. It returns after the socket is closed and
// what was read is stored, or after Drain.
func (k *Keeper) Hold(ctx context.Context, r lease.Resource) error {
	c := &conn{k: k, res: r, since: time.Now()}
	defer k.enter(c)()
	if err := c.init(); err != nil {
		c.set(Invalid, err)
		k.o.Logger.Error("a connection's row cannot be used; PUT it again", "connection", r.ID, "err", err)
		<-ctx.Done() // a change of the row ends it, too
		return context.Cause(ctx)
	}
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	q := newQueue(r.ID, r.Fence, k.laneOf(r.ID))
	q.moved = func(seq int64) {
		c.stored.Store(seq)
		r.SetCursor(formatSeq(seq))
	}
	q.lost = func(err error) { lose(fmt.Errorf("%w: %w", lease.ErrLost, err)) }
	c.mu.Lock()
	c.queue = q
	c.mu.Unlock()
	q.present()
	defer q.end()

	c.attempts(ctx)
	c.set(Closing, nil)
	cause := context.Cause(ctx)
	if !errors.Is(cause, lease.ErrLost) && !q.drained(k.o.Drain) {
		k.o.Logger.Warn("a connection ended before all it had read was stored; the next owner asks for it again", "connection", r.ID, "fence", r.Fence)
	}
	return cause
}

func (c *conn) init() (err error) {
	if c.spec, err = SpecOf(c.res.URL, lease.Started, c.res.Spec); err != nil {
		return err
	}
	if err := c.spec.Check(); err != nil {
		return err
	}
	if c.spec.Cursor.JSON != "" {
		c.path = strings.Split(c.spec.Cursor.JSON, ".")
	}
	if c.last, err = parseSeq(c.res.Cursor); err != nil {
		return fmt.Errorf("the row's cursor %q is no whole number; DELETE the connection and PUT it with cursor.start", c.res.Cursor)
	}
	c.stored.Store(c.last)
	return nil
}

// attempts connects again and again until ctx ends.
func (c *conn) attempts(ctx context.Context) {
	o := &c.k.o
	pause := backoff{first: o.Reconnect, most: o.MaxReconnect}
	for ctx.Err() == nil {
		c.set(Connecting, nil)
		got := c.received.Load()
		err := c.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		if c.received.Load() > got {
			pause.reset()
		}
		wait := c.wait(err, &pause)
		c.set(Pausing, err)
		c.k.stats.losses.Add(1)
		o.Logger.Info("a connection is made again after a pause", "connection", c.res.ID, "fence", c.res.Fence, "after", wait.Round(time.Millisecond), "err", err)
		sleep(ctx, wait)
	}
}

// wait is how long to pause after err.
func (c *conn) wait(err error, pause *backoff) time.Duration {
	var status *statusError
	if egress.Refused(err) || errors.As(err, &status) && status.lasting() {
		pause.n = 62
	}
	d := pause.next()
	if status != nil && status.retry > 0 { // all that were refused together must not come together
		d = max(d, status.retry+time.Duration(rand.Int64N(int64(status.retry)/4+1)))
	}
	return d
}

// attempt makes one connection and receives until it ends.
func (c *conn) attempt(ctx context.Context) error {
	k := c.k
	select {
	case k.dials <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// What was read and is not stored yet comes first: it is resumed from behind it, and numbers go on.
	sock, err := k.dialing().dial(ctx, &c.spec, place{c.res.ID, c.last, c.res.Fence})
	<-k.dials
	k.stats.dialed(err)
	if err != nil {
		return c.hide(err)
	}
	c.opened.Add(1)
	c.set(Open, nil)
	return c.session(ctx, sock)
}

// hide keeps the query and headers, which may hold secrets, out of errors.
func (c *conn) hide(err error) error {
	if text := err.Error(); strings.Contains(text, "?") {
		return fmt.Errorf("%s cannot be dialled", bare(c.spec.URL))
	}
	return err
}

// session is the life of one socket: three loops, and the first to end ends the others.
func (c *conn) session(ctx context.Context, sock *socket) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var loops sync.WaitGroup
	loops.Go(func() { end(c.receive(ctx, sock)) })
	loops.Go(func() { end(c.beat(ctx, sock)) })
	<-ctx.Done() // the lease's or the desired state's end comes this way
	cause := context.Cause(ctx)
	code := ws.StatusGoingAway
	if errors.Is(cause, lease.ErrStopped) || errors.Is(cause, lease.ErrDeleted) {
		code = ws.StatusNormalClosure
	}
	sock.close(code)
	loops.Wait()
	return cause
}

// receive reads messages into the queue.
func (c *conn) receive(ctx context.Context, sock *socket) error {
	if c.carry != nil {
		if err := c.queue.put(ctx, *c.carry); err != nil {
			return err
		}
		c.last, c.carry = c.carry.Seq, nil
	}
	for {
		data, binary, err := sock.read()
		if err != nil {
			return err
		}
		m := Message{At: time.Now(), Binary: binary, Data: data}
		c.received.Add(1)
		c.k.stats.received.Add(1)
		if c.path == nil {
			m.Seq = c.last + 1
		} else if m.Seq, err = numberOf(data, c.path); err != nil {
			c.skipped.Add(1)
			c.k.stats.skipped.Add(1)
			continue
		}
		if m.Seq <= c.last {
			c.duplicates.Add(1)
			c.k.stats.duplicates.Add(1)
			continue
		}
		if err := c.queue.put(ctx, m); err != nil {
			if c.path == nil {
				c.carry = &m
			}
			return err
		}
		c.last = m.Seq
	}
}

// beat pings. Whether something came back is judged where it is read.
func (c *conn) beat(ctx context.Context, sock *socket) error {
	wait := time.Duration(rand.Int64N(int64(c.k.o.Ping))) // connections made together do not ping together
	for sleep(ctx, wait) {
		if err := sock.ping(); err != nil {
			return fmt.Errorf("a ping was not sent: %w", err)
		}
		wait = c.k.o.Ping
	}
	return context.Cause(ctx)
}

func (c *conn) set(s State, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state, c.since = s, time.Now()
	if err != nil || s == Open {
		c.err = err
	}
}
