package loadtest

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"
)

//go:embed report.html.tmpl
var reportHTML string

// htmlStep is a step as the page shows it.
type htmlStep struct {
	*Step
	Title   string
	Charts  []chart
	Crowd   [][]string
	Latency [][]string
	Note    string // to the latencies
	Service [][]string
	Engine  [][]string
	Faults  []namedFault
	CPU     string
	Open    bool
}

// WriteHTML writes r as one page that needs nothing else: no script, no font, no picture from elsewhere.
func (r *Report) WriteHTML(w io.Writer) error {
	page, err := template.New("report").Funcs(template.FuncMap{
		"thousands": thousands, "millis": millis, "seconds": seconds, "percent": percent, "mib": mebibytes,
		"count": func(n *int64) string {
			if n == nil {
				return "?"
			}
			return thousands(*n)
		},
		"clock":  func(t time.Time) string { return t.Format("2 January 2006, 15:04:05 MST") },
		"oneDec": func(f float64) string { return fmt.Sprintf("%.1f", f) },
	}).Parse(reportHTML)
	if err != nil {
		return err
	}
	data := struct {
		*Report
		StepRows [][]string
		Shown    []htmlStep
		Verdict  string
		Load     string
	}{Report: r, Verdict: r.Verdict(), Load: r.Machine.line()}
	if len(r.Steps) > 1 {
		data.StepRows = stepRows(r.Steps)
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		h := htmlStep{Step: s, Charts: s.charts(), Crowd: s.Crowd.rows(), Latency: latencyRows(s, r.Options.Transport), Note: toldNote(s, r.Options.Transport), Service: serviceRows(s),
			Faults: s.Faults.all(), CPU: s.Server.cpu(), Open: i == len(r.Steps)-1}
		h.Title = thousands(int64(s.Visitors)) + " visitors"
		if len(h.Service) > 0 {
			h.Service = append(latencyHead(), h.Service...)
		}
		if rows := engineRows(&s.Server); len(rows) > 1 {
			h.Engine = rows
		}
		data.Shown = append(data.Shown, h)
	}
	return page.Execute(w, data)
}
