package kubernetes

import "time"

// Hasten makes a cluster that nothing has asked yet impatient.
func (c *Cluster) Hasten() {
	c.timing = timing{list: 5 * time.Second, watch: time.Second, silent: 200 * time.Millisecond, idle: 2 * time.Second,
		minPause: 10 * time.Millisecond, maxPause: 50 * time.Millisecond}
}

// Watches is how many sets of pods are being watched.
func (c *Cluster) Watches() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pods)
}
