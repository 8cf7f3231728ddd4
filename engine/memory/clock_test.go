package memory

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func TestClockStepIsNotFollowedAtOnce(t *testing.T) { // cases/room 15
	for _, step := range []time.Duration{-2 * time.Second, time.Minute, -time.Hour, 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			c := newClock()
			log := slog.New(slog.DiscardHandler)
			began := time.Now()
			off := func() time.Duration { return time.Duration(c.now()-time.Now().UnixMicro()) * time.Microsecond }
			follow := func(seconds int, step time.Duration) {
				for range seconds {
					time.Sleep(time.Second)
					c.follow(time.Now().Add(step), log)
				}
			}
			follow(100, 0)
			if off() != 0 {
				t.Errorf("off by %v without a step", off())
			}
			follow(59, step)
			if off().Abs() > 60*slew*time.Microsecond {
				t.Errorf("%v after the step: followed by %v", time.Since(began), off())
			}
			follow(30, 0) // it was a mistake, and is mended
			if off().Abs() > 60*slew*time.Microsecond {
				t.Errorf("%v after the step: followed by %v", time.Since(began), off())
			}
			follow(61, step) // it stays
			if (off() - step).Abs() > time.Second {
				t.Errorf("a minute after the step of %v: followed by %v", step, off())
			}
		})
	}
}
