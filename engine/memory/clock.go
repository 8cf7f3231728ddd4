package memory

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// clock tells the engine's time: the wall clock's as of the start, carried on by the monotonic
// clock. A step of the wall clock is not followed at once, so it neither refuses nor admits
// anybody early (cases/room 15); small differences are made good at half a millisecond a second.
// But a clock that was set and stays so for a minute is the machine's clock, and whoever
// verifies our tokens has it too: it is taken over. Room time loses or gains 2 s by that at most.
type clock struct {
	start  time.Time
	offset atomic.Int64  // µs added so far
	off    time.Duration // by which the wall clock was set; 0: it was not
	stable int           // looks in a row at which it was off by that
}

const (
	slewEvery = time.Second
	slew      = 500 // µs for each slewEvery
	believe   = 60  // looks
)

func newClock() *clock { return &clock{start: time.Now()} }

// now is µs since 1970.
func (c *clock) now() int64 {
	return c.start.UnixMicro() + time.Since(c.start).Microseconds() + c.offset.Load()
}

// follow is called every slewEvery with what the wall clock says.
func (c *clock) follow(wall time.Time, log *slog.Logger) {
	diff := wall.Round(0).UnixMicro() - c.now()
	off := time.Duration(diff) * time.Microsecond
	switch {
	case off.Abs() <= time.Second:
		c.off, c.stable = 0, 0
	case (off - c.off).Abs() > time.Second: // set, or set again
		log.Warn("the machine's clock was set; usher follows if it stays so for a minute", "by", off)
		c.off, c.stable = off, 1
	default:
		if c.stable++; c.stable >= believe {
			log.Warn("usher follows the machine's clock, which was set", "by", off)
			c.offset.Add(diff)
			c.off, c.stable = 0, 0
			return
		}
	}
	c.offset.Add(min(max(diff, -slew), slew))
}
