package crowd_test

import (
	"context"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/examples/cinema"
	"github.com/ushergo/usher/internal/crowd"
)

func site(t *testing.T) *cinema.Site {
	t.Helper()
	s, err := cinema.Open(t.Context(), filepath.Join(t.TempDir(), "cinema.db"), cinema.Options{Wait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func run(t *testing.T, room *lineRoom, opt crowd.Options) crowd.Stats {
	t.Helper()
	srv := httptest.NewServer(room)
	t.Cleanup(srv.Close)
	opt.Base, opt.Room, opt.Path = srv.URL, "premiere", "/premiere"
	c, err := crowd.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := c.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil && !opt.Keep {
		t.Fatalf("the crowd did not end: %+v", s.Count)
	}
	return s
}

func TestCrowdOfAllTempers(t *testing.T) {
	s, room := site(t), (*lineRoom)(nil)
	room = newLineRoom(s, 25)
	room.grace, room.claim = time.Hour, 5*time.Second // a slow machine is no violation
	var mu sync.Mutex
	events := map[crowd.Kind]int{}
	st := run(t, room, crowd.Options{Visitors: 200, Speed: 40, Ramp: time.Second, Seed: 7,
		Mix: crowd.Mix{20, 20, 20, 20, 20, 3},
		Observe: func(e crowd.Event) {
			mu.Lock()
			defer mu.Unlock()
			events[e.Kind]++
			if e.Kind == crowd.Violated || e.Kind == crowd.Failed {
				t.Logf("%s %s seq %d: %s", e.Temper, e.Kind, e.Seq, e.Text)
			}
		}})
	if st.Violation.Sum() != 0 {
		t.Errorf("violations of a right room: %+v", st.Violation)
	}
	if st.Arrived != 200 || st.Here != 0 || st.Waiting != 0 || st.Inside != 0 {
		t.Errorf("arrived %d of 200; still here %d, waiting %d, inside %d", st.Arrived, st.Here, st.Waiting, st.Inside)
	}
	if ends := st.Bought + st.LookedOn + st.SoldOut + st.Left + st.Vanished + st.Missed + st.Overslept + st.Failed; ends != 200 {
		t.Errorf("%d ends of 200: %+v", ends, st.Count)
	}
	if st.Bought == 0 || st.Left == 0 || st.Vanished == 0 || st.Reloads == 0 || st.Temper(crowd.NoShow).Missed == 0 || st.Failed > 0 {
		t.Errorf("a temper did not play: %+v, reloads %d", st.Count, st.Reloads)
	}
	own, err := s.Stats(t.Context())
	if err != nil || int64(own.Bookings) != st.Bought {
		t.Errorf("the crowd bought %d seats, the cinema sold %d (%v)", st.Bought, own.Bookings, err)
	}
	if room.most > 25 {
		t.Errorf("%d inside", room.most)
	}
	var sum int64
	for i := range st.ByTemper {
		sum += st.ByTemper[i].Arrived
	}
	if sum != st.Arrived || events[crowd.Arrived] != 200 {
		t.Errorf("tempers sum to %d, events to %d", sum, events[crowd.Arrived])
	}
}

// Whoever sleeps beyond the grace loses the place, and that is no violation.
func TestSleepersBeyondTheGrace(t *testing.T) {
	room := newLineRoom(site(t), 1)
	ctx, enough := context.WithTimeout(t.Context(), time.Minute)
	defer enough()
	srv := httptest.NewServer(room)
	defer srv.Close()
	c, err := crowd.New(crowd.Options{Base: srv.URL, Room: "premiere", Path: "/premiere", Visitors: 40, Speed: 10, Ramp: -1, Keep: true,
		Mix: crowd.Mix{crowd.Sleeper: 1},
		Observe: func(e crowd.Event) {
			if e.Kind == crowd.Overslept {
				enough()
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	if st, _ := c.Run(ctx); st.Overslept == 0 {
		t.Errorf("nobody overslept: %+v", st.Count)
	}
}

// A watch that never barks is worth nothing: each fault must be seen.
func TestCrowdSeesViolations(t *testing.T) {
	for fault, got := range map[string]func(crowd.Violations) int64{
		"seq":                  func(v crowd.Violations) int64 { return v.SeqChanged },
		"place":                func(v crowd.Violations) int64 { return v.PlaceRose },
		"forget":               func(v crowd.Violations) int64 { return v.LostPlace },
		"open door":            func(v crowd.Violations) int64 { return v.ServedEarly },
		"back":                 func(v crowd.Violations) int64 { return v.WentBack },
		"new ticket each time": func(v crowd.Violations) int64 { return v.SeqChanged },
	} {
		t.Run(strings.ReplaceAll(fault, " ", "-"), func(t *testing.T) {
			t.Parallel()
			room := newLineRoom(site(t), 2)
			room.fault = fault
			mix := crowd.Mix{crowd.Patient: 1, crowd.DoubleTab: 1}
			if fault == "open door" {
				mix = crowd.Mix{crowd.Refresher: 1}
			}
			srv := httptest.NewServer(room)
			defer srv.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c, err := crowd.New(crowd.Options{Base: srv.URL, Room: "premiere", Path: "/premiere", Visitors: 20, Speed: 40, Ramp: -1, Mix: mix, Keep: true,
				Observe: func(e crowd.Event) {
					if e.Kind == crowd.Violated {
						cancel() // seen: enough
					}
				}})
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(time.Minute, cancel)
			st, _ := c.Run(ctx)
			if got(st.Violation) == 0 {
				t.Errorf("the fault was not counted: %+v; %+v", st.Violation, st.Count)
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	room := newLineRoom(site(t), 1)
	srv := httptest.NewServer(room)
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	arrived := make(chan struct{}, 1000)
	c, err := crowd.New(crowd.Options{Base: srv.URL, Room: "premiere", Path: "/premiere", Visitors: 50, Keep: true, Ramp: -1,
		Observe: func(e crowd.Event) {
			if e.Kind == crowd.Arrived {
				arrived <- struct{}{}
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := c.Run(ctx); done <- err }()
	for range 50 {
		<-arrived
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if st := c.Stats(); st.Here != 0 || st.Failed != 0 {
		t.Fatalf("after the end: %+v", st.Count)
	}
	if _, err := c.Run(t.Context()); err == nil {
		t.Fatal("a second Run is accepted")
	}
}

func TestOptionsNameTheField(t *testing.T) {
	good := crowd.Options{Base: "http://127.0.0.1:1", Room: "r", Visitors: 1}
	for field, break_ := range map[string]func(*crowd.Options){
		"Base":     func(o *crowd.Options) { o.Base = "127.0.0.1:8080" },
		"Room":     func(o *crowd.Options) { o.Room = "No Room" },
		"Path":     func(o *crowd.Options) { o.Path = "premiere" },
		"Visitors": func(o *crowd.Options) { o.Visitors = 0 },
		"Speed":    func(o *crowd.Options) { o.Speed = -1 },
		"Mix":      func(o *crowd.Options) { o.Mix[crowd.Leaver] = -1 },
	} {
		o := good
		break_(&o)
		if _, err := crowd.New(o); err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := crowd.New(good); err != nil {
		t.Error(err)
	}
}
