package loadtest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// A visitor is a pure machine: what she was told and the time go in, her next act and what we learned come out. The
// runner does the talking. All of a visitor's exchanges happen one after another.
type visitor struct {
	index  int32
	sample bool // her place is charted
	phase  phase
	op     op
	due    time.Time // when op was meant to start; latencies count from here

	arriveAt  time.Time
	vanish    time.Duration // leaves without a word this long after being put in line; 0: she does not
	refresh   time.Duration // enters once more this long after; 0: she does not
	stay      time.Duration
	vanishAt  time.Time
	refreshAt time.Time
	stayUntil time.Time

	requestID, secret, ticketID string

	seq, pos  uint64
	place     int64
	at        time.Time // server's time of the newest answer
	waitingAt time.Time // server's time of the last answer that said waiting
	heard     time.Time // our time of the last exchange the server counted as a sign of life
	pollAt    time.Time
	presentAt time.Time
	presence  time.Duration
	renewAt   time.Time
	expiresAt time.Time

	seenAt    time.Time // our time of the answer that said admitted
	admitted  time.Time // server's time of that answer
	enteredAt time.Time // when the enter that gave her a ticket was due
	placedAt  time.Time // our time of the last place that she was told
	firstDue  time.Time // of the act that is being repeated after errors
	attempts  int
	claimed   bool // the admission was used
}

type phase uint8

const (
	arriving phase = iota
	waiting
	inside
	leaving
	gone
)

type op uint8

const (
	opEnter op = iota
	opRefresh
	opStatus
	opPresence
	opRenew
	opVisit
	opLeave
	opVanish // no exchange: she closes the lid
	opCount
)

var opNames = [opCount]string{"enter", "refresh", "status", "presence", "renew", "visit", "leave", "vanish"}

func (o op) String() string { return opNames[o] }

// manners is how all visitors of a run behave.
type manners struct {
	poll     time.Duration // ask for status this often; 0: as the server says
	visit    bool          // use the admission by asking for a proxied page, not by renew
	think    time.Duration // between two proxied pages
	patience time.Duration // how long an act is repeated that meets errors
}

// news is what an exchange taught us beyond the visitor's own state.
type news struct {
	ticket    bool   // enter was answered with a ticket, for the first time
	admitted  bool   // she was told for the first time that she is in
	placed    bool   // a fresh place is known
	ended     ending // she is gone, and why
	fault     faultKind
	detail    string // of fault
	errorKind string // to be counted
	claimed   bool   // the admission was used for the first time
}

type ending uint8

const (
	stillThere ending = iota
	left
	vanished
	refused      // enter was answered no
	unanswered   // enter was never answered
	ended        // the server ended her ticket: see fault, or the log
	expired      // her session had run out before she asked
	disconnected // gave up while errors lasted
)

// plan sets the next act at time now.
func (v *visitor) plan(now time.Time, m *manners) {
	v.attempts, v.firstDue = 0, time.Time{}
	switch v.phase {
	case waiting:
		v.op, v.due = opStatus, v.pollAt
		earlier := func(o op, t time.Time) {
			if !t.IsZero() && t.Before(v.due) {
				v.op, v.due = o, t
			}
		}
		earlier(opPresence, v.presentAt)
		earlier(opRefresh, v.refreshAt)
		earlier(opVanish, v.vanishAt)
	case inside:
		v.op, v.due = opRenew, v.renewAt
		if m.visit {
			v.op = opVisit
		}
		if v.stayUntil.Before(v.due) {
			v.op, v.due = opLeave, v.stayUntil
			v.phase = leaving
		}
	}
}

// again repeats the act that met an error, later and later, with full jitter.
func (v *visitor) again(now time.Time, after time.Duration, rng *rand.Rand) {
	if v.firstDue.IsZero() {
		v.firstDue = v.due
	}
	back := min(250*time.Millisecond<<min(v.attempts, 5), 5*time.Second)
	v.attempts++
	v.due = now.Add(min(after, 30*time.Second) + time.Duration(rng.Int64N(int64(back))) + 10*time.Millisecond)
}

// exchanged settles one exchange that was sent at sent and answered (or failed) at now.
func (v *visitor) exchanged(resp response, err error, sent, now time.Time, m *manners, rng *rand.Rand) (n news) {
	if err != nil || resp.status >= 500 || resp.status == 429 && decodeProblem(resp.body).Code != "room_full" {
		n.errorKind = errorKind(resp, err)
		since := v.firstDue
		if since.IsZero() {
			since = v.due
		}
		if now.Sub(since) < m.patience {
			v.again(now, resp.retryAfter, rng)
			return n
		}
		n.ended = disconnected
		if v.phase == arriving {
			n.ended = unanswered
		}
		v.phase = gone
		return n
	}
	switch v.op {
	case opEnter, opRefresh:
		v.entered(resp, now, m, &n)
	case opStatus:
		v.told(resp, sent, now, m, &n)
	case opPresence:
		switch resp.status {
		case 204, 200:
			v.heard, v.presentAt = now, now.Add(v.presence)
		default:
			v.turnedAway(resp, sent, now, &n)
		}
	case opRenew:
		v.renewed(resp, sent, now, &n)
	case opVisit:
		v.visited(resp, sent, now, m, &n)
	case opLeave:
		if resp.status != 204 && resp.status != 200 && resp.status != 410 {
			n.errorKind = errorKind(resp, nil)
		}
		v.phase, n.ended = gone, left
	}
	if v.phase != gone {
		v.plan(now, m)
	}
	return n
}

func (v *visitor) entered(resp response, now time.Time, m *manners, n *news) {
	first := v.ticketID == ""
	if resp.status != 200 && resp.status != 202 {
		n.errorKind = errorKind(resp, nil)
		if !first {
			v.turnedAway(resp, now, now, n)
			return
		}
		v.phase, n.ended = gone, refused
		return
	}
	a, err := decodeAnswer(resp.body)
	if err == nil && (a.TicketID == "" || first && a.Ticket == "") {
		err = fmt.Errorf("%w: enter without a ticket", errMalformed)
	}
	if err != nil {
		n.errorKind = errorKind(resp, err)
		v.phase, n.ended = gone, unanswered
		return
	}
	v.refreshAt = time.Time{}
	if first {
		n.ticket = true
		v.ticketID, v.secret = a.TicketID, a.Ticket
		v.phase = waiting
		if v.vanish > 0 {
			v.vanishAt = now.Add(v.vanish)
		}
		if v.refresh > 0 {
			v.refreshAt = now.Add(v.refresh)
		}
	}
	v.learn(&a, now, m, n)
}

func (v *visitor) told(resp response, sent, now time.Time, m *manners, n *news) {
	if resp.status != 200 {
		v.turnedAway(resp, sent, now, n)
		return
	}
	a, err := decodeAnswer(resp.body)
	if err != nil {
		n.errorKind = errorKind(resp, err)
		v.pollAt = now.Add(time.Second)
		return
	}
	v.learn(&a, now, m, n)
}

// learn takes in an answer about her ticket and checks it against all she knew.
func (v *visitor) learn(a *answer, now time.Time, m *manners, n *news) {
	stale := a.At.Before(v.at)
	seq, pos := deref(a.Seq), deref(a.Pos)
	switch {
	case a.TicketID != "" && a.TicketID != v.ticketID:
		n.fault, n.detail = lostPlace, fmt.Sprintf("ticket %s, seq %d, became ticket %s, seq %d", v.ticketID, v.seq, a.TicketID, seq)
	case v.seq != 0 && seq != v.seq:
		n.fault, n.detail = lostPlace, fmt.Sprintf("ticket %s: seq went from %d to %d", v.ticketID, v.seq, seq)
	case v.pos != 0 && pos != v.pos:
		n.fault, n.detail = lostPlace, fmt.Sprintf("ticket %s: pos went from %d to %d", v.ticketID, v.pos, pos)
	case v.seenAt.IsZero() && !stale && v.place != 0 && a.Place != nil && *a.Place > v.place:
		n.fault, n.detail = setBack, fmt.Sprintf("ticket %s, pos %d: place rose from %d to %d", v.ticketID, v.pos, v.place, *a.Place)
	case !v.seenAt.IsZero() && !stale && a.State == "waiting":
		n.fault, n.detail = setBack, fmt.Sprintf("ticket %s, pos %d: waiting again after it was admitted", v.ticketID, v.pos)
	}
	if seq != 0 {
		v.seq = seq
	}
	if pos != 0 {
		v.pos = pos
	}
	v.heard = now
	if !stale {
		v.at = a.At
	}
	if a.State == "admitted" {
		v.letIn(a, now, n)
		return
	}
	if !stale {
		v.waitingAt = a.At
		if a.Place != nil {
			v.place, n.placed = *a.Place, true
		}
	}
	poll := m.poll
	if poll == 0 {
		poll = bounded(a.PollAfterMS, 200*time.Millisecond, 2*time.Minute, 2*time.Second)
	}
	v.presence = bounded(a.PresenceAfterMS, 200*time.Millisecond, time.Hour, 90*time.Second)
	v.pollAt, v.presentAt = now.Add(poll), now.Add(v.presence)
}

func (v *visitor) letIn(a *answer, now time.Time, n *news) {
	if v.seenAt.IsZero() {
		n.admitted = true
		v.seenAt, v.admitted = now, a.At
		v.phase = inside
		v.place, n.placed = 0, true
		v.stayUntil = now.Add(v.stay)
		v.renewAt = now // claim at once
	}
	if a.Admission != nil {
		v.expiresAt = a.Admission.ExpiresAt
	}
}

// turnedAway judges a refusal while she waits. A 410 after a silence of her own near the grace (three times the
// presence interval) is our doing, not the server's.
func (v *visitor) turnedAway(resp response, sent, now time.Time, n *news) {
	p := decodeProblem(resp.body)
	n.errorKind = errorKind(resp, nil)
	n.ended = ended
	v.phase = gone
	silence := sent.Sub(v.heard)
	if resp.status == 410 && v.presence > 0 && silence > v.presence*5/2 {
		return
	}
	n.fault = lostPlace
	if resp.status == 410 && v.seenAt.IsZero() {
		n.fault = perhapsLost // the log knows whether she was let in and missed the claim
	}
	n.detail = fmt.Sprintf("ticket %s, pos %d: waiting, heard %v ago, and answered %d %s %s",
		v.ticketID, v.pos, silence.Round(time.Millisecond), resp.status, p.Code, p.Reason)
}

func (v *visitor) renewed(resp response, sent, now time.Time, n *news) {
	switch resp.status {
	case 200:
		a, err := decodeAnswer(resp.body)
		if err != nil {
			n.errorKind = errorKind(resp, err)
		}
		n.claimed, v.claimed = !v.claimed, true
		every := time.Minute
		if a.Admission != nil {
			v.expiresAt = a.Admission.ExpiresAt
			every = bounded(a.Admission.RenewAfterMS, 200*time.Millisecond, 24*time.Hour, time.Minute)
		}
		v.renewAt = now.Add(every)
	default:
		v.lostSession(resp, sent, n)
	}
}

func (v *visitor) visited(resp response, sent, now time.Time, m *manners, n *news) {
	if keptOut(resp) {
		v.lostSession(resp, sent, n)
		return
	}
	n.claimed, v.claimed = !v.claimed, true
	if resp.status >= 400 { // the origin's own
		n.errorKind = errorKind(resp, nil)
	}
	v.renewAt = now.Add(m.think)
}

// keptOut tells usher's answers to those who are not in (the waiting page, a redirect to it, a problem document) from
// what an origin may answer.
func keptOut(resp response) bool {
	switch resp.status {
	case 202:
		return true
	case 303:
		return strings.Contains(resp.location, "/wait/")
	case 401, 403, 409, 410:
		return decodeProblem(resp.body).Code != ""
	}
	return false
}

func (v *visitor) lostSession(resp response, sent time.Time, n *news) {
	n.errorKind = errorKind(resp, nil)
	v.phase = gone
	if !v.expiresAt.IsZero() && sent.After(v.expiresAt.Add(-time.Second)) {
		n.ended = expired
		return
	}
	n.ended = ended
	n.fault = perhapsLost
	n.detail = fmt.Sprintf("ticket %s, pos %d: let in, and then answered %d %s before the session's end",
		v.ticketID, v.pos, resp.status, decodeProblem(resp.body).Code)
}

// bounded is ms as a duration, kept between low and high; def if ms is not given.
func bounded(ms int64, low, high, def time.Duration) time.Duration {
	if ms <= 0 {
		return def
	}
	if ms > int64(high/time.Millisecond) {
		return high
	}
	return max(time.Duration(ms)*time.Millisecond, low)
}
