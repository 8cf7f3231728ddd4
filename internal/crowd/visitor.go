package crowd

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	mrand "math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// visitor is one person. Two tabs of hers run side by side, so what they share
// is behind mu; each tab has a sight of its own.
type visitor struct {
	c      *Crowd
	temper Temper
	r      *mrand.Rand // the first tab's only
	jar    jar

	mu       sync.Mutex
	id       string
	seq      int64
	admitted bool
	heard    time.Time     // when the server last answered for this ticket
	grace    time.Duration // 0 until known
}

// sight is what one client has been shown. A place may not rise before the same eyes.
type sight struct {
	place int64
	poll  time.Duration
}

type standing int

const (
	unknown standing = iota // no answer worth believing; ask again
	waiting
	admitted
	gone
)

func (c *Crowd) newVisitor(r *mrand.Rand, t Temper) *visitor {
	return &visitor{c: c, temper: t, r: r, grace: c.opt.Grace}
}

func (v *visitor) tell(k Kind, text string) {
	v.c.tally.change(v.temper, func(n *Count) { n.add(k) })
	v.observe(k, text)
}

func (v *visitor) observe(k Kind, text string) {
	if v.c.opt.Observe == nil {
		return
	}
	v.mu.Lock()
	seq, id := v.seq, v.id
	v.mu.Unlock()
	v.c.opt.Observe(Event{At: time.Now(), Temper: v.temper, Kind: k, Seq: seq, TicketID: id, Text: text})
}

func (v *visitor) violation(f func(*Violations), format string, args ...any) {
	v.c.tally.violate(f)
	v.observe(Violated, fmt.Sprintf(format, args...))
}

func (v *visitor) pause(ctx context.Context, mean time.Duration) bool {
	return sleep(ctx, v.c.pause(v.r, mean))
}

// live is a visit from the click to the end.
func (v *visitor) live(ctx context.Context) {
	gauge := func(here, waits, inside int64) {
		v.c.tally.change(v.temper, func(n *Count) { n.Here += here; n.Waiting += waits; n.Inside += inside })
	}
	gauge(1, 0, 0)
	defer gauge(-1, 0, 0)
	var s sight
	at := v.arrive(ctx, &s)
	if at == gone {
		return
	}
	v.tell(Arrived, "")
	if at == waiting {
		gauge(0, 1, 0)
		stop := v.secondTab(ctx)
		at = v.wait(ctx, &s)
		stop()
		gauge(0, -1, 0)
	}
	if at != admitted {
		return
	}
	v.tell(Admitted, "")
	if v.temper == NoShow {
		v.tell(Missed, "")
		return
	}
	gauge(0, 0, 1)
	v.shop(ctx)
	gauge(0, 0, -1)
}

// arrive gets a ticket. A third of the crowd opens the page first, as a browser
// does, and gets its ticket there. Whatever the network does in between, the same
// request id is sent again and can only give the same ticket.
func (v *visitor) arrive(ctx context.Context, s *sight) standing {
	if v.r.IntN(3) == 0 {
		if _, err := v.open(ctx, v.c.opt.Path); err != nil && ctx.Err() != nil {
			return gone
		}
	}
	body := enterBody()
	for try := 0; ctx.Err() == nil; try++ {
		a, err := v.api(ctx, http.MethodPost, "enter", body)
		wait := time.Second
		switch {
		case err != nil:
		case a.code == http.StatusOK || a.code == http.StatusAccepted:
			if at := v.look(a, s, false); at != unknown {
				return at
			}
		case a.code == http.StatusForbidden || a.code == http.StatusTooManyRequests || a.code >= 500:
			wait = a.retryAfter()
		default:
			v.tell(Failed, fmt.Sprintf("enter answered %d %s", a.code, a.problem().Code))
			return gone
		}
		if try == 20 {
			v.tell(Failed, "gave up entering: "+why(a, err))
			return gone
		}
		if !v.pause(ctx, wait) {
			return gone
		}
	}
	return gone
}

func why(a answer, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", a.code, a.problem().Code)
}

func enterBody() string {
	b := make([]byte, 18)
	rand.Read(b) // never fails
	return `{"request_id":"` + base64.RawURLEncoding.EncodeToString(b) + `"}`
}

// wait stands in line until admitted, or until the temper or the room ends it.
func (v *visitor) wait(ctx context.Context, s *sight) standing {
	patience := time.Now().Add(v.c.pause(v.r, 25*time.Second))
	slept := false
	for {
		d := s.poll
		if v.temper == Leaver {
			d = min(d, max(0, time.Until(patience)))
		}
		if v.temper == Refresher {
			if !v.reload(ctx, s, d) {
				return gone
			}
		} else if !sleep(ctx, d) {
			return gone
		}
		if v.temper == Leaver && !time.Now().Before(patience) {
			v.giveUp(ctx)
			return gone
		}
		over := false
		if v.temper == Sleeper && !slept {
			slept = true
			var d time.Duration
			if d, over = v.nap(); !sleep(ctx, d) {
				return gone
			}
		}
		at, a := v.ask(ctx, s)
		if at == gone {
			v.lost(a, over)
		}
		if at == admitted || at == gone {
			return at
		}
		if ctx.Err() != nil {
			return gone
		}
	}
}

// giveUp leaves the line: half of the leavers say so, half just close the tab.
func (v *visitor) giveUp(ctx context.Context) {
	if v.r.IntN(2) == 0 {
		v.tell(Vanished, "")
		return
	}
	if a, err := v.api(ctx, http.MethodPost, "leave", ""); err != nil || a.code != http.StatusNoContent {
		if ctx.Err() == nil {
			v.tell(Failed, "leave: "+why(a, err))
		}
		return
	}
	v.tell(Left, "")
}

// reload presses F5 for as long as d, about once a second. It looks at the page
// and then at the ticket: a page of the site may not have come to someone who is
// still in line afterwards.
func (v *visitor) reload(ctx context.Context, s *sight, d time.Duration) bool {
	end := time.Now().Add(d)
	for time.Now().Before(end) {
		if !v.pause(ctx, min(d, time.Second)) {
			return false
		}
		page, err := v.open(ctx, v.c.opt.Path)
		if err != nil {
			continue
		}
		v.c.tally.reloads.Add(1)
		if page.code != http.StatusOK {
			continue
		}
		if at, _ := v.ask(ctx, s); at == waiting {
			v.violation(func(n *Violations) { n.ServedEarly++ }, "the site was served to a ticket that waits")
		}
		return true
	}
	return true
}

// nap says how long a sleeper sleeps and whether that is beyond the grace. With
// a long grace nobody can wait for that, and all sleep within it.
func (v *visitor) nap() (d time.Duration, over bool) {
	v.mu.Lock()
	grace := v.grace
	v.mu.Unlock()
	if grace > 0 && grace <= 2*time.Minute && v.r.IntN(4) == 0 {
		return grace + grace/2, true
	}
	d = v.c.pause(v.r, 12*time.Second)
	if grace > 0 {
		d = min(d, grace*6/10)
	}
	return d, false
}

// lost judges a ticket that is gone. That is right for whoever overslept or
// missed the claim, and wrong for whoever was heard from within the grace.
func (v *visitor) lost(a answer, over bool) {
	p := a.problem()
	v.mu.Lock()
	silent, grace := time.Since(v.heard), v.grace
	v.mu.Unlock()
	switch {
	case over:
		v.tell(Overslept, "")
	case p.Reason == "claim":
		v.tell(Missed, "slept through the turn")
	case a.code == http.StatusUnauthorized || p.Reason == "abandoned" || p.State == "abandoned":
		if grace == 0 || silent < grace*8/10 {
			v.violation(func(n *Violations) { n.LostPlace++ }, "ticket gone after %s of silence: %d %s", silent.Round(time.Millisecond), a.code, p.Code)
		}
		v.tell(Failed, "lost its place")
	default:
		v.tell(Failed, fmt.Sprintf("ticket ended: %d %s %s", a.code, p.Code, p.Reason))
	}
}

// ask gets the ticket's status.
func (v *visitor) ask(ctx context.Context, s *sight) (standing, answer) {
	v.mu.Lock()
	was := v.admitted
	v.mu.Unlock()
	a, err := v.api(ctx, http.MethodGet, "status", "")
	switch {
	case err != nil:
		return unknown, a
	case a.code == http.StatusOK:
		return v.look(a, s, was), a
	case a.code == http.StatusUnauthorized || a.code == http.StatusGone:
		return gone, a
	}
	return unknown, a
}

// look reads a ticket's state and compares it with all that was seen before.
// was tells whether the ticket was known to be admitted before this was asked.
func (v *visitor) look(a answer, s *sight, was bool) standing {
	now, err := a.view()
	if err != nil {
		v.c.tally.errors.Add(1)
		return unknown
	}
	s.poll = time.Duration(float64(max(now.PollAfterMs, 100))/max(1, v.c.opt.Speed)) * time.Millisecond
	v.mu.Lock()
	oldID, oldSeq := v.id, v.seq
	changed := oldID != "" && (oldID != now.TicketID || oldSeq != now.Seq)
	v.id, v.seq = now.TicketID, now.Seq // a change counts once: from here on this is her ticket
	v.heard = time.Now()
	if v.grace == 0 {
		v.grace = 3 * time.Duration(now.PresenceAfter) * time.Millisecond
	}
	if now.State == "admitted" {
		v.admitted = true
	}
	v.mu.Unlock()
	if changed {
		s.place, was = 0, false
		v.violation(func(n *Violations) { n.SeqChanged++ }, "ticket %s seq %d became %s seq %d", oldID, oldSeq, now.TicketID, now.Seq)
	}
	switch now.State {
	case "admitted":
		return admitted
	case "waiting":
		if was {
			v.violation(func(n *Violations) { n.WentBack++ }, "an admitted ticket waits again")
		}
		if now.Place != nil && *now.Place > 0 {
			if s.place > 0 && *now.Place > s.place {
				v.violation(func(n *Violations) { n.PlaceRose++ }, "place rose from %d to %d", s.place, *now.Place)
			}
			s.place = *now.Place
		}
		return waiting
	}
	return gone
}

// secondTab opens another client on the same cookie, which enters with a request
// id of its own: the ticket must be the same. The returned function closes it.
func (v *visitor) secondTab(ctx context.Context) (stop func()) {
	if v.temper != DoubleTab {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	first := v.c.pause(v.r, time.Second)
	go func() {
		defer close(done)
		var s sight
		if !sleep(ctx, first) {
			return
		}
		v.mu.Lock()
		was := v.admitted
		v.mu.Unlock()
		a, err := v.api(ctx, http.MethodPost, "enter", enterBody())
		// Once the first tab knows of its turn, the ticket may end before this answer
		// comes, and another one is right.
		if err != nil || ctx.Err() != nil || (a.code != http.StatusOK && a.code != http.StatusAccepted) || v.look(a, &s, was) != waiting {
			return
		}
		for sleep(ctx, s.poll) {
			if at, _ := v.ask(ctx, &s); at == admitted || at == gone {
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}
