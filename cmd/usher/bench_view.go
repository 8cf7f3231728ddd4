package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ushergo/usher/internal/loadtest"
)

// benchView shows a run under way: a few lines redrawn in place on a terminal, one line every five seconds elsewhere.
type benchView struct {
	w         io.Writer
	title     string
	redraw    bool
	drawn     int // lines on the screen
	lastLine  time.Time
	lastDoing string
}

func newBenchView(w io.Writer, room, url string) *benchView {
	return &benchView{w: w, title: fmt.Sprintf("room %s at %s", room, url), redraw: terminal(w)}
}

func (v *benchView) show(p loadtest.Progress) {
	if v.redraw {
		v.paint(v.lines(p))
		return
	}
	if p.Doing != v.lastDoing {
		v.lastDoing, v.lastLine = p.Doing, time.Time{}
	}
	if time.Since(v.lastLine) < 5*time.Second {
		return
	}
	v.lastLine = time.Now()
	fmt.Fprintln(v.w, v.plain(p))
}

func (v *benchView) plain(p loadtest.Progress) string {
	var b strings.Builder
	if p.Steps > 1 {
		fmt.Fprintf(&b, "step %d/%d  ", p.Step, p.Steps)
	}
	if p.Doing != "" {
		b.WriteString(p.Doing)
		return b.String()
	}
	fmt.Fprintf(&b, "%4.0fs  came %d/%d  waiting %d  inside %d  gone %d  enter p99 %s  status p99 %s  errors %d  faults %d",
		p.Elapsed.Seconds(), p.Arrived, p.Visitors, p.Waiting, p.Inside, p.Done, short(p.Enter.P99MS), short(p.Status.P99MS), p.Errors, p.Faults)
	return b.String()
}

const barWidth = 44

func (v *benchView) lines(p loadtest.Progress) []string {
	head := v.title
	if p.Steps > 1 {
		head += fmt.Sprintf(" · step %d of %d", p.Step, p.Steps)
	}
	if p.Doing != "" {
		return []string{head, "  " + p.Doing + " …"}
	}
	head += fmt.Sprintf(" · %s · Ctrl-C ends it with a report", p.Elapsed.Round(time.Second))
	room := "not known (needs the admin token)"
	if p.Room {
		limit := ""
		if p.RoomLimit != nil {
			limit = fmt.Sprintf(" of %d", *p.RoomLimit)
		}
		room = fmt.Sprintf("%d waiting, %d%s active", p.RoomWaiting, p.RoomActive, limit)
	}
	return []string{
		head,
		fmt.Sprintf("  came     %s %d of %d", bar(p.Arrived, int64(p.Visitors)), p.Arrived, p.Visitors),
		fmt.Sprintf("  admitted %s %d", bar(p.Admitted, int64(p.Visitors)), p.Admitted),
		fmt.Sprintf("  gone     %s %d", bar(p.Done, int64(p.Visitors)), p.Done),
		fmt.Sprintf("  of ours  %d waiting, %d inside; %d connections, %d streams", p.Waiting, p.Inside, p.Workers, p.Streams),
		fmt.Sprintf("  room     %s", room),
		fmt.Sprintf("  enter    p50 %s  p95 %s  p99 %s  max %s", short(p.Enter.P50MS), short(p.Enter.P95MS), short(p.Enter.P99MS), short(p.Enter.MaxMS)),
		fmt.Sprintf("  status   p50 %s  p95 %s  p99 %s  max %s", short(p.Status.P50MS), short(p.Status.P95MS), short(p.Status.P99MS), short(p.Status.MaxMS)),
		fmt.Sprintf("  errors   %d met, %d faults seen by visitors (the log is judged at the end)", p.Errors, p.Faults),
	}
}

func bar(n, of int64) string {
	full := 0
	if of > 0 {
		full = int(min(n, of) * barWidth / of)
	}
	return strings.Repeat("█", full) + strings.Repeat("░", barWidth-full)
}

func short(ms float64) string {
	switch {
	case ms >= 10_000:
		return fmt.Sprintf("%.1fs", ms/1000)
	case ms >= 10:
		return fmt.Sprintf("%.0fms", ms)
	}
	return fmt.Sprintf("%.1fms", ms)
}

func (v *benchView) paint(lines []string) {
	var b strings.Builder
	if v.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", v.drawn)
	}
	b.WriteString("\x1b[J")
	for _, l := range lines {
		b.WriteString(l + "\n")
	}
	v.drawn = len(lines)
	io.WriteString(v.w, b.String())
}

// end clears what was drawn, so that the report stands alone.
func (v *benchView) end() {
	if v.redraw && v.drawn > 0 {
		fmt.Fprintf(v.w, "\x1b[%dA\x1b[J", v.drawn)
		v.drawn = 0
	}
}
