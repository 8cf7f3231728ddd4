package keeper

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// stats are a Keeper's counters since its start.
type stats struct {
	received, stored, duplicates, skipped atomic.Int64
	dials, dialErrors, losses             atomic.Int64
	calls, callErrors, callTime           atomic.Int64
}

func (s *stats) dialed(err error) {
	s.dials.Add(1)
	if err != nil {
		s.dialErrors.Add(1)
	}
}

func (s *stats) called(took time.Duration, err error) {
	s.calls.Add(1)
	s.callTime.Add(int64(took))
	if err != nil {
		s.callErrors.Add(1)
	}
}

// Stats are a worker's figures.
type Stats struct {
	Connections int           // held
	Open        int           // of them
	Blocked     int           // of them not read, for their messages wait for the sink
	Pending     int           // messages read and not stored
	Lag         time.Duration // since the oldest of these was read
	PerSecond   float64       // messages stored, lately

	// Since the start.
	Received, Stored    int64
	Duplicates, Skipped int64 // left out: stored already; without a number
	Dials, DialErrors   int64
	Losses              int64 // connections that ended or were not made, and are made again
	Stores, StoreErrors int64 // calls of the sink
	StoreTime           time.Duration
}

// Stats sums up.
func (k *Keeper) Stats() Stats {
	s := Stats{
		Received: k.stats.received.Load(), Stored: k.stats.stored.Load(), Duplicates: k.stats.duplicates.Load(), Skipped: k.stats.skipped.Load(),
		Dials: k.stats.dials.Load(), DialErrors: k.stats.dialErrors.Load(), Losses: k.stats.losses.Load(),
		Stores: k.stats.calls.Load(), StoreErrors: k.stats.callErrors.Load(), StoreTime: time.Duration(k.stats.callTime.Load()),
	}
	for _, c := range k.Status() {
		s.Connections++
		if c.State == Open {
			s.Open++
		}
		if c.Blocked {
			s.Blocked++
		}
		s.Pending += c.Pending
		s.Lag = max(s.Lag, c.Lag)
		s.PerSecond += c.PerSecond
	}
	return s
}

// Status is how a connection is that this worker holds.
type Status struct {
	ID      string
	Fence   uint64
	State   State
	Since   time.Time // of that state
	Err     string    // the last failure, of the upstream or the sink
	Seq     int64     // of the last message stored
	Pending int       // messages read and not stored
	Lag     time.Duration
	Blocked bool

	PerSecond                     float64
	Received, Duplicates, Skipped int64
	Opened                        int64 // sockets so far, under this fence
}

// Status lists the connections held, by id.
func (k *Keeper) Status() []Status {
	k.mu.Lock()
	cs := make([]*conn, 0, len(k.conns))
	for _, c := range k.conns {
		cs = append(cs, c)
	}
	k.mu.Unlock()
	slices.SortFunc(cs, func(a, b *conn) int { return cmp.Compare(a.res.ID, b.res.ID) })
	list := make([]Status, len(cs))
	now := time.Now()
	for i, c := range cs {
		list[i] = c.status(now)
	}
	return list
}

func (c *conn) status(now time.Time) Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{
		ID: c.res.ID, Fence: c.res.Fence, State: c.state, Since: c.since, Seq: c.stored.Load(), PerSecond: c.rate,
		Received: c.received.Load(), Duplicates: c.duplicates.Load(), Skipped: c.skipped.Load(), Opened: c.opened.Load(),
	}
	if c.err != nil {
		s.Err = c.err.Error()
	}
	if c.queue != nil {
		var err error
		if s.Pending, s.Lag, s.Blocked, err = c.queue.behind(now); err != nil {
			s.Err = "storing: " + err.Error()
		}
	}
	return s
}

// sampling measures rates: the mean of about the last ten seconds.
func (k *Keeper) sampling(ctx context.Context) {
	last := time.Now()
	for sleep(ctx, 2*time.Second) {
		now := time.Now()
		k.mu.Lock()
		for _, c := range k.conns {
			c.sample(now.Sub(last).Seconds())
		}
		k.mu.Unlock()
		last = now
	}
}

func (c *conn) sample(seconds float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.received.Load() - c.duplicates.Load() - c.skipped.Load()
	c.rate += 0.25 * (float64(n-c.at)/seconds - c.rate)
	c.at = n
}
