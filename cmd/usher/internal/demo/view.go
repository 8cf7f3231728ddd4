package demo

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ushergo/usher/internal/crowd"
)

// Look is how lines may be dressed.
type Look struct {
	Color bool // ANSI colours
	ASCII bool // no character beyond ASCII
}

// A section is lines that stay or go together when the window is low. A smaller
// rank stays longer.
type section struct {
	rank  int
	lines []row
}

// Render draws s into at most height lines of at most width columns. Where there
// is not room for all, the least important sections go first and long lines are
// cut; nothing ever wraps.
func Render(s State, width, height int, look Look) []string {
	width, height = max(width, 1), max(height, 1)
	p := painter{width: width, look: look}
	all := []section{
		{1, p.head(s)},
		{0, p.figures(s)},
		{4, p.line(s)},
		{2, p.addresses(s)},
		{5, p.totals(s)},
		{6, p.tempers(s)},
		{3, p.watch(s)},
	}
	used := func() (n int) {
		for _, sec := range all {
			n += len(sec.lines)
		}
		return n
	}
	for used() > height && len(all) > 1 {
		worst := 0
		for i := range all {
			if all[i].rank > all[worst].rank {
				worst = i
			}
		}
		all = append(all[:worst], all[worst+1:]...)
	}
	var rows []row
	for _, sec := range all {
		rows = append(rows, sec.lines...)
	}
	if free := height - len(rows); free >= 3 {
		rows = append(rows, p.events(s, free)...)
	}
	rows = rows[:min(len(rows), height)]
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = r.text(width, look)
	}
	return out
}

type painter struct {
	width int
	look  Look
}

func (p painter) head(s State) []row {
	state := s.Counts.State
	if state == "" {
		state = "starting"
	}
	dress := good
	if state != "open" {
		dress = warn
	}
	return []row{
		{{"  usher demo", title}, {"   room " + s.Room + " is ", dim}, {state, dress}, {"   " + clock(s.Elapsed), dim}, {"   Ctrl-C ends it", dim}},
		{},
	}
}

// figures is four numbers to be read from across the room, or one line where
// the window is too narrow for that.
func (p painter) figures(s State) []row {
	c := s.Counts
	type figure struct {
		label, value string
		dress        dress
	}
	inside := strconv.Itoa(c.Active)
	if c.Limit > 0 {
		inside += "/" + strconv.Itoa(c.Limit)
	}
	all := []figure{
		{"WAITING", strconv.Itoa(c.Waiting), warn}, {"INSIDE", inside, good},
		{"ADMITTED", strconv.Itoa(c.Admitted), title}, {"SEATS SOLD", strconv.Itoa(s.Booked), title},
	}
	const gap = 4
	need := 2
	widths := make([]int, len(all))
	for i, f := range all {
		widths[i] = max(len(f.label), 4*len(f.value)-1) + gap
		need += widths[i]
	}
	if need-gap > p.width || p.look.ASCII {
		var rows []row
		var r row
		used := 0
		for _, f := range all {
			n := len(f.label) + len(f.value) + 3
			if used > 0 && used+n > p.width {
				rows, r, used = append(rows, r), nil, 0
			}
			used += n
			r = append(r, span{"  " + strings.ToLower(f.label) + " ", dim}, span{f.value, f.dress})
		}
		return append(rows, r, row{})
	}
	rows := make([]row, 4)
	for i := range rows {
		rows[i] = row{{"  ", plain}}
	}
	for i, f := range all {
		rows[0] = append(rows[0], span{pad(f.label, widths[i]), dim})
		for n, line := range bigDigits(f.value) {
			rows[n+1] = append(rows[n+1], span{pad(line, widths[i]), f.dress})
		}
	}
	return append(rows, row{})
}

// line is the bar of slots and the curve of the waiting line.
func (p painter) line(s State) []row {
	c := s.Counts
	width := max(4, min(p.width-14, 60))
	full := 0
	if c.Limit > 0 {
		full = min(width, (c.Active*width+c.Limit/2)/c.Limit)
	}
	on, off := "█", "░"
	if p.look.ASCII {
		on, off = "#", "."
	}
	rows := []row{
		{{"  inside    ", dim}, {strings.Repeat(on, full), good}, {strings.Repeat(off, width-full), dim}},
		{{"  waiting   ", dim}, {spark(s.History, width, p.look.ASCII), warn}},
	}
	speed := row{{"  ", plain}}
	if s.Rate >= 0 {
		speed = append(speed, span{fmt.Sprintf("%.0f", s.Rate), title}, span{" let in a minute", dim})
	} else {
		speed = append(speed, span{"measuring", dim})
	}
	if s.ETA >= 0 {
		speed = append(speed, span{"   whoever comes now waits about ", dim}, span{about(s.ETA), title})
	}
	return append(rows, speed, row{})
}

func (p painter) addresses(s State) []row {
	rows := []row{
		{{"  open this  ", dim}, {s.Look, link}, {"  and wait in line with the crowd", dim}},
		{{"  the site   ", dim}, {s.Site, link}, {"  behind the room, unprotected", dim}},
		{{"  dashboard  ", dim}, {s.Admin + "/", link}, {"  for operators; it asks for the token in", dim}},
		p.token(s.TokenFile),
	}
	if s.Guests != "" {
		rows = append(rows, row{{"  guests     ", dim}, {s.Guests, good}, {"  not of the crowd: you?", dim}})
	}
	for _, n := range s.Notes {
		rows = append(rows, row{{"  note       ", dim}, {n, warn}})
	}
	return append(rows, row{})
}

// token is the path of the file, so that none of it is cut where it can be helped.
func (p painter) token(path string) row {
	const indent = "             "
	if free := p.width - len([]rune(path)); free < len(indent) {
		return row{{indent[:max(0, free)], plain}, {path, plain}}
	}
	return row{{indent, plain}, {path, plain}}
}

// figure is a number with what it counts.
type figure struct {
	n    int64
	what string
}

// flow writes figures behind a label, in as many lines as they take.
func (p painter) flow(label string, figures ...figure) []row {
	label = pad("  "+label, 13)
	var rows []row
	r, used := row{{label, dim}}, len(label)
	for i, f := range figures {
		n := strconv.FormatInt(f.n, 10)
		width := len(n) + 1 + len(f.what)
		if i > 0 {
			if used+3+width > p.width && used > len(label) {
				rows = append(rows, r)
				r, used = row{{pad("", len(label)), plain}}, len(label)
			} else {
				r, used = append(r, span{" · ", dim}), used+3
			}
		}
		r, used = append(r, span{n, plain}, span{" " + f.what, dim}), used+width
	}
	return append(rows, r)
}

func (p painter) totals(s State) []row {
	c := s.Counts
	return p.flow("so far", figure{int64(c.Entered), "entered"}, figure{int64(c.Claimed), "came in"}, figure{int64(c.Left), "left"},
		figure{int64(c.Abandoned), "vanished"}, figure{int64(c.NoShow), "no-shows"}, figure{int64(s.SeatsLeft), "seats on sale"})
}

func (p painter) tempers(s State) []row {
	var all []figure
	for i := range s.Crowd.ByTemper {
		all = append(all, figure{s.Crowd.ByTemper[i].Here, crowd.Temper(i).String()})
	}
	return p.flow("the crowd", all...)
}

// watch says what the crowd itself saw of the room's promises.
func (p painter) watch(s State) []row {
	v := s.Crowd.Violation
	var rows []row
	if n := v.Sum(); n > 0 {
		rows = append(rows, row{{"  watch      ", dim}, {fmt.Sprintf("%d violations: seq %d, place %d, back %d, lost %d, early %d",
			n, v.SeqChanged, v.PlaceRose, v.WentBack, v.LostPlace, v.ServedEarly), bad}})
	} else {
		rows = append(rows, row{{"  watch      ", dim}, {"no place lost, none rose, none served early", good},
			{fmt.Sprintf("  (%d requests)", s.Crowd.Requests), dim}})
	}
	if n := s.Crowd.Failed; n > 0 {
		rows = append(rows, row{{"  failed     ", dim}, {fmt.Sprintf("%d visitors did not get through", n), bad}, {"  see below", dim}})
	}
	if s.Trouble != "" {
		rows = append(rows, row{{"  trouble    ", dim}, {s.Trouble, bad}})
	}
	return rows
}

func (p painter) events(s State, lines int) []row {
	rows := []row{{}}
	list := s.Events
	if n := lines - 1; len(list) > n {
		list = list[len(list)-n:]
	}
	for _, e := range list {
		d := plain
		if e.Bad {
			d = bad
		}
		rows = append(rows, row{{"  " + e.At.Format("15:04:05") + "   ", dim}, {e.Text, d}})
	}
	return rows
}

// PlainLine is the state in one line, for output that is no terminal.
func PlainLine(s State) string {
	c := s.Counts
	var b strings.Builder
	fmt.Fprintf(&b, "%s  waiting %d  inside %d/%d  entered %d  admitted %d  left %d  abandoned %d  no-shows %d  sold %d",
		clock(s.Elapsed), c.Waiting, c.Active, c.Limit, c.Entered, c.Admitted, c.Left, c.Abandoned, c.NoShow, s.Booked)
	if s.Rate >= 0 {
		fmt.Fprintf(&b, "  rate %.0f/min", s.Rate)
	}
	if s.ETA >= 0 {
		fmt.Fprintf(&b, "  eta %s", about(s.ETA))
	}
	fmt.Fprintf(&b, "  violations %d", s.Crowd.Violation.Sum())
	if s.Crowd.Failed > 0 {
		fmt.Fprintf(&b, "  failed %d", s.Crowd.Failed)
	}
	if s.Trouble != "" {
		fmt.Fprintf(&b, "  trouble: %s", s.Trouble)
	}
	return b.String()
}

func clock(d time.Duration) string {
	n := int(d / time.Second)
	if n >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", n/3600, n/60%60, n%60)
	}
	return fmt.Sprintf("%02d:%02d", n/60, n%60)
}

// about rounds a wait to what a person would say.
func about(d time.Duration) string {
	switch {
	case d < 5*time.Second:
		return "no time"
	case d < 90*time.Second:
		return fmt.Sprintf("%d s", int((d+2500*time.Millisecond)/(5*time.Second))*5)
	default:
		return fmt.Sprintf("%d min", int((d+30*time.Second)/time.Minute))
	}
}
