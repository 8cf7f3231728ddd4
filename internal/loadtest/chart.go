package loadtest

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// A chart is lines over time. Its SVG is stretched to whatever room there is, with strokes that do not stretch; the
// words around it are HTML, so that they keep their size on a phone.
type chart struct {
	Title  string
	Note   string
	YUnit  string
	Lines  []line
	Area   []template.HTML // drawn below the lines
	YTicks []tick
	XTicks []tick
	Empty  bool

	xMax       float64
	yMin, yMax float64
	log        bool
}

type line struct {
	Name  string
	Class string // c1 … c6, a colour of the page
	Path  string // of an SVG
	Last  string // the value at the end, for those who cannot see
}

// tick is a mark on an axis, At per cent from the left or the top.
type tick struct {
	At    float64
	Label string
}

const (
	chartW = 1000.0
	chartH = 300.0
)

type xy struct{ x, y []float64 }

// newChart scales and draws lines that share their axes. names, classes and data go together.
func newChart(title, note, unit string, log bool, names, classes []string, data []xy) chart {
	c := chart{Title: title, Note: note, YUnit: unit, log: log, yMin: math.Inf(1)}
	for _, d := range data {
		for i, y := range d.y {
			if log && y <= 0 {
				continue
			}
			c.xMax, c.yMax, c.yMin = max(c.xMax, d.x[i]), max(c.yMax, y), min(c.yMin, y)
		}
	}
	if c.yMax == 0 {
		c.Empty = true
		return c
	}
	c.xMax = max(c.xMax, 1)
	if log {
		c.yMin, c.yMax = math.Pow(10, math.Floor(math.Log10(c.yMin))), math.Pow(10, math.Ceil(math.Log10(c.yMax)))
		if c.yMin == c.yMax {
			c.yMax *= 10
		}
		for v := c.yMin; v <= c.yMax*1.001; v *= 10 {
			c.YTicks = append(c.YTicks, tick{c.top(v), axisMillis(v)})
		}
	} else {
		step := niceStep(c.yMax, 4)
		c.yMin, c.yMax = 0, step*math.Ceil(c.yMax/step)
		for v := 0.0; v <= c.yMax*1.001; v += step {
			c.YTicks = append(c.YTicks, tick{c.top(v), short(v)})
		}
	}
	step := niceTime(c.xMax)
	for v := 0.0; v <= c.xMax; v += step {
		if at := 100 * v / c.xMax; at < 97 {
			c.XTicks = append(c.XTicks, tick{at, axisTime(v)})
		}
	}
	for i, d := range data {
		l := line{Name: names[i], Class: classes[i], Path: c.path(d)}
		if n := len(d.y); n > 0 {
			l.Last = short(d.y[n-1])
		}
		c.Lines = append(c.Lines, l)
	}
	return c
}

// top is how far down v is, in per cent.
func (c *chart) top(v float64) float64 {
	if c.log {
		v = max(v, c.yMin)
		return 100 * (1 - (math.Log10(v)-math.Log10(c.yMin))/(math.Log10(c.yMax)-math.Log10(c.yMin)))
	}
	return 100 * (1 - v/c.yMax)
}

func (c *chart) path(d xy) string {
	var b strings.Builder
	for i := range d.x {
		verb := "L"
		if i == 0 {
			verb = "M"
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", verb, d.x[i]/c.xMax*chartW, c.top(d.y[i])/100*chartH)
	}
	if len(d.x) == 1 {
		b.WriteString("h1") // a single value is a dot
	}
	return b.String()
}

// niceStep divides max into about n parts of 1, 2 or 5 times a power of ten.
func niceStep(max float64, n int) float64 {
	raw := max / float64(n)
	p := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*p >= raw {
			return math.Max(m*p, 1)
		}
	}
	return 10 * p
}

func niceTime(max float64) float64 {
	for _, s := range []float64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400} {
		if max/s <= 6 {
			return s
		}
	}
	return max / 6
}

func axisTime(s float64) string {
	if s < 60 || math.Mod(s, 60) != 0 {
		return fmt.Sprintf("%.3g s", s)
	}
	return fmt.Sprintf("%.4g min", s/60)
}

func axisMillis(ms float64) string {
	switch {
	case ms < 0.99:
		return fmt.Sprintf("%.3g µs", ms*1000)
	case ms < 999:
		return fmt.Sprintf("%.3g ms", ms)
	}
	return fmt.Sprintf("%.4g s", ms/1000)
}

func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case v >= 10_000:
		return fmt.Sprintf("%.3gk", v/1e3)
	}
	return fmt.Sprintf("%.4g", v)
}

// charts are those of one step.
func (s *Step) charts() []chart {
	var out []chart
	ints := func(t []float64, v []int64) xy {
		d := xy{x: t}
		for _, y := range v {
			d.y = append(d.y, float64(y))
		}
		return d
	}
	var names, classes []string
	var data []xy
	for _, sample := range s.Samples {
		names = append(names, fmt.Sprintf("pos %s", thousands(int64(sample.Pos))))
		classes = append(classes, fmt.Sprintf("c%d", 1+len(names)%2))
		data = append(data, ints(sample.TS, sample.Place))
	}
	places := newChart("Place over time", fmt.Sprintf("%d visitors, spread over the crowd. A line that reaches 0 was let in.", len(data)), "place", false, names, classes, data)
	for i := range places.Lines {
		places.Lines[i].Class = "way"
	}
	out = append(out, places)

	whose := "Of the whole room, from its log."
	if s.Series.Source != "log" {
		whose = "Of this run's visitors, as they know it."
	}
	out = append(out, newChart("Waiting", whose, "visitors", false, []string{"waiting"}, []string{"c1"}, []xy{ints(s.Series.TS, s.Series.Waiting)}))

	names, classes, data = []string{"active"}, []string{"c1"}, []xy{ints(s.Series.TS, s.Series.Active)}
	var limit xy
	for i, l := range s.Series.Limit {
		if l != nil {
			limit.x, limit.y = append(limit.x, s.Series.TS[i]), append(limit.y, float64(*l))
		}
	}
	if len(limit.x) > 0 {
		names, classes, data = append(names, "limit"), append(classes, "limit"), append(data, limit)
	}
	out = append(out, newChart("Active against the limit", whose+" The most at one moment of each second.", "sessions", false, names, classes, data))

	for _, l := range s.Series.Latency {
		out = append(out, newChart("Latency of "+l.Op, "From when each exchange was due; logarithmic.", "", true,
			[]string{"p99", "p95", "p50"}, []string{"c3", "c2", "c1"}, []xy{{l.TS, l.P99MS}, {l.TS, l.P95MS}, {l.TS, l.P50MS}}))
	}
	return out
}
