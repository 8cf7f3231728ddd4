package web

import (
	"fmt"
	"math"

	"github.com/ushergo/usher/room"
)

// Where advice begins, and the utilisation that it aims at: in the middle, so that the one does not lead to the other.
const (
	tooFull  = 0.8
	tooEmpty = 0.3
	wanted   = 0.6
)

// figures are all that advice goes by.
type figures struct {
	Analysis
	state     string // the effective one
	capacity  room.Capacity
	instances int64 // that count now, with per_instance
	whole     bool  // five minutes were measured
}

type advice struct {
	recommendation string // up, hold or down
	reason         string
	instances      int64 // with per_instance
}

// advise is a pure function: the same figures, the same advice. Up when more than 80 % of the sessions are in use and
// demand (who is inside and who waits) grows, and when the expected wait exceeds the target; down when less than 30 %
// are in use and demand does not grow; else hold.
func advise(f figures) advice {
	out := advice{recommendation: "hold", instances: f.instances}
	used := 0.0
	if f.Utilisation != nil {
		used = *f.Utilisation
	}
	late := f.Waiting > 0 && f.ExpectedWaitS != nil && *f.ExpectedWaitS > f.TargetWaitS
	switch {
	case f.state != room.StateOpen:
		out.reason = "the room is " + f.state + "; its figures say nothing about capacity"
	case f.Limit != nil && *f.Limit == 0 && f.Waiting > 0:
		f.up(&out, "people wait and the limit is 0")
	case late:
		f.up(&out, fmt.Sprintf("who enters now waits about %d s, target_wait is %d s", *f.ExpectedWaitS, f.TargetWaitS))
	case f.Utilisation != nil && used > tooFull && f.Trend == "rising":
		f.up(&out, fmt.Sprintf("%.0f %% of the sessions are in use and demand grows by %.1f a minute", used*100, f.DemandPerMinute))
	case f.Waiting > 0:
		out.reason = "people wait, within the target"
	case f.Utilisation == nil || used >= tooEmpty:
		out.reason = "nobody waits"
	case f.Trend == "falling":
		f.down(&out, fmt.Sprintf("%.0f %% of the sessions are in use and demand falls by %.1f a minute", used*100, -f.DemandPerMinute))
	case f.Trend == "steady" && f.whole:
		f.down(&out, fmt.Sprintf("nobody waits, %.0f %% of the sessions are in use, and demand was steady for five minutes", used*100))
	case f.Trend == "steady":
		out.reason = "nobody waits; less than five minutes have been measured"
	default:
		out.reason = "nobody waits, and demand grows"
	}
	return out
}

// up says what would have to grow.
func (f *figures) up(out *advice, why string) {
	out.recommendation = "up"
	what, c := "the limit", f.capacity
	switch {
	case c.RatePerMinute > 0 && f.Utilisation != nil && *f.Utilisation <= tooFull:
		what = "rate_per_minute" // slots are free: more of them would not help
	case c.PerInstance > 0:
		out.instances = f.enough()
		what = fmt.Sprintf("the instances from %d to %d", f.instances, out.instances)
		if out.instances == f.instances {
			what = "capacity.active" // more instances would not raise the limit
		}
	}
	out.reason = fmt.Sprintf("%s: raise %s, if the origin bears it", why, what)
}

// enough is how many instances would serve demand: so many that 60 % of their sessions are in use, and that whoever
// waits would have come in within the target, at the stay measured; as many as capacity.active can use, at most.
func (f *figures) enough() int64 {
	sessions := float64(f.Active) / wanted
	switch {
	case f.Waiting == 0:
	case f.MeasuredStayS != nil && f.TargetWaitS > 0:
		sessions = max(sessions, float64(f.Waiting)**f.MeasuredStayS/float64(f.TargetWaitS))
	default:
		sessions = max(sessions, float64(f.Active+f.Waiting)/wanted)
	}
	per := float64(f.capacity.PerInstance)
	n := max(math.Ceil(sessions/per), float64(f.instances+1))
	if a := f.capacity.Active; a > 0 {
		n = min(n, max(math.Ceil(float64(a)/per), float64(f.instances)))
	}
	return int64(min(n, math.MaxInt32))
}

// down says what could shrink. The last instance stays: whether none may run is not for figures to say.
func (f *figures) down(out *advice, why string) {
	if f.capacity.PerInstance == 0 {
		out.recommendation = "down"
		out.reason = why
		return
	}
	fits := max(int64(math.Ceil(float64(f.Active)/wanted/float64(f.capacity.PerInstance))), 1)
	if fits >= f.instances {
		out.reason = fmt.Sprintf("%s, which takes %d", why, max(f.instances, 0))
		return
	}
	out.recommendation, out.instances = "down", fits
	out.reason = fmt.Sprintf("%s: %d instances would do instead of %d", why, fits, f.instances)
}
