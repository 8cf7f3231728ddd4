package web

import (
	"net/http"
	"strings"
	"time"

	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
)

// cookieAge is how long a browser keeps a ticket; each enter renews it.
const cookieAge = "86400"

// presented is the ticket that a request brings.
type presented struct {
	ticket   token.Ticket
	secret   string
	ok       bool // a validly sealed ticket of the room
	some     bool // something was presented, valid or not
	byHeader bool // not by cookie: the client keeps tickets by itself
}

func (p *presented) ref() room.Ref {
	if !p.ok {
		return room.Ref{}
	}
	return room.Ref{Seq: p.ticket.Seq, ID: p.ticket.ID}
}

// presented reads the ticket of a room. On named hosts (where everything else belongs to an origin)
// Authorization is the origin's and is not looked at. What is not validly sealed counts as nothing; two valid
// tickets that differ are a conflict, for which there is no right answer.
func (s *Server) presented(r *http.Request, e *entry, https, named bool) (p presented, conflict *problem) {
	take := func(secret string, byHeader bool) {
		p.some = true
		p.byHeader = p.byHeader || byHeader
		if secret == p.secret && p.ok {
			return
		}
		t, err := s.opts.Keys.OpenTicket(e.room.ID(), secret)
		switch {
		case err != nil:
		case !p.ok:
			p.ticket, p.secret, p.ok = t, secret, true
		case t.ID != p.ticket.ID || t.Seq != p.ticket.Seq:
			conflict = &problem{status: 400, code: "ticket_conflict",
				detail: "the request carries two different tickets of this room; send one of them, or clear the cookie"}
		}
	}
	cookies(r.Header["Cookie"], e.cookie(https), func(v string) { take(v, false) })
	for _, v := range r.Header["Usher-Ticket"] {
		take(strings.TrimSpace(v), true)
	}
	if !named {
		for _, v := range r.Header["Authorization"] {
			if scheme, secret, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "Bearer") {
				take(strings.TrimSpace(secret), true)
			}
		}
	}
	if p.ok && time.Since(p.ticket.Issued) < adoptable {
		e.room.Presented(p.ref(), p.ticket.Issued.UnixMicro(), false)
	}
	return p, conflict
}

// adoptable is how old a ticket may be that an engine takes up again when a failover has lost it.
const adoptable = 10 * time.Minute

// cookies calls f with each value of a cookie. It allocates nothing, unlike http.Request.Cookies.
func cookies(lines []string, name string, f func(value string)) {
	for _, line := range lines {
		for line != "" {
			var part string
			part, line, _ = strings.Cut(line, ";")
			part = strings.Trim(part, " \t")
			if len(part) > len(name) && part[len(name)] == '=' && part[:len(name)] == name {
				f(strings.Trim(part[len(name)+1:], `"`))
			}
		}
	}
}

// setCookie gives a browser its ticket.
func (e *entry) setCookie(h http.Header, secret string, https bool) {
	h.Add("Set-Cookie", e.ticketCookie(secret, https))
}
