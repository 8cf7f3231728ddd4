package flight_test

import (
	"slices"
	"time"
)

// twin is the group as one would write it if nothing had to be fast: plain slices, everything looked up anew. It says
// what every caller must have got and which loads must be running after each step of a schedule.
type twin struct {
	conc, maxPending, maxFlights, maxPerKey int // 0: no limit
	reserve                                 map[string]int
	finish                                  bool // policy FinishLoad

	now   time.Duration
	loads []*tload // alive, in order of creation
	turn  []string // classes with pending loads, next first
	memo  map[string]*tmemo
	fills []int
}

type tload struct {
	key, class                                         string
	leader                                             int // the caller whose function it is: names the load
	state                                              string
	callers                                            []*tcaller
	solo, told, delivered, abandoned, forgotten, heeds bool
	left                                               bool // by all its callers
	value                                              result
}

type tcaller struct {
	id    int
	key   string
	class string
	heeds bool
	in    *tload // waits here
	res   *result
}

type tmemo struct {
	failures int
	until    time.Duration
	alone    bool
}

// result is what a caller gets: the load whose value or failure it is, or the name of a refusal.
type result struct {
	load       int
	what       string // value, fail, backoff, busy, left, panic, ctx
	superseded bool
}

func (t *twin) slot(key string) (s []*tload) {
	for _, l := range t.loads {
		if l.key == key && !l.solo {
			s = append(s, l)
		}
	}
	return s
}

func (t *twin) count(f func(*tload) bool) (n int) {
	for _, l := range t.loads {
		if f(l) {
			n++
		}
	}
	return n
}

func (t *twin) call(c *tcaller, solo bool) {
	if m := t.memo[c.key]; m != nil && t.now < m.until {
		if !m.alone {
			c.res = &result{what: "backoff"}
			return
		}
		solo = true
	}
	var s []*tload
	if !solo {
		s = t.slot(c.key)
		for _, l := range s {
			if l.state == "running" && (l.abandoned || l.forgotten || l.told && !l.delivered) {
				continue
			}
			switch {
			case l.delivered:
				r := l.value
				c.res = &r
			case t.maxPerKey > 0 && len(l.callers) >= t.maxPerKey:
				c.res = &result{what: "busy"}
			default:
				l.callers, c.in, l.left = append(l.callers, c), l, false
			}
			return
		}
	}
	if t.maxFlights > 0 && len(t.loads) >= t.maxFlights {
		c.res = &result{what: "busy"}
		return
	}
	l := &tload{key: c.key, class: c.class, leader: c.id, callers: []*tcaller{c}, solo: solo, heeds: c.heeds}
	c.in = l
	t.loads = append(t.loads, l)
	if len(s) > 0 {
		l.state = "queued"
		return
	}
	t.submit(l)
}

// submit: first whoever waits and may start does; then l may, if nobody of its class waits.
func (t *twin) submit(l *tload) {
	t.grant()
	waiting := func(o *tload) bool { return o.state == "pending" }
	if !slices.Contains(t.turn, l.class) && t.fits(l.class) {
		l.state = "running"
		return
	}
	if t.count(waiting) >= t.maxPending {
		t.remove(l)
		t.tell(l, result{what: "busy"})
		return
	}
	l.state = "pending"
	// The order of waiting is that of submission, which for a queued load is now.
	t.loads = append(slices.DeleteFunc(t.loads, func(o *tload) bool { return o == l }), l)
	if !slices.Contains(t.turn, l.class) {
		t.turn = append(t.turn, l.class)
	}
}

func (t *twin) fits(class string) bool {
	if t.conc == 0 {
		return true
	}
	run := map[string]int{}
	for _, l := range t.loads {
		if l.state == "running" {
			run[l.class]++
		}
	}
	if run[class] < t.reserve[class] {
		return true
	}
	common := t.conc
	for _, r := range t.reserve {
		common -= r
	}
	for c, n := range run {
		common -= max(0, n-t.reserve[c])
	}
	return common > 0
}

func (t *twin) grant() {
	for i := 0; i < len(t.turn); i++ {
		class := t.turn[i]
		if !t.fits(class) {
			continue
		}
		more := false
		var first *tload
		for _, l := range t.loads {
			if l.state == "pending" && l.class == class {
				if first != nil {
					more = true
					break
				}
				first = l
			}
		}
		first.state = "running"
		t.turn = slices.Delete(t.turn, i, i+1)
		if more {
			t.turn = append(t.turn, class)
		}
		i = -1
	}
}

func (t *twin) remove(l *tload) {
	t.loads = slices.DeleteFunc(t.loads, func(o *tload) bool { return o == l })
	if l.state == "pending" && t.count(func(o *tload) bool { return o.state == "pending" && o.class == l.class }) == 0 {
		t.turn = slices.DeleteFunc(t.turn, func(c string) bool { return c == l.class })
	}
}

func (t *twin) tell(l *tload, r result) {
	if l.told {
		return
	}
	l.told = true
	r.superseded = l.forgotten && r.what == "value"
	l.value = r
	for _, c := range l.callers {
		c.in, c.res = nil, &r
	}
	l.callers = nil
}

// leave is a caller whose context ends.
func (t *twin) leave(c *tcaller) {
	l := c.in
	if l == nil {
		return
	}
	c.in, c.res = nil, &result{what: "left"}
	l.callers = slices.DeleteFunc(l.callers, func(o *tcaller) bool { return o == c })
	if len(l.callers) > 0 {
		return
	}
	if l.state != "running" {
		t.remove(l)
		return
	}
	l.left = true
	if !t.finish || l.solo {
		l.abandoned = true
		if l.heeds {
			t.end(l, "ctx")
		}
	}
}

// end is the return of a load: value, fail, alone, panic or ctx (its context's error).
func (t *twin) end(l *tload, how string) {
	t.learn(l, how)
	if how == "value" && !l.told && !l.forgotten && !l.solo {
		t.fills = append(t.fills, l.leader)
	}
	t.remove(l)
	released := t.outcome(l, how)
	if s := t.slot(l.key); !l.solo && len(s) > 0 {
		t.submit(s[0])
	}
	t.grant()
	for _, c := range released {
		t.call(c, true)
	}
}

func (t *twin) deliver(l *tload, how string) {
	if l.told {
		return
	}
	t.learn(l, how)
	if how == "value" && !l.forgotten && !l.solo {
		t.fills = append(t.fills, l.leader)
	}
	released := t.outcome(l, how)
	l.delivered = how == "value"
	if how == "alone" && !l.solo {
		l.solo = true
		if s := t.slot(l.key); len(s) > 0 {
			t.submit(s[0])
			t.grant()
		}
	}
	for _, c := range released {
		t.call(c, true)
	}
}

// outcome tells the callers, but those who must load for themselves.
func (t *twin) outcome(l *tload, how string) (released []*tcaller) {
	if how == "alone" && !l.told {
		for _, c := range l.callers {
			if c.id != l.leader {
				released = append(released, c)
			}
		}
		l.callers = slices.DeleteFunc(l.callers, func(c *tcaller) bool { return c.id != l.leader })
		how = "value"
	}
	t.tell(l, result{load: l.leader, what: how})
	return released
}

// learn is what a load's result means for those who come later.
func (t *twin) learn(l *tload, how string) {
	if l.told || l.forgotten || l.abandoned {
		return
	}
	switch how {
	case "value":
		delete(t.memo, l.key)
	case "alone":
		t.memo[l.key] = &tmemo{alone: true, until: t.now + 10*time.Second}
	case "fail":
		m := t.memo[l.key]
		if m != nil && !m.alone && t.now < m.until {
			return
		}
		if m == nil || m.alone || t.now > m.until+hold(m.failures) {
			m = &tmemo{}
			t.memo[l.key] = m
		}
		m.failures++
		m.until = t.now + hold(m.failures)
	}
}

// hold is the default schedule of a transient failure.
func hold(failures int) time.Duration {
	d := 100 * time.Millisecond
	for range failures - 1 {
		d = min(2*d, 10*time.Second)
	}
	return d
}

func (t *twin) forget(key string) {
	delete(t.memo, key)
	for _, l := range t.slot(key) {
		if l.state == "running" {
			l.forgotten = true
		}
	}
}

func (t *twin) forgetAll() {
	clear(t.memo)
	for _, l := range t.loads {
		if l.state == "running" {
			l.forgotten = true
		}
	}
}
