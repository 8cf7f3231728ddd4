package room

import "time"

// rate holds admissions to R a minute with GCRA (ITU-T I.371): burst b = ⌈R/60⌉, interval
// T = 60 s / (R − b + 1). Any half-open 60 s then hold at most b + ⌈60 s / T⌉ − 1 = R, and
// R − b + 1 a minute, 98 % of R, can be kept up. The zero rate lets everything through.
type rate struct {
	interval time.Duration // T, rounded up; 0: no rate
	slack    time.Duration // (b − 1) · T
	next     time.Duration // theoretical arrival time of the next admission, room time
}

// set changes the rate at room time now. A change earns no burst: what was admitted under
// the old rate is not known to the new one.
func (r *rate) set(perMinute int64, now time.Duration, first bool) {
	if perMinute <= 0 {
		*r = rate{}
		return
	}
	burst := (perMinute + 59) / 60
	per := perMinute - burst + 1
	t := time.Duration((int64(time.Minute) + per - 1) / per)
	n := rate{interval: t, slack: time.Duration(burst-1) * t}
	switch {
	case n.interval == r.interval && n.slack == r.slack: // 60 and 61 a minute share an interval
		return
	case first:
		n.next = now
	default:
		n.next = max(now, r.next-r.slack) + n.slack
	}
	*r = n
}

// wait is how long after now the next admission is allowed; 0: at once.
func (r *rate) wait(now time.Duration) time.Duration {
	return max(0, r.next-r.slack-now)
}

// take counts one admission at now.
func (r *rate) take(now time.Duration) {
	if r.interval > 0 {
		r.next = max(r.next, now) + r.interval
	}
}
