package loadtest

import (
	"context"
	"strings"
	"testing"
	"time"
)

// small is a load that a slow machine takes in a few seconds.
func small(public, admin string) Config {
	return Config{URL: public, Room: "r", Visitors: 60, Ramp: 300 * time.Millisecond, Stay: 50 * time.Millisecond,
		Poll: 50 * time.Millisecond, Admin: admin, AdminToken: "admin", Seed: 1, Patience: 20 * time.Second}
}

func load(t *testing.T, cfg Config) *Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r, err := Run(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Interrupted {
		t.Fatal("the run did not end by itself")
	}
	return r
}

func faultCounts(r *Report) map[string]int64 {
	m := map[string]int64{}
	for i := range r.Steps {
		for _, f := range r.Steps[i].Faults.all() {
			if f.Count != nil {
				m[f.Name] += *f.Count
			}
		}
	}
	return m
}

func examples(r *Report) (all []string) {
	for i := range r.Steps {
		for _, f := range r.Steps[i].Faults.all() {
			all = append(all, f.Examples...)
		}
	}
	return all
}

func TestHonestRoomHasNoFaults(t *testing.T) {
	for name, change := range map[string]func(*fakeRoom, *Config){
		"by the log":         func(*fakeRoom, *Config) {},
		"by clients":         func(_ *fakeRoom, c *Config) { c.AdminToken = "" },
		"without admin":      func(_ *fakeRoom, c *Config) { c.Admin, c.AdminToken = "", "" },
		"streams":            func(_ *fakeRoom, c *Config) { c.Transport = "sse" },
		"below .usher":       func(f *fakeRoom, _ *Config) { f.prefix = "/.usher" },
		"through the proxy":  func(_ *fakeRoom, c *Config) { c.Proxy, c.Think = "/shop", 20*time.Millisecond },
		"all refresh":        func(_ *fakeRoom, c *Config) { c.Refresh = 1 },
		"a third vanishes":   func(f *fakeRoom, c *Config) { c.Abandon = 0.3; f.setLimit(40) },
		"a flaky server":     func(f *fakeRoom, _ *Config) { f.flaky = true },
		"two steps":          func(_ *fakeRoom, c *Config) { c.Steps = []int{20, 40} },
		"three connections":  func(_ *fakeRoom, c *Config) { c.Connections = 3 },
		"a streamed refresh": func(_ *fakeRoom, c *Config) { c.Transport, c.Refresh = "sse", 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(8)
			public, admin := "", ""
			cfg := Config{}
			public, admin = f.serve(t)
			cfg = small(public, admin)
			change(f, &cfg)
			r := load(t, cfg)
			for fault, n := range faultCounts(r) {
				if n != 0 {
					t.Errorf("%d %s: %q", n, fault, examples(r))
				}
			}
			if !r.OK {
				t.Error("not OK")
			}
			for _, s := range r.Steps {
				if s.Crowd.Answered != int64(s.Visitors) || s.Crowd.Left+s.Crowd.Vanished != int64(s.Visitors) {
					t.Errorf("crowd %+v; errors %v", s.Crowd, s.Errors)
				}
				if s.Latency[0].Op != "enter" || s.Latency[0].Response.Count < uint64(s.Visitors) {
					t.Errorf("latency %+v", s.Latency)
				}
			}
			// With a third that vanishes nobody need wait, and few do not wait until they are told twice.
			few := name == "a third vanishes" || name == "two steps"
			if s := r.Steps[len(r.Steps)-1]; s.EnterToAdmitted.Count != uint64(s.Crowd.Admitted) || s.PlaceUpdates.Count == 0 && !few || s.EnterToAdmitted.MaxMS < s.EnterToAdmitted.P50MS {
				t.Errorf("places told %+v, waits %+v, %d admitted", s.PlaceUpdates, s.EnterToAdmitted, s.Crowd.Admitted)
			}
			if cfg.AdminToken != "" {
				s := r.Steps[0]
				if s.Told == nil || s.Told.Count == 0 || s.Admissions.Total == 0 || s.Series.Source != "log" {
					t.Errorf("told %v, admissions %v, series from %s", s.Told, s.Admissions, s.Series.Source)
				}
				if len(s.Server.Engine) != 1 || s.Server.Engine[0].Labels != "op=enter" || s.Server.RSSAfter != 12_000_000 {
					t.Errorf("server %+v", s.Server)
				}
			}
		})
	}
}

func TestEachFaultIsCaught(t *testing.T) {
	for _, c := range []struct {
		name    string
		fault   string
		break_  func(*fakeRoom)
		clients bool // clients alone see it too
	}{
		{"inversion", "order inversions", func(f *fakeRoom) { f.overtake = true }, false},
		{"double admission", "double admissions", func(f *fakeRoom) { f.twice = true }, false},
		{"shared ticket", "double admissions", func(f *fakeRoom) { f.share = true }, true},
		{"overrun", "limit overruns", func(f *fakeRoom) { f.overrun = true }, false},
		{"forgotten ticket", "lost places", func(f *fakeRoom) { f.forget = true }, true},
		{"moved pos", "lost places", func(f *fakeRoom) { f.shift = true }, true},
		{"rising place", "lost places", func(f *fakeRoom) { f.rise = true }, true},
		{"enter not in the log", "lost places", func(f *fakeRoom) { f.dropEnter = true }, false},
		{"admission not in the log", "unlogged admissions", func(f *fakeRoom) { f.unlogged = true }, false},
	} {
		for _, token := range []string{"admin", ""} {
			if token == "" && !c.clients {
				continue
			}
			t.Run(c.name+" with token "+token, func(t *testing.T) {
				t.Parallel()
				f := newFake(4)
				c.break_(f)
				public, admin := f.serve(t)
				cfg := small(public, admin)
				cfg.AdminToken = token
				r := load(t, cfg)
				if n := faultCounts(r); n[c.fault] == 0 || r.OK {
					t.Errorf("not caught: %v", n)
				}
				if len(examples(r)) == 0 {
					t.Error("no example")
				}
			})
		}
	}
}

// Clients alone call an inversion only when it is certain.
func TestClientsSeeACertainInversion(t *testing.T) {
	base := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := &step{tally: newTally(), visitors: []visitor{
		{pos: 1, waitingAt: base, admitted: base.Add(time.Second)},
		{pos: 2, waitingAt: base.Add(9 * time.Second)},             // waits long …
		{pos: 3, admitted: base.Add(8500 * time.Millisecond)},      // … but this is within the tolerance
		{pos: 4, waitingAt: base, admitted: base.Add(time.Second)}, // … and this is not
	}}
	s.inversions()
	if n := s.tally.faults.count[orderInversion]; n != 1 {
		t.Fatalf("%d inversions: %q", n, s.tally.faults.examples[orderInversion])
	}
	if e := s.tally.faults.examples[orderInversion][0]; !strings.HasPrefix(e, "pos 4") {
		t.Fatal(e)
	}
}

// Ctrl-C gives the report of what ran so far.
func TestInterruptedRunReports(t *testing.T) {
	f := newFake(1)
	public, admin := f.serve(t)
	cfg := small(public, admin)
	cfg.Stay = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cfg.Progress = func(p Progress) {
		if p.Admitted > 0 && p.Arrived == 60 {
			cancel()
		}
	}
	r, err := Run(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Interrupted || !r.Steps[0].Interrupted || !r.OK {
		t.Errorf("interrupted %v, ok %v: %q", r.Interrupted, r.OK, examples(r))
	}
	if c := r.Steps[0].Crowd; c.Waiting+c.Inside != 60 {
		t.Errorf("%+v", c)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.active != 0 || len(f.line) != 0 {
		t.Errorf("left behind: %d inside, %d in line", f.active, len(f.line))
	}
}

// A room that is older than its log: what stood before is taken from its own numbers.
func TestTrimmedLog(t *testing.T) {
	f := newFake(8)
	public, admin := f.serve(t)
	cfg := small(public, admin)
	load(t, cfg)
	f.mu.Lock()
	f.trimmed = len(f.log) - 3
	f.mu.Unlock()
	r := load(t, cfg)
	if s := r.Steps[0]; !r.OK || s.Server.LogWhole || s.Told.Count != 60 {
		t.Errorf("ok %v, %+v: %q", r.OK, s.Server, examples(r))
	}
	// Trimmed in the middle of a run: clients alone judge, and the report says why.
	cfg.Progress = func(p Progress) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if p.Done > 0 && f.trimmed < f.base {
			f.trimmed = f.base + 5
		}
	}
	f.mu.Lock()
	f.base = len(f.log)
	f.mu.Unlock()
	r = load(t, cfg)
	if f := r.Steps[0].Faults; !r.OK || f.LimitOverruns.Count != nil || !strings.Contains(f.LimitOverruns.JudgedBy, "lacks 5 events") {
		t.Errorf("ok %v, %+v: %q", r.OK, f, examples(r))
	}
}

// A load generator that is held up must not hide it (coordinated omission).
func TestResponseCountsFromTheIntendedStart(t *testing.T) {
	f := newFake(100)
	f.enterDelay = 20 * time.Millisecond
	public, admin := f.serve(t)
	cfg := small(public, admin)
	cfg.Visitors, cfg.Connections, cfg.Ramp = 20, 1, time.Millisecond
	r := load(t, cfg)
	l := r.Steps[0].Latency[0]
	// One connection: the last enter waits for nineteen others of 20 ms each.
	if l.Response.MaxMS < 19*20 || l.Response.MaxMS < 2*l.Service.P50MS {
		t.Errorf("response %+v, service %+v", l.Response, l.Service)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	f := newFake(1)
	public, admin := f.serve(t)
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no address":  {func(c *Config) { c.URL = "localhost:8080" }, "http://127.0.0.1:8080"},
		"room":        {func(c *Config) { c.Room = "A B" }, "--room"},
		"unknown":     {func(c *Config) { c.Room = "elsewhere" }, "has no room"},
		"nobody":      {func(c *Config) { c.URL = "http://127.0.0.1:1" }, "connection refused"},
		"token":       {func(c *Config) { c.AdminToken = "wrong" }, "USHER_ADMIN_TOKEN"},
		"share":       {func(c *Config) { c.Abandon = 5 }, "--abandon"},
		"transport":   {func(c *Config) { c.Transport = "pigeon" }, "poll, sse or ws"},
		"header line": {func(c *Config) { c.Host = "a\r\nX: y" }, "--host"},
		"size":        {func(c *Config) { c.Steps = []int{0} }, "--steps"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := small(public, admin)
			c.change(&cfg)
			_, err := Run(t.Context(), cfg)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want something about %q", err, c.want)
			}
		})
	}
}
