package server

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ushergo/usher/config"
	"github.com/ushergo/usher/flight/httpflight"
)

// collapse is what the collapse: sections of this node's file say of its rooms. It can be changed while requests run.
type collapse struct {
	life context.Context // its end cancels what replaced ones still wait for
	end  context.CancelFunc

	mu    sync.RWMutex
	rooms map[string]*collapser
	old   sync.WaitGroup // replaced ones that are not closed yet
}

// collapser is one section as of one reading of the file.
type collapser struct {
	conf    config.Collapse
	opts    httpflight.Options
	made    sync.Once
	tripper atomic.Pointer[httpflight.Tripper]
	running sync.WaitGroup
}

func newCollapse() *collapse {
	c := &collapse{rooms: map[string]*collapser{}}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// apply takes over the sections of a file. Requests that run or wait end as they began. A room that the file does not
// name keeps what it has, as the room itself stays.
func (c *collapse) apply(rooms []config.Room) error {
	opts := make([]httpflight.Options, len(rooms))
	for i := range rooms {
		opts[i] = collapseOptions(&rooms[i].Collapse)
		if err := opts[i].Validate(); rooms[i].Collapse.On && err != nil {
			return fmt.Errorf("room %s: %w", rooms[i].ID, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return nil
	}
	for i := range rooms {
		r, was := &rooms[i], c.rooms[rooms[i].ID]
		if was != nil && r.Collapse.On && reflect.DeepEqual(was.conf, r.Collapse) {
			continue
		}
		delete(c.rooms, r.ID)
		if r.Collapse.On {
			c.rooms[r.ID] = &collapser{conf: r.Collapse, opts: opts[i]}
		}
		if was != nil {
			c.old.Go(func() {
				was.running.Wait()
				was.close(c.life)
			})
		}
	}
	return nil
}

// Collapses implements web.Collapse.
func (c *collapse) Collapses(room string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.rooms[room] != nil
}

// RoundTrip implements web.Collapse.
func (c *collapse) RoundTrip(room string, next http.RoundTripper, r *http.Request) (*http.Response, error) {
	c.mu.RLock()
	now := c.rooms[room]
	if now == nil {
		c.mu.RUnlock()
		return next.RoundTrip(r)
	}
	now.running.Add(1)
	c.mu.RUnlock()
	defer now.running.Done()
	now.made.Do(func() { now.tripper.Store(httpflight.Transport(next, now.opts)) })
	if t := now.tripper.Load(); t != nil {
		return t.RoundTrip(r)
	}
	return next.RoundTrip(r) // closed before its first request
}

// Refusal implements web.Collapse.
func (c *collapse) Refusal(err error) (status int, code string, retry time.Duration, ok bool) {
	return httpflight.Refusal(err)
}

// close cancels what still runs at origins: nobody is there to wait for it.
func (c *collapse) close() {
	c.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, now := range c.rooms {
		now.close(c.life)
	}
	c.old.Wait()
}

// close waits for what runs at the origin, and cancels it when ctx ends.
func (c *collapser) close(ctx context.Context) {
	c.made.Do(func() {})
	if t := c.tripper.Load(); t != nil {
		_ = t.Close(ctx)
	}
}

func collapseOptions(c *config.Collapse) httpflight.Options {
	return httpflight.Options{
		Query: c.Query, Headers: c.Headers, PrincipalHeader: c.PrincipalHeader, IgnoreCookies: c.IgnoreCookies, DropHeaders: c.DropHeaders,
		Timeout: c.Timeout, Concurrency: c.Concurrency, PerSecond: float64(c.PerSecond), Burst: c.Burst, MaxPending: c.MaxPending,
		MaxWaiters: c.MaxWaiters, MaxWaitersPerKey: c.MaxWaitersPerKey, MaxBody: int64(c.MaxBody), MaxMemory: int64(c.MaxMemory),
		SlowClient: c.SlowClient, OnLeave: c.OnLeave, NotShareableFor: c.NotShareableFor, Backoff: c.Backoff,
	}
}

// Describe implements prometheus.Collector: rooms come and go.
func (c *collapse) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. Counters begin anew when a section changes.
func (c *collapse) Collect(out chan<- prometheus.Metric) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for room, now := range c.rooms {
		var st httpflight.Stats
		if t := now.tripper.Load(); t != nil {
			st = t.Stats()
		}
		tell := func(name, help string, kind prometheus.ValueType, v float64) {
			out <- prometheus.MustNewConstMetric(prometheus.NewDesc("usher_collapse_"+name, help, []string{"room"}, nil), kind, v, room)
		}
		tell("waiting", "Visitors who wait for shared answers of origins.", prometheus.GaugeValue, float64(st.Waiters))
		tell("running", "Shared requests at origins.", prometheus.GaugeValue, float64(st.Running))
		tell("held_bytes", "Bodies in memory.", prometheus.GaugeValue, float64(st.Held))
		tell("requests_total", "Requests that may be shared.", prometheus.CounterValue, float64(st.Calls))
		tell("shared_total", "Requests answered by another's.", prometheus.CounterValue, float64(st.Shared))
		tell("origin_requests_total", "Requests to origins for those that may be shared.", prometheus.CounterValue, float64(st.Loads))
		tell("passed_total", "Requests that may not be shared.", prometheus.CounterValue, float64(st.Passed))
	}
}
