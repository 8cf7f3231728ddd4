package affinity

import (
	"errors"

	"github.com/ushergo/usher/keylock"
)

// Stats are figures of the moment, and totals since Open.
type Stats struct {
	Sessions int
	Building int
	Draining bool
	Away     bool // the directory did not answer when it was last asked

	Built     uint64            // builds that made a session
	Failed    uint64            // builds that did not
	Elsewhere uint64            // uses that were another instance's to serve
	Ended     map[string]uint64 // sessions that ended, by Reason; every reason is there
}

// reasons name why sessions end.
var reasons = [...]struct {
	err  error
	name string
}{
	{keylock.ErrForced, "forced"}, {ErrLost, "lost"}, {ErrUnconfirmed, "unconfirmed"}, {ErrSuperseded, "superseded"}, {ErrIdle, "idle"},
	{ErrAge, "age"}, {ErrClosed, "closed"}, {ErrDraining, "draining"},
}

// retired is the reason of those that Retire ended.
const retired = "retired"

// Reason is a word for why a session ended: forced, lost, unconfirmed, superseded, idle, age, closed, draining; retired is
// every other, which Retire was given.
func Reason(why error) string {
	for _, r := range reasons {
		if errors.Is(why, r.err) {
			return r.name
		}
	}
	return retired
}

// ended counts. Called with mu held.
func (o *Owner[S]) ended(why error) {
	if o.counts.Ended == nil {
		o.counts.Ended = make(map[string]uint64)
	}
	o.counts.Ended[Reason(why)]++
}

// Stats are this owner's figures. Those of the lock are Locks().Stats().
func (o *Owner[S]) Stats() Stats {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.counts
	s.Sessions, s.Building, s.Draining, s.Away = len(o.sessions), o.building, o.draining, o.failing != nil
	s.Ended = map[string]uint64{retired: o.counts.Ended[retired]}
	for _, r := range reasons {
		s.Ended[r.name] = o.counts.Ended[r.name]
	}
	return s
}
