package relay

import "time"

// Tuning bounds what one partition on its way to one sink holds and how it tries again. The zero value is a good one.
type Tuning struct {
	// Window is how many events are read ahead of the cursor; default 10,000. An event that fails holds up the others once
	// so many are behind it.
	Window int
	// WindowBytes bounds them too; default 16 MiB.
	WindowBytes int
	// Batch is how many events go in one Send, within the sink's Limits; default 500.
	Batch int
	// InFlight is how many Sends run at once; default 4.
	InFlight int
	// Attempts is how often an event may fail while the sink takes others, before it goes to the dead letters; default 8.
	Attempts int
	// GiveUp is how long it is tried in any case, unless the window is full; default 1 min.
	GiveUp time.Duration
	// Backoff is the longest first pause after a failure; it doubles up to MaxBackoff, and the pause is drawn between 0
	// and it (full jitter). Defaults 100 ms, 30 s.
	Backoff, MaxBackoff time.Duration
}

func (t Tuning) withDefaults() Tuning {
	def := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	def(&t.Window, 10_000)
	def(&t.WindowBytes, 16<<20)
	def(&t.Batch, 500)
	def(&t.InFlight, 4)
	def(&t.Attempts, 8)
	if t.GiveUp <= 0 {
		t.GiveUp = time.Minute
	}
	if t.Backoff <= 0 {
		t.Backoff = 100 * time.Millisecond
	}
	if t.MaxBackoff <= 0 {
		t.MaxBackoff = 30 * time.Second
	}
	return t
}

// backoff is a pause after the nth failure in a row; roll is drawn from [0, 1).
func (t Tuning) backoff(n int, roll float64) time.Duration {
	d := t.MaxBackoff
	if n--; n < 20 && t.Backoff<<n < d && t.Backoff<<n > 0 {
		d = t.Backoff << n
	}
	return time.Duration(roll * float64(d))
}

// Alarms are why a partition does not move and somebody should look.
const (
	AlarmDeadFull = "dead_letters_full" // goes on by itself once there is room
	AlarmGap      = "gap"               // goes on when somebody says resume
	AlarmDenied   = "denied"            // the sink refuses everything; tried again at MaxBackoff
	AlarmStalled  = "stalled"           // nothing was done for five minutes though there is something to do
	AlarmSource   = "source"            // the source cannot be read
)
