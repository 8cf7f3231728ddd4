package loadtest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"runtime"
	"time"
)

// Progress is a step under way.
type Progress struct {
	Step, Steps int // from 1
	Visitors    int
	Elapsed     time.Duration
	Doing       string // "" while the load runs, else what is done before and after it

	Arrived, Answered, Waiting, Inside, Admitted, Done int64
	Errors                                             int64
	Faults                                             int64 // those that clients can see; the log is judged at the end
	Workers, Streams                                   int64
	Enter, Status                                      Quantile

	RoomActive, RoomWaiting int64 // as the server says; see Room
	RoomLimit               *int64
	Room                    bool // the three are known
}

// bench is a whole run.
type bench struct {
	cfg    Config
	t      *target
	admin  *adminAPI // nil: none given
	log    *auditor  // nil: no log to be had
	why    string    // … because
	cursor string
	order  string
	rssMax float64
}

// Run makes the load that cfg describes and reports. When ctx ends early, the report is of what ran so far. An error
// means that there is nothing to report: the options are wrong, or the room cannot be reached. Whether the room did
// well is the report's to say (OK).
func Run(ctx context.Context, cfg Config) (*Report, error) {
	u, err := cfg.check()
	if err != nil {
		return nil, err
	}
	openFiles()
	b := &bench{cfg: cfg, t: newTarget(u, cfg.Host, cfg.Insecure, cfg.Timeout), cursor: "0"}
	if err := b.find(); err != nil {
		return nil, err
	}
	if err := b.meetAdmin(ctx); err != nil {
		return nil, err
	}
	r := &Report{
		Schema: SchemaName, Version: version(), StartedAt: time.Now().UTC(), URL: u.String(), Room: cfg.Room,
		Machine: Machine{CPUs: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()},
		Options: Options{RampS: cfg.Ramp.Seconds(), StayS: cfg.Stay.Seconds(), Abandon: cfg.Abandon, Refresh: cfg.Refresh,
			Transport: cfg.Transport, PollMS: ms(cfg.Poll), Proxy: cfg.Proxy, Connections: cfg.Connections, Seed: cfg.Seed},
	}
	for i, n := range cfg.Steps {
		if ctx.Err() != nil {
			break
		}
		r.Steps = append(r.Steps, b.step(ctx, i, n))
	}
	r.Order = b.order
	r.Interrupted = ctx.Err() != nil
	r.EndedAt = time.Now().UTC()
	r.OK = r.ok()
	return r, nil
}

// find learns where the API lives: under /.usher on a host that a room's match names, at the root elsewhere.
func (b *bench) find() error {
	c := b.t.conn()
	defer c.close()
	c.t.timeout = min(b.cfg.Timeout, 10*time.Second)
	defer func() { c.t.timeout = b.cfg.Timeout }()
	var last string
	for _, base := range []string{"/.usher", ""} {
		resp, err := c.do(&request{method: "GET", path: base + "/v1/rooms/" + url.PathEscape(b.cfg.Room) + "/now"})
		if err != nil {
			return fmt.Errorf("no answer from %s (%s); is usher serving there?", b.cfg.URL, errorKind(resp, err))
		}
		var doc map[string]any
		if resp.status == 200 && json.Unmarshal(resp.body, &doc) == nil {
			b.t.base = base
			if o, ok := doc["order"].(string); ok {
				b.order = plain(o)
			}
			return nil
		}
		last = errorKind(resp, nil)
	}
	return fmt.Errorf("%s has no room %q (%s); `usher rooms list` shows those it has", b.cfg.URL, b.cfg.Room, last)
}

// meetAdmin reads the room and its whole log, so that the state before the first step is known.
func (b *bench) meetAdmin(ctx context.Context) (err error) {
	if b.cfg.Admin == "" {
		b.why = "no --admin listener was given"
		return nil
	}
	if b.admin, err = newAdmin(b.cfg.Admin, b.cfg.AdminToken, b.cfg.Room); err != nil {
		return err
	}
	if b.cfg.AdminToken == "" {
		b.why = "the room's log needs --admin-token or USHER_ADMIN_TOKEN"
		return nil
	}
	info, err := b.admin.info(ctx)
	if err != nil {
		return fmt.Errorf("admin listener: %w", err)
	}
	b.order = info.Config.Queue.Order
	log := newAuditor()
	log.order = or(info.Config.Queue.Order, log.order)
	b.report(nil, 0, "reading the room's log")
	if b.cursor, err = b.admin.read(ctx, "0", log.add); err != nil {
		return fmt.Errorf("admin listener: the room's log: %w", err)
	}
	if !log.limitSeen && info.Limit != nil {
		log.limit = *info.Limit
	}
	b.log = log
	if log.blind || log.gaps > 0 {
		return b.baseline(ctx)
	}
	return nil
}

// baseline corrects the counts of a log whose beginning is gone by what the room says of itself, at a moment when the
// log stood still.
func (b *bench) baseline(ctx context.Context) error {
	for range 10 {
		info, err := b.admin.info(ctx)
		if err != nil {
			return fmt.Errorf("admin listener: %w", err)
		}
		before := b.log.events
		if b.cursor, err = b.admin.read(ctx, b.cursor, b.log.add); err != nil {
			return fmt.Errorf("admin listener: the room's log: %w", err)
		}
		if b.log.events == before {
			b.log.active, b.log.waiting = info.Active, info.Waiting
			return nil
		}
	}
	b.why = "the log does not reach back to the room's beginning, and the room is never still; run while it is quiet"
	b.log = nil
	return nil
}

// step runs one size.
func (b *bench) step(ctx context.Context, i, n int) Step {
	scrapeCtx := context.WithoutCancel(ctx)
	var before *scrape
	unavailable := b.why
	if b.admin != nil {
		var err error
		if before, err = b.admin.metrics(scrapeCtx); err != nil {
			unavailable = err.Error()
		}
	}
	b.rssMax = 0
	cpu := cpuSeconds()
	s := newStep(&b.cfg, b.t, n, i)
	watching, stopWatching := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		b.watch(watching, s, i)
	}()
	s.run(ctx)
	duration := time.Since(s.tally.start)
	s.tally.watch()
	stopWatching()
	<-watched
	cpu = cpuSeconds() - cpu

	ev := &evidence{why: b.why, order: b.order}
	if b.log != nil {
		b.report(s, i, "judging the room's log")
		if err := b.replay(scrapeCtx, s, ev); err != nil {
			ev.why = "the room's log cannot be judged: " + err.Error()
			b.log, b.why = nil, ev.why
		}
	}
	out := s.judge(ev)
	out.DurationS = duration.Seconds()
	out.Interrupted = ctx.Err() != nil
	out.Client = Client{CPUSeconds: cpu, CPUPercent: 100 * cpu / duration.Seconds(), Connections: s.workers.Load()}
	if before != nil {
		if after, err := b.admin.metrics(scrapeCtx); err != nil {
			unavailable = err.Error()
		} else {
			out.Server, unavailable = serverBetween(before, after, b.rssMax), ""
		}
	}
	out.Server.Unavailable = unavailable
	out.Server.ClockSkewMS = ms(s.tally.skew)
	if ev.log != nil {
		out.Server.LogEvents = ev.log.events
		out.Server.LogWhole = !ev.log.blind
	}
	b.report(s, i, "taking those still there out of the room")
	tidy, cancel := context.WithTimeout(scrapeCtx, 10*time.Second+time.Duration(n)*time.Millisecond/2)
	defer cancel()
	s.tidy(tidy)
	return out
}

// replay audits what the log gained since the last reading.
func (b *bench) replay(ctx context.Context, s *step, ev *evidence) error {
	c := &columns{start: s.tally.start.Add(s.tally.skew)}
	if s.tally.skew.Abs() < 50*time.Millisecond {
		c.start = s.tally.start
	}
	c.open(c.start, b.log.waiting, b.log.active, limitOf(b.log))
	active := b.log.active
	gaps, found := b.log.gaps, &faults{}
	b.log.faults = found
	b.log.observe = func(e *logEvent, a *auditor) {
		c.observe(e, a, active)
		active = a.active
	}
	var err error
	if b.cursor, err = b.admin.read(ctx, b.cursor, b.log.add); err != nil {
		return err
	}
	if missing := b.log.gaps - gaps; missing > 0 {
		return fmt.Errorf("it lacks %d events of this run (log.max_bytes and log.retain bound it)", missing)
	}
	s.tally.faults.merge(found)
	ev.log, ev.columns = b.log, c
	if b.log.order != "" {
		ev.order, b.order = b.log.order, b.log.order
	}
	return nil
}

// watch follows a step once a second until ctx ends.
func (b *bench) watch(ctx context.Context, s *step, index int) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 0; ; n++ {
		b.progress(ctx, s, index, "")
		if b.admin != nil && n%2 == 1 {
			if m, err := b.admin.metrics(ctx); err == nil {
				rss, _ := m.value("process_resident_memory_bytes")
				b.rssMax = max(b.rssMax, rss)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (b *bench) report(s *step, index int, doing string) {
	b.progress(context.Background(), s, index, doing)
}

func (b *bench) progress(ctx context.Context, s *step, index int, doing string) {
	p := Progress{Step: index + 1, Steps: len(b.cfg.Steps), Doing: doing}
	if s != nil {
		c := s.tally.watch()
		p.Visitors, p.Elapsed = len(s.visitors), time.Since(s.tally.start)
		p.Arrived, p.Answered, p.Waiting, p.Inside, p.Admitted, p.Done = c.arrived, c.answered, c.waiting, c.inside, c.admitted, c.done
		p.Workers, p.Streams = s.workers.Load(), s.streams.Load()
		p.Faults = s.tally.faults.total()
		s.tally.mu.Lock()
		p.Enter, p.Status = s.tally.response[opEnter].summary(), s.tally.response[opStatus].summary()
		for _, n := range s.tally.errors {
			p.Errors += n
		}
		s.tally.mu.Unlock()
	}
	if b.cfg.Progress == nil {
		return
	}
	if b.admin != nil && b.cfg.AdminToken != "" && doing == "" {
		if info, err := b.admin.info(ctx); err == nil {
			p.Room, p.RoomActive, p.RoomWaiting, p.RoomLimit = true, info.Active, info.Waiting, info.Limit
		}
	}
	b.cfg.Progress(p)
}
