package affinity

import "time"

// StandStill makes the owner believe that its process did not run for d, as under SIGSTOP.
func (o *Owner[S]) StandStill(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ticked = o.ticked.Add(-d)
}
