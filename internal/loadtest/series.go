package loadtest

import (
	"slices"
	"time"
)

// columns follows the room's size through the log, second by second.
type columns struct {
	start    time.Time // by the server's clock
	waiting  []int64   // last of the second
	active   []int64   // most of the second
	limit    []*int64
	admitted []int64
	first    time.Time // admissions
	last     time.Time
	total    int64
}

const maxSeconds = 24 * 3600

// open makes room for the second of at, carrying on what stood before.
func (c *columns) open(at time.Time, waiting, active int64, limit *int64) int {
	i := min(max(int(at.Sub(c.start)/time.Second), 0), maxSeconds)
	for len(c.waiting) <= i {
		if n := len(c.waiting); n > 0 {
			waiting, limit = c.waiting[n-1], c.limit[n-1]
		}
		c.waiting = append(c.waiting, waiting)
		c.active = append(c.active, active)
		c.limit = append(c.limit, limit)
		c.admitted = append(c.admitted, 0)
	}
	return i
}

// observe is the auditor's observer. before is what was active before the event.
func (c *columns) observe(e *logEvent, a *auditor, before int64) {
	if e.At.Before(c.start) {
		return
	}
	limit := limitOf(a)
	i := c.open(e.At, a.waiting, before, limit)
	c.waiting[i], c.limit[i] = a.waiting, limit
	c.active[i] = max(c.active[i], a.active)
	if e.Type == "admitted" {
		c.admitted[i]++
		if c.total == 0 {
			c.first = e.At
		}
		c.last = e.At
		c.total++
	}
}

func limitOf(a *auditor) *int64 {
	if a.limit < 0 {
		return nil
	}
	l := a.limit
	return &l
}

const charted = 300 // points of a series, at most

// chart fills in what is drawn over time.
func (s *step) chart(ev *evidence, out *Step) {
	t := s.tally
	out.Series.Source = "clients"
	if c := ev.columns; c != nil {
		out.Series.Source = "log"
		out.Admissions = Rate{Total: c.total, Peak: float64(maxOf(c.admitted))}
		if d := c.last.Sub(c.first).Seconds(); d > 0 {
			out.Admissions.PerSecond = float64(c.total-1) / d
		}
		group := (len(c.waiting) + charted - 1) / charted
		for i := 0; i < len(c.waiting); i += max(group, 1) {
			end := min(i+group, len(c.waiting))
			out.Series.TS = append(out.Series.TS, float64(i))
			out.Series.Waiting = append(out.Series.Waiting, c.waiting[end-1])
			out.Series.Active = append(out.Series.Active, maxOf(c.active[i:end]))
			out.Series.Limit = append(out.Series.Limit, c.limit[end-1])
			out.Series.Admitted = append(out.Series.Admitted, sum(c.admitted[i:end]))
		}
	} else {
		out.Admissions = s.admissionsSeen()
		for i := 0; i < len(t.crowd); i += len(t.crowd)/charted + 1 {
			p := t.crowd[i]
			out.Series.TS = append(out.Series.TS, p.t.Seconds())
			out.Series.Waiting = append(out.Series.Waiting, p.waiting)
			out.Series.Active = append(out.Series.Active, p.inside)
			out.Series.Limit = append(out.Series.Limit, nil)
			out.Series.Admitted = append(out.Series.Admitted, 0)
		}
	}
	for _, o := range []op{opEnter, opStatus} {
		l := LatencySeries{Op: o.String()}
		for i := range t.line[o].slots {
			h := &t.line[o].slots[i]
			if h.count == 0 {
				continue
			}
			l.TS = append(l.TS, (time.Duration(i) * t.line[o].width).Seconds())
			l.Count = append(l.Count, h.count)
			l.P50MS = append(l.P50MS, ms(h.quantile(0.5)))
			l.P95MS = append(l.P95MS, ms(h.quantile(0.95)))
			l.P99MS = append(l.P99MS, ms(h.quantile(0.99)))
		}
		if len(l.TS) > 0 {
			out.Series.Latency = append(out.Series.Latency, l)
		}
	}
	for i := range s.visitors {
		v := &s.visitors[i]
		points := t.samples[v.index]
		if len(points) == 0 {
			continue
		}
		sample := Sample{Pos: v.pos}
		for j := 0; j < len(points); j += len(points)/charted + 1 {
			sample.TS = append(sample.TS, points[j].t.Seconds())
			sample.Place = append(sample.Place, points[j].place)
		}
		if last := points[len(points)-1]; sample.TS[len(sample.TS)-1] < last.t.Seconds() {
			sample.TS = append(sample.TS, last.t.Seconds())
			sample.Place = append(sample.Place, last.place)
		}
		out.Samples = append(out.Samples, sample)
	}
}

// admissionsSeen is the rate as clients came to know it.
func (s *step) admissionsSeen() Rate {
	var seen []time.Time
	for i := range s.visitors {
		if v := &s.visitors[i]; !v.seenAt.IsZero() {
			seen = append(seen, v.seenAt)
		}
	}
	r := Rate{Total: int64(len(seen))}
	if len(seen) == 0 {
		return r
	}
	slices.SortFunc(seen, time.Time.Compare)
	if d := seen[len(seen)-1].Sub(seen[0]).Seconds(); d > 0 {
		r.PerSecond = float64(len(seen)-1) / d
	}
	for i, j := 0, 0; j < len(seen); j++ {
		for seen[j].Sub(seen[i]) >= time.Second {
			i++
		}
		r.Peak = max(r.Peak, float64(j-i+1))
	}
	return r
}

func maxOf(v []int64) int64 {
	if len(v) == 0 {
		return 0
	}
	return slices.Max(v)
}

func sum(v []int64) (n int64) {
	for _, x := range v {
		n += x
	}
	return n
}
