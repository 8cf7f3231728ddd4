package web

import (
	"strings"
	"testing"

	"github.com/ushergo/usher/room"
)

// busy is five minutes of an open room: who is inside and who waits at the beginning and at the end, in between evenly.
type busy struct {
	limit            int64 // 0: none
	active0, active1 int64
	wait0, wait1     int64
	expected         int64 // wait in s; 0: no basis
	stay             float64
	state            string
	samples          int // default: five minutes
	capacity         room.Capacity
	instances        int64
}

func (b busy) figures() figures {
	n := fiveMinutes
	if b.samples > 0 {
		n = b.samples
	}
	f := figures{capacity: b.capacity, instances: b.instances, whole: n >= fiveMinutes, state: room.StateOpen}
	f.Active, f.Waiting, f.TargetWaitS = b.active1, b.wait1, 30
	if b.limit > 0 {
		f.Limit = &b.limit
	}
	if b.expected > 0 {
		f.ExpectedWaitS = &b.expected
	}
	if b.stay > 0 {
		f.MeasuredStayS = &b.stay
	}
	if b.state != "" {
		f.state = b.state
	}
	between := func(from, to int64, i int) int64 { return from + (to-from)*int64(i)/int64(max(n-1, 1)) }
	f.measure(samples(n, func(i int) (int64, int64) { return between(b.wait0, b.wait1, i), between(b.active0, b.active1, i) }))
	return f
}

func TestAdvice(t *testing.T) {
	three := room.Capacity{Active: 1000, PerInstance: 100}
	for _, tc := range []struct {
		name   string
		b      busy
		advice string
		reason string
		n      int64 // instances advised
	}{
		{"over 80 % and growing", busy{limit: 100, active0: 60, active1: 90}, "up", "% of the sessions are in use and demand grows by 6.", 0},
		{"over 80 % and steady", busy{limit: 100, active0: 90, active1: 90}, "hold", "nobody waits", 0},
		{"over 80 % and falling", busy{limit: 100, active0: 100, active1: 85}, "hold", "nobody waits", 0},
		{"80 % and growing", busy{limit: 100, active0: 50, active1: 80}, "hold", "nobody waits", 0},
		{"full, and the line grows", busy{limit: 10, active0: 10, active1: 10, wait0: 0, wait1: 300, expected: 5}, "up", "demand grows", 0},
		{"full, and the line is steady", busy{limit: 10, active0: 10, active1: 10, wait0: 5, wait1: 5, expected: 5}, "hold", "within the target", 0},
		{"full, and the line gets shorter", busy{limit: 10, active0: 10, active1: 10, wait0: 300, wait1: 10, expected: 5}, "hold", "within the target", 0},
		{"the wait is longer than the target", busy{limit: 10, active0: 10, active1: 10, wait0: 50, wait1: 50, expected: 120}, "up", "120 s, target_wait is 30 s: raise the limit", 0},
		{"the wait is the target", busy{limit: 10, active0: 10, active1: 10, wait0: 50, wait1: 50, expected: 30}, "hold", "within the target", 0},
		{"no limit but the rate", busy{active0: 10, active1: 10, wait0: 50, wait1: 50, expected: 120}, "up", "120 s", 0},
		{"the rate is what is short", busy{limit: 100, active0: 10, active1: 10, wait0: 50, wait1: 50, expected: 120, capacity: room.Capacity{Active: 100, RatePerMinute: 6}}, "up", "raise rate_per_minute", 0},
		{"under 30 % and falling", busy{limit: 100, active0: 60, active1: 20}, "down", "demand falls by 8.", 0},
		{"30 % and falling", busy{limit: 100, active0: 60, active1: 32}, "hold", "nobody waits", 0},
		{"under 30 % and growing", busy{limit: 100, active0: 2, active1: 20}, "hold", "demand grows", 0},
		{"under 30 % for five minutes", busy{limit: 100, active0: 5, active1: 5}, "down", "steady for five minutes", 0},
		{"under 30 %, just begun", busy{limit: 100, active0: 5, active1: 5, samples: 3}, "hold", "less than five minutes", 0},
		{"under 30 % and falling, but people wait", busy{limit: 100, active0: 60, active1: 20, wait1: 1, expected: 5}, "hold", "within the target", 0},
		{"paused", busy{limit: 10, wait0: 50, wait1: 50, expected: 120, state: room.StatePaused}, "hold", "the room is paused", 0},
		{"nothing measured", busy{samples: 1}, "hold", "nobody waits", 0},

		{"instances: growing", busy{limit: 300, active0: 200, active1: 290, capacity: three, instances: 3}, "up", "raise the instances from 3 to 5", 5},
		{"instances: one more at least", busy{limit: 300, active0: 200, active1: 300, wait1: 3, expected: 31, stay: 1, capacity: room.Capacity{PerInstance: 100}, instances: 8}, "up", "from 8 to 9", 9},
		{"instances: so many that the line comes in within the target", busy{limit: 300, active0: 300, active1: 300, wait0: 60, wait1: 60, expected: 60, stay: 300, capacity: three, instances: 3}, "up", "from 3 to 6", 6},
		{"instances: the stay is not known", busy{limit: 300, active0: 300, active1: 300, wait0: 0, wait1: 120, capacity: three, instances: 3}, "up", "from 3 to 7", 7},
		{"instances: no more than active can use", busy{limit: 300, active0: 300, active1: 300, wait0: 9000, wait1: 9000, expected: 900, stay: 300, capacity: three, instances: 3}, "up", "from 3 to 10", 10},
		{"instances: active is what is short", busy{limit: 1000, active0: 1000, active1: 1000, wait0: 90, wait1: 90, expected: 90, stay: 30, capacity: three, instances: 10}, "up", "raise capacity.active", 10},
		{"instances: none lives", busy{wait0: 9, wait1: 9, capacity: three}, "up", "people wait and the limit is 0: raise the instances from 0 to 1", 1},
		{"instances: steady", busy{limit: 300, active0: 150, active1: 150, capacity: three, instances: 3}, "hold", "", 3},
		{"instances: falling", busy{limit: 1000, active0: 500, active1: 150, capacity: three, instances: 10}, "down", "3 instances would do instead of 10", 3},
		{"instances: empty", busy{limit: 1000, capacity: three, instances: 10}, "down", "1 instances would do", 1},
		{"instances: the last one stays", busy{limit: 100, active0: 50, active1: 10, capacity: three, instances: 1}, "hold", "which takes 1", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := tc.b.figures()
			if tc.name == "instances: none lives" {
				f.Limit = new(int64)
			}
			got := advise(f)
			if got.recommendation != tc.advice || !strings.Contains(got.reason, tc.reason) || got.reason == "" || got.instances != tc.n {
				t.Errorf("%s, %d instances, %s\n(%v of the sessions, %s by %v)", got.recommendation, got.instances, got.reason, deref(f.Utilisation), f.Trend, f.DemandPerMinute)
			}
			if again := advise(f); again != got {
				t.Errorf("the same figures, other advice: %+v", again)
			}
		})
	}
}

func deref(f *float64) any {
	if f == nil {
		return nil
	}
	return *f
}

// Advice that is followed is not turned around by the next.
func TestAdviceSettles(t *testing.T) {
	for _, demand := range []int64{1, 7, 60, 99, 300, 650, 1999} {
		for _, from := range []int64{1, 2, 5, 20, 40} {
			n := from
			var seen []string
			for range 20 {
				active := min(demand, n*100)
				b := busy{limit: n * 100, active0: active, active1: active, wait0: demand - active, wait1: demand - active, stay: 60, capacity: room.Capacity{PerInstance: 100}, instances: n}
				if w := demand - active; w > 0 {
					b.expected = max(w*60/(n*100), 1)
				}
				got := advise(b.figures())
				if len(seen) > 0 && got.recommendation != "hold" && got.recommendation != seen[len(seen)-1] {
					t.Fatalf("demand %d from %d instances: %v, then %s to %d", demand, from, seen, got.recommendation, got.instances)
				}
				if got.recommendation == "hold" {
					break
				}
				seen, n = append(seen, got.recommendation), got.instances
			}
			if n > 1 && n > demand/20 {
				t.Errorf("demand %d from %d instances ends at %d", demand, from, n)
			}
		}
	}
}
