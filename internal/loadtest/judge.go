package loadtest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ushergo/usher/room"
)

// tolerance is by how much one visitor must have been told "waiting" after another behind her was told "admitted",
// before clients alone call it an inversion. Answers of several nodes may be that far apart.
const tolerance = time.Second

// evidence is what a step is judged by.
type evidence struct {
	log     *auditor // with the whole step replayed; nil: clients alone
	why     string   // why there is no log
	order   string   // "" unknown
	columns *columns // nil without the log
}

// judge turns what was gathered into the step's report.
func (s *step) judge(ev *evidence) Step {
	out := Step{Visitors: len(s.visitors), StartedAt: s.tally.start}
	var told histogram
	var missed int64
	if ev.log != nil {
		s.compare(ev.log, &told)
		if told.count > 0 {
			q := told.summary()
			out.Told = &q
		}
	} else if ev.order == string(room.FIFO) || ev.order == "" {
		s.inversions()
	}
	missed = s.decideDoubts(ev.log)
	out.Faults = s.verdict(ev)

	t := s.tally
	c, closed := t.counts, t.closed
	out.Crowd = Crowd{
		Arrived: c.arrived, Answered: c.answered, Unanswered: closed[unanswered], Refused: closed[refused], Tickets: c.tickets,
		Admitted: c.admitted, Claimed: c.claimed, Left: closed[left], Vanished: closed[vanished], MissedClaim: missed,
		Expired: closed[expired], Ended: closed[ended] - missed, Disconnected: closed[disconnected], Waiting: c.waiting, Inside: c.inside,
	}
	for o := range opCount {
		if t.response[o].count > 0 {
			out.Latency = append(out.Latency, Latency{o.String(), t.response[o].summary(), t.service[o].summary()})
		}
	}
	out.PlaceUpdates, out.EnterToAdmitted = t.updates.summary(), t.wait.summary()
	for kind, n := range t.errors {
		out.Errors = append(out.Errors, Errors{kind, n})
	}
	slices.SortFunc(out.Errors, func(a, b Errors) int {
		if a.Count != b.Count {
			return int(b.Count - a.Count)
		}
		return strings.Compare(a.Kind, b.Kind)
	})
	s.chart(ev, &out)
	return out
}

// compare holds every visitor's memory against the log.
func (s *step) compare(log *auditor, told *histogram) {
	f := &s.tally.faults
	skew := s.tally.skew
	if skew.Abs() < 50*time.Millisecond {
		skew = 0 // within what a busy machine's round trips leave uncertain
	}
	for i := range s.visitors {
		v := &s.visitors[i]
		if v.ticketID == "" {
			continue
		}
		t := log.tickets[v.ticketID]
		if t == nil {
			f.add(lostPlace, "ticket %s, seq %d: enter was answered, but the log does not know it", v.ticketID, v.seq)
			continue
		}
		if v.seq != t.seq && v.seq != 0 || v.pos != t.pos && v.pos != 0 && t.pos != 0 {
			f.add(lostPlace, "ticket %s: the visitor was told seq %d, pos %d; the log says seq %d, pos %d", v.ticketID, v.seq, v.pos, t.seq, t.pos)
		}
		switch {
		case v.seenAt.IsZero():
		case t.admittedAt.IsZero():
			f.add(unlogged, "ticket %s, pos %d: told that she is admitted, but the log does not say so", v.ticketID, v.pos)
		default:
			told.add(v.seenAt.Sub(t.admittedAt.Add(-skew)))
		}
	}
}

// inversions compares what visitors were told. It finds an admission that is certainly earlier than a time at which
// somebody with a smaller pos certainly still waited, and so never accuses wrongly; it may miss some.
func (s *step) inversions() {
	var line []*visitor
	for i := range s.visitors {
		if v := &s.visitors[i]; v.pos != 0 {
			line = append(line, v)
		}
	}
	slices.SortFunc(line, func(a, b *visitor) int { return int(int64(a.pos) - int64(b.pos)) })
	var last *visitor // among the smaller ones, who waited longest
	for _, v := range line {
		if last != nil && !v.admitted.IsZero() && v.admitted.Add(tolerance).Before(last.waitingAt) {
			s.tally.faults.add(orderInversion, "pos %d was admitted by %s, and pos %d was waiting at %s",
				v.pos, v.admitted.Format(clock), last.pos, last.waitingAt.Format(clock))
		}
		if last == nil || v.waitingAt.After(last.waitingAt) {
			last = v
		}
	}
}

const clock = "15:04:05.000"

// decideDoubts looks up why tickets ended that ended under a visitor's hands. It returns how many had been let in and
// came to know it too late.
func (s *step) decideDoubts(log *auditor) (missed int64) {
	for _, d := range s.tally.doubts {
		reason := d.reason
		if log != nil {
			if t := log.tickets[d.v.ticketID]; t != nil {
				reason = t.reason
			}
		}
		switch {
		case reason == room.ReasonClaim.String() && !d.v.claimed:
			missed++
		case reason == room.ReasonMax.String():
		default:
			s.tally.faults.add(lostPlace, "%s (reason: %s)", d.detail, or(reason, "none given"))
		}
	}
	return missed
}

func (s *step) verdict(ev *evidence) Faults {
	f := &s.tally.faults
	count := func(k faultKind, by string) Fault {
		n := f.count[k]
		return Fault{Count: &n, JudgedBy: by, Examples: append([]string{}, f.examples[k]...)}
	}
	not := func(why string) Fault { return Fault{JudgedBy: why, Examples: []string{}} }
	var out Faults
	out.SetBack = count(setBack, "clients")
	lost := func(by string) Fault {
		f := count(lostPlace, by)
		*f.Count += *out.SetBack.Count
		f.Examples = append(f.Examples, out.SetBack.Examples...)
		return f
	}
	if ev.log == nil {
		out.OrderInversions = count(orderInversion, fmt.Sprintf("clients, within %v", tolerance))
		out.DoubleAdmissions = count(doubleAdmission, "clients: two visitors with one ticket")
		out.LimitOverruns = not("not judged: " + ev.why)
		out.LostPlaces = lost("clients")
		out.UnloggedAdmissions = not("not judged: " + ev.why)
	} else {
		const by = "log"
		out.OrderInversions = count(orderInversion, by)
		out.DoubleAdmissions = count(doubleAdmission, by)
		out.LimitOverruns = count(limitOverrun, by)
		out.LostPlaces = lost(by + " and clients")
		out.UnloggedAdmissions = count(unlogged, by+" and clients")
	}
	switch ev.order {
	case "", string(room.FIFO):
	default:
		out.OrderInversions = not("not judged: the room's order is " + ev.order)
	}
	if ev.order == string(room.Passthrough) {
		out.LimitOverruns = not("not judged: passthrough has no limit")
	}
	return out
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
