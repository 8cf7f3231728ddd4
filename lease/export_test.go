package lease

import "time"

// WithClock gives a worker a clock of its own.
func WithClock(o Options, elapsed func() time.Duration) Options {
	o.elapsed = elapsed
	return o
}
