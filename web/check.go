package web

import (
	"errors"
	"net/http"
	"net/url"
	"slices"

	"github.com/ushergo/usher/room"
)

// check tells a proxy in front (nginx, Caddy, Traefik) whether to let a request through, and whom it let in. It
// claims and renews as a proxied request does. Who is kept out is sent to the waiting page if it is a page
// that was asked for, else answered 401.
func (c *call) check() {
	method, next := c.original()
	if !isSafe(method) {
		next = "" // it cannot be asked for again
	}
	pres, p := c.s.presented(c.r, c.entry, c.client.https, c.named)
	if p != nil {
		c.keepOut(p, next)
		return
	}
	g := c.s.gate
	if !pres.ok {
		if g.away(c.entry) {
			if in, ok := g.admitOffline(c.entry, c.r, c.client.https, &pres); ok {
				c.wave(in)
				return
			}
		}
		c.keepOut(c.s.noTicket(&pres, c.named), next)
		return
	}
	in, err := g.admit(c.ctx, c.entry, pres.ref())
	if err == nil {
		in.pass.Close() // when the request ends, only the proxy in front knows
		c.wave(in)
		return
	}
	visit := room.Visit{}
	if errors.Is(err, room.ErrNotAdmitted) || isEnded(err) { // a word more on why
		if visit, err = c.entry.room.Status(c.ctx, pres.ref()); err == nil {
			err = room.ErrNotAdmitted
		}
	}
	if errors.Is(err, room.ErrNotAdmitted) {
		c.keepOut(notYet(&visit), next)
		return
	}
	if p = c.s.roomProblem(c.entry, &visit, err); p.status == http.StatusServiceUnavailable && c.r.Context().Err() == nil {
		g.notAnswered(c.entry, err)
		if in, ok := g.admitOffline(c.entry, c.r, c.client.https, &pres); ok {
			c.wave(in)
			return
		}
	}
	c.keepOut(p, next)
}

// wave lets in.
func (c *call) wave(in letIn) {
	h := c.w.Header()
	h.Set(headerRoom, c.id)
	if in.id != "" {
		h.Set(headerTicketID, in.id)
	}
	if in.token != "" {
		h.Set(headerToken, in.token)
	}
	for _, line := range c.entry.passFor(c.r, in, c.client.https) {
		h.Add("Set-Cookie", line) // for proxies that hand it on
	}
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", "0")
	c.w.WriteHeader(http.StatusOK)
}

// headerPage tells nginx, which turns everything but 401 and 403 into 500, which of the 401 are of pages.
const headerPage = "X-Usher-Page"

// keepOut refuses.
func (c *call) keepOut(p *problem, next string) {
	where, page := c.waitURL(next), wantsPage(c.r) && !isPrefetch(c.r)
	switch {
	case c.r.URL.Query().Get("for") == "nginx":
		c.w.Header().Set("Location", asciiURL(where))
		if page {
			c.w.Header().Set(headerPage, "1")
		}
		p.status = http.StatusUnauthorized
	case page:
		redirect(c.w, where)
		return
	case p.status != http.StatusServiceUnavailable:
		p.status = http.StatusUnauthorized
	}
	c.fail(p)
}

// original is the request that the proxy in front asks about, as far as it is believed: next is where a visitor
// wanted to go, "" if that is not known or not of this site.
func (c *call) original() (method, next string) {
	method = http.MethodGet
	if !c.client.trusted {
		return method, ""
	}
	last := func(names ...string) string {
		for _, name := range names {
			if lines := c.r.Header[name]; len(lines) > 0 && lines[len(lines)-1] != "" {
				return lines[len(lines)-1]
			}
		}
		return ""
	}
	if m := last("X-Original-Method", "X-Forwarded-Method"); m != "" {
		method = m
	}
	next, ok := safeNext(last("X-Original-Url", "X-Original-Uri", "X-Forwarded-Uri"), c.s, c.client)
	if !ok {
		next = ""
	}
	return method, next
}

// waitURL is the address of the waiting page: on the public address, or on the host that was asked if it is
// one of the room's own and the public address is not, for a ticket's cookie is of one host alone.
func (c *call) waitURL(next string) string {
	base, host := c.s.opts.PublicURL, c.s.publicHost
	ours := func(host string) bool {
		return slices.ContainsFunc(c.entry.cfg.Match, func(m room.Match) bool { return m.Host != "" && hostOnly(m.Host) == host })
	}
	if !ours(host) && ours(c.client.host) && validHost(c.client.hostRaw) {
		base, host = c.client.scheme()+"://"+c.client.hostRaw, c.client.host
	}
	if t := c.s.table(); t.named(host) && t.originOf(host) != nil {
		base += Prefix // the plain path is the origin's
	}
	where := base + "/wait/" + c.id
	if next != "" {
		where += "?next=" + url.QueryEscape(next)
	}
	return where
}
