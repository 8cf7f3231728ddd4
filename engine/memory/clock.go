package memory

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// clock tells the engine's time: the wall clock's as of the start, carried on by the monotonic
// clock. A step of the wall clock is not followed but made good at half a millisecond a second,
// so it neither refuses nor admits anybody early (cases/room 15).
type clock struct {
	start  time.Time
	offset atomic.Int64 // µs added so far
	warned bool
}

const (
	slewEvery = time.Second
	slew      = 500 // µs for each slewEvery
)

func newClock() *clock { return &clock{start: time.Now()} }

// now is µs since 1970.
func (c *clock) now() int64 {
	return c.start.UnixMicro() + time.Since(c.start).Microseconds() + c.offset.Load()
}

// follow is called every slewEvery with what the wall clock says.
func (c *clock) follow(wall time.Time, log *slog.Logger) {
	diff := wall.Round(0).UnixMicro() - c.now()
	if off := time.Duration(diff) * time.Microsecond; off.Abs() > time.Second {
		if !c.warned {
			log.Warn("the machine's clock was set; usher follows it slowly", "off", off)
		}
		c.warned = true
	} else {
		c.warned = false
	}
	c.offset.Add(min(max(diff, -slew), slew))
}
