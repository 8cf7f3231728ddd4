package web

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/ushergo/usher/room"
)

// gate stands in front of origins: it decides who is let through, and forwards.
type gate struct {
	s      *Server
	proxy  *proxy
	failed sync.Map // room id → time.Time: when the engine last did not answer for it
	told   quiet
	linger linger
}

// newGate makes what answers everything but the API on hosts that rooms name.
func newGate(s *Server) *gate { return &gate{s: s, proxy: newProxy(s)} }

// serve answers one request. c and t are what the server has found out about it already.
func (g *gate) serve(w http.ResponseWriter, r *http.Request, c *client, t *table) {
	if r.Method == http.MethodConnect {
		p := notAllowed(w, "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
		p.detail = "usher stands in front of sites and is no forward proxy"
		p.write(w)
		return
	}
	e, p := t.decide(c.host, r.URL)
	if p != nil {
		p.write(w)
		return
	}
	around := t.originOf(c.host)
	if e == nil {
		if around == nil {
			notFound("no room stands in front of this path and no room of this host has an origin to pass it to; " +
				g.s.whereAPI(true)).write(w)
			return
		}
		g.proxy.serve(&forward{g: g, table: t, w: w, r: r, client: c, origin: around.origin})
		return
	}
	origin := e.origin
	if origin == nil && around != nil {
		origin = around.origin
	}
	if origin == nil {
		(&problem{status: 404, code: "no_origin", detail: "room " + e.room.ID() +
			" stands in front of this path, but has no origin to pass visitors to: set its origin, or let the proxy in front ask check"}).write(w)
		return
	}
	v := &visitor{
		call:    call{s: g.s, w: w, r: r, ctx: r.Context(), client: c, id: e.room.ID(), named: true, entry: e},
		g:       g,
		forward: forward{g: g, table: t, w: w, r: r, client: c, origin: origin, entry: e},
	}
	v.serve()
}

// visitor is a request to a page that a room stands in front of.
type visitor struct {
	call
	g       *gate
	forward forward
	pres    presented
	page    bool // a navigation: answered by pages, not by JSON
}

func (v *visitor) serve() {
	if v.r.Method == http.MethodOptions && v.r.Header.Get("Access-Control-Request-Method") != "" {
		switch v.origin() {
		case siteListed: // a preflight carries no ticket and asks for nothing but leave to ask
			v.g.proxy.serve(&v.forward)
			return
		case siteForeign:
			v.fail(crossSite())
			return
		}
	}
	var p *problem
	var err error
	v.pres, p = v.s.presented(v.r, v.entry, v.client.https, true)
	if p == nil && v.pres.ok {
		if err = v.use(v.pres.ref()); err == nil {
			v.g.proxy.serve(&v.forward)
			return
		}
	}
	v.page = wantsPage(v.r)
	switch {
	case p != nil:
		v.refuse(p)
	case !v.pres.ok:
		v.ticketless()
	case errors.Is(err, room.ErrNotAdmitted):
		v.waits()
	case isEnded(err):
		switch {
		case v.page && entersByGet(v.r):
			v.enter()
		case !v.page && isSafe(v.r.Method) && v.g.linger.has(v.pres.ref().ID, time.Now()):
			v.forward.letIn = letIn{id: v.pres.ref().ID.String()}
			v.g.proxy.serve(&v.forward)
		default:
			v.ended()
		}
	default:
		v.engineFailed(err)
	}
}

// ticketless answers who has no ticket: navigations take one; what belongs to a page does not, or the forty
// requests of one page would be forty visitors.
func (v *visitor) ticketless() {
	switch {
	case v.page && entersByGet(v.r):
		v.enter()
	case v.page && isPrefetch(v.r):
		v.fail(prefetched())
	case v.g.away(v.entry) && v.withoutEngine():
		v.g.proxy.serve(&v.forward)
	case v.page && v.r.Method != http.MethodHead:
		v.showEnded(http.StatusUnauthorized, "")
	default:
		v.refuse(v.s.noTicket(&v.pres, true))
	}
}

// enter takes a ticket for a navigation. Whoever is admitted with it gets what she came for in the same answer:
// a redirect would go round in circles for ever with a browser that keeps no cookies.
func (v *visitor) enter() {
	ctx, cancel := v.s.deadline(v.r.Context())
	defer cancel()
	visit, secret, p := v.s.enter(ctx, v.client, v.entry, &v.pres, [16]byte{})
	if p != nil {
		if p.status == http.StatusServiceUnavailable {
			v.engineFailed(room.ErrUnavailable)
		} else {
			v.refuse(p)
		}
		return
	}
	ticket := v.entry.ticketCookie(secret, v.client.https)
	if visit.State == room.Active {
		switch err := v.use(visit.Ref); {
		case err == nil:
			v.forward.cookies = append(v.forward.cookies, ticket)
			v.g.proxy.serve(&v.forward)
			return
		case !errors.Is(err, room.ErrNotAdmitted) && !isEnded(err):
			v.w.Header().Add("Set-Cookie", ticket) // the ticket lives, and is used at the next try
			v.engineFailed(err)
			return
		}
	}
	v.w.Header().Add("Set-Cookie", ticket)
	v.s.waitingPage(v.w, v.r, v.entry, &visit, v.next(), Prefix)
}

// use claims or renews the admission of a ticket and readies the request for the origin.
func (v *visitor) use(ref room.Ref) error {
	ctx, cancel := v.s.deadline(v.r.Context())
	defer cancel()
	adm, err := v.g.admit(ctx, v.entry, ref)
	if err == nil {
		v.forward.admitted(adm)
	}
	return err
}

// waits answers one whose turn has not come.
func (v *visitor) waits() {
	ctx, cancel := v.s.deadline(v.r.Context())
	defer cancel()
	ref := v.pres.ref()
	visit, err := v.entry.room.Status(ctx, ref)
	// In between; or its admission was lost in a failover, and its cookie proves it.
	if err == nil && (visit.State == room.Active || visit.State == room.Waiting && v.provesAdmission()) {
		if err = v.use(ref); err == nil {
			v.g.proxy.serve(&v.forward)
			return
		}
		if errors.Is(err, room.ErrNotAdmitted) { // and has no slot to come back to
			err = nil
		}
	}
	switch {
	case isEnded(err):
		v.ended()
	case err != nil:
		v.engineFailed(err)
	case v.page && isPrefetch(v.r):
		v.fail(prefetched())
	case v.page && isSafe(v.r.Method):
		v.s.waitingPage(v.w, v.r, v.entry, &visit, v.next(), Prefix)
	case v.page: // a form was sent too early, and is not kept: no 2xx
		v.s.showPage(v.w, v.r, v.entry.pages, http.StatusUnauthorized, v.entry.pageOf(&visit, v.next(), Prefix))
	default:
		v.refuse(notYet(&visit))
	}
}

// provesAdmission says whether the request brings a validly signed admission of its ticket, and notes it for the engine.
func (v *visitor) provesAdmission() (proven bool) {
	cookies(v.r.Header["Cookie"], v.entry.passCookie(v.client.https), func(token string) {
		a, err := v.s.opts.Keys.Verify(v.entry.room.ID(), token, time.Now())
		proven = proven || err == nil && a.TicketID == v.pres.ref().ID.String()
	})
	if proven {
		v.entry.room.Presented(v.pres.ref(), v.pres.ticket.Issued.UnixMicro(), true)
	}
	return proven
}

// notYet tells a program about a ticket that waits.
func notYet(v *room.Visit) *problem {
	p := &problem{
		status: http.StatusUnauthorized, code: "not_admitted", retry: v.PollAfter,
		detail: "the ticket is still waiting; ask again after Retry-After, or follow the room's events",
		more: map[string]any{
			"state": v.State.String(), "place": nil, "waiting": v.Waiting, "poll_after_ms": v.PollAfter.Milliseconds(),
			"room_state": v.RoomState, "message": v.Message,
		},
	}
	if v.Place > 0 {
		p.more["place"] = v.Place
	}
	return p
}

// ended answers one whose ticket is over and who may not take a new one by this request.
func (v *visitor) ended() {
	ctx, cancel := v.s.deadline(v.r.Context())
	defer cancel()
	visit, err := v.entry.room.Status(ctx, v.pres.ref())
	switch {
	case err != nil && !isEnded(err):
		v.engineFailed(err)
	case v.page && v.r.Method != http.MethodHead:
		reason := ""
		if visit.Reason != room.NoReason {
			reason = visit.Reason.String()
		}
		v.showEnded(http.StatusGone, reason)
	default:
		v.refuse(ended("ticket_ended", "the ticket has ended; enter again for a new one", &visit))
	}
}

// showEnded tells a person that there is no ticket any more, and where to queue again.
func (v *visitor) showEnded(status int, reason string) {
	st := v.entry.page(v.next(), Prefix)
	st.View.State, st.View.Reason, st.Again = "ended", reason, v.next()
	v.s.showPage(v.w, v.r, v.entry.pages, status, st)
}

// refuse answers by the page of a problem or by its document.
func (v *visitor) refuse(p *problem) {
	v.allowCORS(v.origin())
	if v.page {
		v.s.refusalPage(v.w, v.r, v.entry, v.id, p, v.next(), Prefix)
		return
	}
	v.fail(p)
}

// next is where a page leads once its visitor is admitted: here again, if that is something to be fetched.
func (v *visitor) next() string {
	if isSafe(v.r.Method) {
		return v.r.URL.RequestURI()
	}
	return v.entry.home(v.client.host)
}

func isSafe(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// engineFailed decides by the room's on_engine_failure.
func (v *visitor) engineFailed(err error) {
	if v.r.Context().Err() != nil {
		gone(v.w) // she left; nothing is wrong with the engine
		return
	}
	p := v.s.roomProblem(v.entry, nil, err)
	if p.status == http.StatusServiceUnavailable {
		v.g.notAnswered(v.entry, err)
		if v.withoutEngine() {
			v.g.proxy.serve(&v.forward)
			return
		}
	}
	v.refuse(p)
}

// withoutEngine says whether the request is let through while the engine is away, and readies it.
func (v *visitor) withoutEngine() bool {
	adm, ok := v.g.admitOffline(v.entry, v.r, v.client.https, &v.pres)
	if ok {
		v.forward.admitted(adm)
	}
	return ok
}

// admission of a request, as the origin is told.
type letIn struct {
	ref     room.Ref
	pass    *room.Pass // nil while the engine is away
	id      string     // ticket id; empty: nobody knows
	token   string
	expires time.Time
}

// admit claims or renews. The errors are those of Room.Use.
func (g *gate) admit(ctx context.Context, e *entry, ref room.Ref) (letIn, error) {
	pass, err := e.room.Use(ctx, ref)
	if err != nil {
		return letIn{}, err
	}
	in := letIn{ref: ref, pass: pass, id: ref.ID.String()}
	if in.token, in.expires, err = g.s.admissions.until(e, ref.ID, pass.TokenEnd); err != nil {
		pass.Close()
		g.s.log.Error("an admission could not be signed", "room", e.room.ID(), "err", err)
		return letIn{}, err
	}
	return in, nil
}

// admitOffline lets in by on_engine_failure alone.
func (g *gate) admitOffline(e *entry, r *http.Request, https bool, pres *presented) (in letIn, ok bool) {
	switch e.cfg.OnEngineFailure {
	case "open":
		if pres.ok {
			in.ref, in.id = pres.ref(), pres.ref().ID.String()
		}
		ok = true
	case "admitted":
		cookies(r.Header["Cookie"], e.passCookie(https), func(token string) {
			a, err := g.s.opts.Keys.Verify(e.room.ID(), token, time.Now())
			if err == nil && (!pres.ok || a.TicketID == pres.ref().ID.String()) {
				in, ok = letIn{id: a.TicketID, token: token, expires: a.Expires}, true
			}
		})
	}
	if ok && g.told.now(e.room.ID()+" open") {
		g.s.log.Warn("the engine does not answer; visitors are let in without it", "room", e.room.ID(), "on_engine_failure", e.cfg.OnEngineFailure)
	}
	return in, ok
}

// deadline bounds what is asked of the engine, so that one that hangs is as one that is away. Most requests ask
// nothing: the clock is set when somebody looks at it.
func (s *Server) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	l := &lateContext{parent: ctx, limit: s.opts.EngineTimeout}
	return l, l.release
}

// lateContext is context.WithTimeout from the moment of its first use.
type lateContext struct {
	parent context.Context
	limit  time.Duration
	once   sync.Once
	ctx    context.Context
	cancel context.CancelFunc
}

func (l *lateContext) use() context.Context {
	l.once.Do(func() { l.ctx, l.cancel = context.WithTimeout(l.parent, l.limit) })
	if l.ctx == nil { // released unused
		return l.parent
	}
	return l.ctx
}

func (l *lateContext) Deadline() (time.Time, bool) { return l.use().Deadline() }
func (l *lateContext) Done() <-chan struct{}       { return l.use().Done() }
func (l *lateContext) Err() error                  { return l.use().Err() }
func (l *lateContext) Value(key any) any           { return l.use().Value(key) }

func (l *lateContext) release() {
	l.once.Do(func() {}) // too late for a clock
	if l.cancel != nil {
		l.cancel()
	}
}

// awayFor is how long after a failure requests that ask nothing of the engine go by it.
const awayFor = 5 * time.Second

func (g *gate) notAnswered(e *entry, err error) {
	g.failed.Store(e.room.ID(), time.Now())
	if g.told.now(e.room.ID() + " engine") {
		g.s.log.Error("the engine does not answer", "room", e.room.ID(), "err", err)
	}
}

// away says whether the engine does not answer, without asking it for a ticket.
func (g *gate) away(e *entry) bool {
	if e.cfg.OnEngineFailure == "closed" {
		return false // nothing hangs on it
	}
	if at, ok := g.failed.Load(e.room.ID()); ok && time.Since(at.(time.Time)) < awayFor {
		return true
	}
	return g.s.opts.Rooms.Health() != nil
}

// gone ends a request whose client is gone. Nobody reads the status; the metrics do.
func gone(w http.ResponseWriter) { w.WriteHeader(499) }

// quiet says now and then: the same thing goes to the log once a second, however often it happens.
type quiet struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// now is asked before something is logged. what must come from a bounded set.
func (q *quiet) now(what string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.last == nil {
		q.last = map[string]time.Time{}
	}
	t := time.Now()
	if t.Sub(q.last[what]) < time.Second {
		return false
	}
	q.last[what] = t
	return true
}
