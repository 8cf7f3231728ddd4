package loadtest

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText writes r for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	p := &printer{w: w}
	p.f("\nRoom %s at %s", r.Room, r.URL)
	if r.Order != "" {
		p.f(", order %s", r.Order)
	}
	p.f("\n%s; arrivals over %s, stay %s, %s vanish while waiting; seed %d\n", r.Machine.line(), seconds(r.Options.RampS), seconds(r.Options.StayS), percent(r.Options.Abandon), r.Options.Seed)
	if r.Interrupted {
		p.f("Interrupted: the figures are of what ran so far.\n")
	}
	if len(r.Steps) > 1 {
		p.steps(r.Steps)
	}
	for i := range r.Steps {
		p.step(&r.Steps[i], r.Options.Transport, len(r.Steps) > 1)
	}
	p.f("\n%s\n", r.Verdict())
	return p.err
}

// Verdict is the run in one line.
func (r *Report) Verdict() string {
	var total, unjudged int64
	for i := range r.Steps {
		for _, f := range r.Steps[i].Faults.all() {
			if f.Count == nil {
				unjudged++
			} else {
				total += *f.Count
			}
		}
	}
	switch {
	case len(r.Steps) == 0:
		return "Nothing ran."
	case total > 0:
		return fmt.Sprintf("FAULTS: %s. Each must be 0.", thousands(total))
	case unjudged > 0:
		return "No faults among those that could be judged. With an admin token all are."
	}
	return "No faults: nobody was overtaken, admitted twice, admitted beyond the limit, or lost."
}

func (m *Machine) line() string { return fmt.Sprintf("Load from %d CPUs, %s, %s", m.CPUs, m.OS, m.Go) }

type printer struct {
	w   io.Writer
	err error
}

func (p *printer) f(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// table writes rows in columns: the first to the left, the others to the right.
func (p *printer) table(rows [][]string) {
	if p.err != nil || len(rows) == 0 {
		return
	}
	tw := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	width := 0
	for _, r := range rows {
		width = max(width, len([]rune(r[0])))
	}
	for _, r := range rows {
		fmt.Fprintf(tw, "  %s%s", r[0], strings.Repeat(" ", width-len([]rune(r[0]))))
		for _, c := range r[1:] {
			fmt.Fprintf(tw, "\t%s", c)
		}
		fmt.Fprint(tw, "\t\n")
	}
	p.err = tw.Flush()
}

func (p *printer) steps(steps []Step) {
	p.f("\n")
	p.table(stepRows(steps))
}

// stepRows is the table of a run of several sizes.
func stepRows(steps []Step) [][]string {
	rows := [][]string{{"visitors", "answered", "faults", "enter p50", "p99", "status p50", "p99", "told p99", "places each", "wait p50", "admitted/s", "server CPU", "RSS max"}}
	for i := range steps {
		s := &steps[i]
		var faults int64
		for _, f := range s.Faults.all() {
			if f.Count != nil {
				faults += *f.Count
			}
		}
		enter, status := s.latency("enter"), s.latency("status")
		told, cpu, rss := "–", "–", "–"
		if s.Told != nil {
			told = millis(s.Told.P99MS)
		}
		if s.Server.Unavailable == "" {
			cpu, rss = fmt.Sprintf("%.1f s", s.Server.CPUSeconds), mebibytes(s.Server.RSSMax)
		}
		rows = append(rows, []string{thousands(int64(s.Visitors)), thousands(s.Crowd.Answered), thousands(faults),
			millis(enter.P50MS), millis(enter.P99MS), millis(status.P50MS), millis(status.P99MS), told,
			millis(s.PlaceUpdates.P50MS), millis(s.EnterToAdmitted.P50MS),
			fmt.Sprintf("%.1f", s.Admissions.PerSecond), cpu, rss})
	}
	return rows
}

func (s *Step) latency(op string) Quantile {
	for _, l := range s.Latency {
		if l.Op == op {
			return l.Response
		}
	}
	return Quantile{}
}

func (p *printer) step(s *Step, transport string, titled bool) {
	if titled {
		p.f("\n== %s visitors ==\n", thousands(int64(s.Visitors)))
	}
	p.f("\nWhat must never happen\n")
	var rows [][]string
	for _, f := range s.Faults.all() {
		n := "?"
		if f.Count != nil {
			n = thousands(*f.Count)
		}
		rows = append(rows, []string{f.Name, n, f.JudgedBy})
	}
	p.left(rows)
	for _, f := range s.Faults.all() {
		for _, e := range f.Examples {
			p.f("    %s: %s\n", f.Name, e)
		}
	}
	p.f("\nVisitors, in %s\n", seconds(s.DurationS))
	p.table(s.Crowd.rows())
	p.f("\nLatency, from when each exchange was due\n")
	p.table(latencyRows(s, transport))
	if note := toldNote(s, transport); note != "" {
		p.f("  %s\n", note)
	}
	if more := serviceRows(s); len(more) > 0 {
		p.f("\nThe same from when it was sent (the rest is this load generator's own queue)\n")
		p.table(append(latencyHead(), more...))
	}
	p.f("\nAdmissions  %s, %.1f/s, at most %.0f in one second\n", thousands(s.Admissions.Total), s.Admissions.PerSecond, s.Admissions.Peak)
	if len(s.Errors) > 0 {
		p.f("\nErrors met, and retried where that made sense\n")
		rows = nil
		for _, e := range s.Errors {
			rows = append(rows, []string{e.Kind, thousands(e.Count)})
		}
		p.table(rows)
	}
	p.server(s)
}

// left writes rows of name, number, words.
func (p *printer) left(rows [][]string) {
	for _, r := range rows {
		p.f("  %-20s %6s  %s\n", r[0], r[1], r[2])
	}
}

// rows are the outcomes that occurred.
func (c *Crowd) rows() [][]string {
	rows := [][]string{{"came", thousands(c.Arrived)}, {"enter answered", thousands(c.Answered)}, {"never answered", thousands(c.Unanswered)},
		{"admitted", thousands(c.Admitted)}, {"used the admission", thousands(c.Claimed)}, {"left after their stay", thousands(c.Left)}}
	some := func(name string, n int64) {
		if n != 0 {
			rows = append(rows, []string{name, thousands(n)})
		}
	}
	some("refused", c.Refused)
	some("vanished while waiting", c.Vanished)
	some("missed the claim time", c.MissedClaim)
	some("overstayed the session", c.Expired)
	some("ended by the server", c.Ended)
	some("gave up after errors", c.Disconnected)
	some("still waiting", c.Waiting)
	some("still inside", c.Inside)
	return rows
}

func latencyHead() [][]string { return [][]string{{"", "count", "mean", "p50", "p95", "p99", "max"}} }

func quantileRow(name string, q *Quantile) []string {
	return []string{name, thousands(int64(q.Count)), millis(q.MeanMS), millis(q.P50MS), millis(q.P95MS), millis(q.P99MS), millis(q.MaxMS)}
}

// toldBy names how the news of an admission came.
func toldBy(transport string) string {
	return map[string]string{"poll": "by polling", "sse": "by sse", "ws": "by ws"}[transport]
}

// toldNote says why slots that are known late were not given late.
func toldNote(s *Step, transport string) string {
	if s.Told == nil || transport != "poll" {
		return ""
	}
	return "Who polls learns of her turn when she next asks; --transport sse shows how fast usher tells it."
}

func latencyRows(s *Step, transport string) [][]string {
	rows := latencyHead()
	for i := range s.Latency {
		rows = append(rows, quantileRow(s.Latency[i].Op, &s.Latency[i].Response))
	}
	if s.Told != nil {
		rows = append(rows, quantileRow("freed slot to told, "+toldBy(transport), s.Told))
	}
	if s.PlaceUpdates.Count > 0 {
		rows = append(rows, quantileRow("between places told", &s.PlaceUpdates))
	}
	if s.EnterToAdmitted.Count > 0 {
		rows = append(rows, quantileRow("enter to admitted", &s.EnterToAdmitted))
	}
	return rows
}

// serviceRows are those exchanges whose service time differs from the response time by more than a fifth.
func serviceRows(s *Step) (rows [][]string) {
	for i := range s.Latency {
		l := &s.Latency[i]
		if differ(l.Response.P50MS, l.Service.P50MS) || differ(l.Response.P99MS, l.Service.P99MS) {
			rows = append(rows, quantileRow(l.Op, &l.Service))
		}
	}
	return rows
}

func differ(response, service float64) bool { return response-service > max(0.5, response/5) }

func (p *printer) server(s *Step) {
	v := &s.Server
	if v.Unavailable != "" {
		p.f("\nServer      no figures: %s\n", v.Unavailable)
	} else {
		p.f("\nServer      CPU %s, memory %s before, %s at most, %s after; %s goroutines\n",
			v.cpu(), mebibytes(v.RSSBefore), mebibytes(v.RSSMax), mebibytes(v.RSSAfter), thousands(v.Goroutines))
	}
	if v.Restarted {
		p.f("            It was restarted meanwhile; CPU is that of the last process.\n")
	}
	p.f("This bench  CPU %.1f s (%.0f %% of one core), %s connections\n", s.Client.CPUSeconds, s.Client.CPUPercent, thousands(s.Client.Connections))
	if v.ClockSkewMS > 50 || v.ClockSkewMS < -50 {
		p.f("            The server's clock is %s ahead of ours; times told are corrected by it.\n", millis(v.ClockSkewMS))
	}
	if rows := engineRows(v); len(rows) > 1 {
		p.f("\nEngine, from /metrics\n")
		p.table(rows)
	}
}

func (v *Server) cpu() string {
	if v.Restarted { // the share of the time is not known
		return fmt.Sprintf("%.1f s", v.CPUSeconds)
	}
	return fmt.Sprintf("%.1f s (%.0f %% of one core)", v.CPUSeconds, v.CPUPercent)
}

func engineRows(v *Server) [][]string {
	rows := [][]string{{"", "count", "mean", "p50", "p95", "p99"}}
	for _, h := range v.Engine {
		name := h.Name
		if h.Labels != "" {
			name += "{" + h.Labels + "}"
		}
		show := func(x float64) string { return fmt.Sprintf("%.4g", x) }
		if strings.HasSuffix(h.Name, "_seconds") {
			show = func(x float64) string { return millis(x * 1000) }
		}
		rows = append(rows, []string{name, thousands(int64(h.Count)), show(h.Mean), show(h.P50), show(h.P95), show(h.P99)})
	}
	return rows
}

func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func millis(ms float64) string {
	switch {
	case ms == 0:
		return "0"
	case ms < 1:
		return fmt.Sprintf("%.0f µs", ms*1000)
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	case ms < 10_000:
		return fmt.Sprintf("%.2f s", ms/1000)
	}
	return fmt.Sprintf("%.1f s", ms/1000)
}

func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d > 10*time.Second {
		return d.Round(time.Second).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

func percent(share float64) string { return fmt.Sprintf("%.4g %%", share*100) }

func mebibytes(n int64) string {
	if n >= 10<<20 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
