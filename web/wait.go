package web

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/web/page"
)

// wait is the waiting page at an address of its own, where check mode sends visitors. A navigation enters.
// Whoever is admitted is sent on at once, but a browser without cookies would be sent back by the check, and
// take a new ticket at every turn; so a fresh ticket first comes back here, to show that the cookie was kept.
func (c *call) wait() {
	if c.r.Method == http.MethodOptions {
		c.fail(notAllowed(c.w, "GET, HEAD"))
		return
	}
	html := acceptsPage(c.r)
	e, p := c.s.entry(c.ctx, c.id)
	if p != nil {
		if html && p.code == "room_not_found" {
			c.s.refusalPage(c.w, c.r, nil, c.id, p, "", c.base())
			return
		}
		c.fail(p)
		return
	}
	c.entry = e
	query := c.r.URL.Query()
	next, ok := safeNext(query.Get("next"), c.s, c.client)
	if !ok {
		c.fail(&problem{status: 400, code: "bad_next", detail: "next leads to another site; give a path of this one"})
		return
	}
	if next == "" {
		next = e.home(c.client.host)
	}
	switch {
	case isPrefetch(c.r):
		c.fail(prefetched())
		return
	case !html:
		c.status() // not a navigation: it tells, and does not enter
		return
	case c.r.Method == http.MethodHead:
		for k, v := range page.Headers("") {
			c.w.Header()[k] = v
		}
		c.w.WriteHeader(http.StatusAccepted)
		return
	case !entersByGet(c.r):
		c.fail(crossSite())
		return
	}
	pres, p := c.s.presented(c.r, e, c.client.https, c.named)
	if p != nil {
		c.fail(p)
		return
	}
	again := query.Get("c") == "1"
	if again && !pres.some {
		c.s.stuckPage(c.w, c.r, e, next, c.base())
		return
	}
	v, secret, p := c.s.enter(c.ctx, c.client, e, &pres, [16]byte{})
	if p != nil {
		c.s.refusalPage(c.w, c.r, e, c.id, p, next, c.base())
		return
	}
	e.setCookie(c.w.Header(), secret, c.client.https)
	if v.State != room.Active {
		c.s.waitingPage(c.w, c.r, e, &v, next, c.base())
		return
	}
	to := next
	if !pres.ok && !again {
		to = c.base() + "/wait/" + c.id + "?c=1&next=" + url.QueryEscape(next)
	}
	redirect(c.w, to)
}

// redirect sends a navigation on. to is a path of this site.
func redirect(w http.ResponseWriter, to string) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Location", asciiURL(to))
	h.Set("Content-Length", "0")
	w.WriteHeader(http.StatusSeeOther)
}

// asciiURL escapes what may not stand in a header.
func asciiURL(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= 0x20 || c >= 0x7f {
			const hex = "0123456789ABCDEF"
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// acceptsPage says whether a request for the page's own address is one: everything but what asks for JSON,
// and what a script or an element of another page fetches.
func acceptsPage(r *http.Request) bool {
	if wantsPage(r) {
		return true
	}
	if r.Header.Get("Sec-Fetch-Mode") != "" {
		return false
	}
	accept := r.Header["Accept"]
	if len(accept) == 0 {
		return true
	}
	html := quality(accept, "text/html")
	for _, line := range accept {
		if strings.Contains(strings.ToLower(line), "json") {
			return false // prefersHTML has said no already
		}
	}
	return html > 0
}

func prefetched() *problem {
	return &problem{status: 503, code: "prefetch", detail: "prefetches do not enter; open the page itself", retry: time.Second}
}

// home is where a visitor goes once admitted, if nothing else was asked for.
func (e *entry) home(host string) string {
	for _, m := range e.cfg.Match {
		if h := hostOnly(m.Host); (h == "" || h == host) && strings.HasPrefix(m.Path, "/") && !strings.HasPrefix(m.Path, "//") {
			return m.Path
		}
	}
	return "/"
}

// waitingPage shows the page of one who waits. next is where she goes once admitted; base is the API's prefix.
func (s *Server) waitingPage(w http.ResponseWriter, r *http.Request, e *entry, v *room.Visit, next, base string) {
	s.showPage(w, r, e.pages, http.StatusAccepted, e.pageOf(v, next, base))
}

// pageOf is the page of one who waits.
func (e *entry) pageOf(v *room.Visit, next, base string) page.State {
	st := e.page(next, base)
	pv := &st.View
	pv.TicketID, pv.Waiting, pv.Message, pv.At = v.ID.String(), &v.Waiting, v.Message, fromMicro(v.At)
	if v.Place > 0 {
		pv.Place = &v.Place
	}
	if v.ETA != nil {
		low, high := int(v.ETA.LowS), int(v.ETA.HighS)
		pv.ETALow, pv.ETAHigh = &low, &high
	}
	switch {
	case v.State == room.Active:
		pv.State = page.Admitted
	case v.RoomState == "prequeue" || v.RoomState == "not_open":
		pv.State = page.Prequeue
		pv.Draw = e.room.Summary().Opening.SeedHash
	case v.RoomState == room.StatePaused:
		pv.State = page.Paused
	default:
		pv.State = page.Waiting
	}
	return st
}

// refusalPage shows the page of a problem, with the problem's status. e may be nil when there is no such room.
func (s *Server) refusalPage(w http.ResponseWriter, r *http.Request, e *entry, id string, p *problem, next, base string) {
	st, pages := page.State{Room: id, Next: next, APIBase: base + "/v1"}, s.builtin
	if e != nil {
		st, pages = e.page(next, base), e.pages
		st.View.Message = e.room.Summary().Message
	}
	st.RetryAfter = 0
	if p.retry > 0 {
		st.RetryAfter = seconds(p.retry)
	}
	switch p.code {
	case "room_closed":
		st.View.State = page.Closed
	case "room_not_open":
		st.View.State = page.NotOpen
	case "room_full":
		st.View.State = page.Full
	case "too_many":
		st.View.State = page.TooMany
	case "room_not_found":
		st.View.State = page.Gone
	case "engine_unavailable":
		st.View.State = page.Unavailable
	default:
		p.write(w)
		return
	}
	s.showPage(w, r, pages, p.status, st)
}

// stuckPage tells a visitor whose browser keeps no cookies so.
func (s *Server) stuckPage(w http.ResponseWriter, r *http.Request, e *entry, next, base string) {
	st := e.page(next, base)
	st.View.State = page.Stuck
	s.showPage(w, r, e.pages, http.StatusForbidden, st)
}

// page is what all pages of a room have in common.
func (e *entry) page(next, base string) page.State {
	st := page.State{
		Room: e.room.ID(), Next: next, APIBase: base + "/v1", Order: string(e.cfg.Queue.Order),
		Grace: time.Duration(e.cfg.Queue.Grace), Claim: time.Duration(e.cfg.Session.Claim),
	}
	if opens := e.cfg.Schedule.OpensAt.Time; !opens.IsZero() {
		enters := opens.Add(-time.Duration(e.cfg.Schedule.Prequeue))
		st.View.OpensAt, st.View.EntersAt = &opens, &enters
	}
	return st
}

func (s *Server) showPage(w http.ResponseWriter, r *http.Request, pages *page.Pages, status int, st page.State) {
	err := pages.Write(w, r, status, st)
	if err == nil {
		return
	}
	s.log.Error("the waiting page could not be rendered; showing the built-in one", "room", st.Room, "err", err)
	if pages == s.builtin || s.builtin.Write(w, r, status, st) != nil {
		(&problem{status: 500, code: "internal", detail: "the page could not be rendered"}).write(w)
	}
}
