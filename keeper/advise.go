package keeper

import "time"

// Advice is how many workers a space should have.
type Advice struct {
	Workers     int    `json:"workers"`     // living
	Connections int    `json:"connections"` // started, held or not
	Cap         int    `json:"cap"`         // of one worker
	Needed      int    `json:"needed"`      // connections / cap, rounded up, at least 1
	Recommended int    `json:"recommended"` // Workers, or Needed once that has been so for long enough
	Reason      string `json:"reason"`
}

// How long more workers must have been needed before more are recommended, and fewer before fewer.
const (
	OutAfter = 2 * time.Minute
	InAfter  = 15 * time.Minute
)

// advisor is pure: times are any monotonic clock's.
type advisor struct {
	seen       bool
	below      time.Duration // since when fewer workers live than are needed, or more; as side says
	side       int           // -1 too few, 0 right, 1 too many
	mostNeeded int           // while too many: the most that were needed meanwhile
}

// advise looks at a moment's figures.
func (a *advisor) advise(now time.Duration, workers, connections, capacity int) Advice {
	capacity = max(capacity, 1)
	v := Advice{Workers: workers, Connections: connections, Cap: capacity, Needed: max((connections+capacity-1)/capacity, 1), Recommended: workers}
	side := 0
	switch {
	case workers < v.Needed:
		side = -1
	case workers > v.Needed:
		side = 1
	}
	if !a.seen || side != a.side {
		a.seen, a.side, a.below, a.mostNeeded = true, side, now, 0
	}
	a.mostNeeded = max(a.mostNeeded, v.Needed)
	switch stood := now - a.below; {
	case side == 0:
		v.Reason = "as many as needed"
	case side < 0 && stood >= OutAfter:
		v.Recommended, v.Reason = v.Needed, "more have been needed for 2 min"
	case side < 0:
		v.Reason = "more are needed; they are recommended after 2 min"
	case stood >= InAfter:
		v.Recommended, v.Reason = min(a.mostNeeded, workers), "fewer have been enough for 15 min"
	default:
		v.Reason = "fewer are enough; they are recommended after 15 min"
	}
	return v
}
