package memory_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/flight/flighttest"
)

func TestFlights(t *testing.T) {
	flighttest.TestStore(t, func(*testing.T) flighttest.Fixture {
		var us atomic.Int64
		us.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
		return flighttest.Fixture{
			Space:   "test",
			Store:   memory.NewFlights(func() time.Time { return time.UnixMicro(us.Add(1)) }),
			Advance: func(d time.Duration) { us.Add(d.Microseconds()) },
		}
	})
}
