package web

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
)

// maxBody bounds what a visitor may send, in bytes.
const maxBody = 4 << 10

// Kinds of room routes.
const (
	reads  = iota // any site may ask; only listed ones can read the answer
	writes        // refused from foreign sites
	public        // the same for everybody: any site may read it
)

func (s *Server) publicRoutes() *router {
	const v1 = "/v1/rooms/{room}/"
	return newRouter([]*route{
		{method: "POST", path: v1 + "enter", handle: ofRoom(writes, (*call).enter)},
		{method: "GET", path: v1 + "status", handle: ofRoom(reads, (*call).status)},
		{method: "POST", path: v1 + "presence", handle: ofRoom(writes, (*call).presence)},
		{method: "POST", path: v1 + "claim", handle: ofRoom(writes, (*call).claim)},
		{method: "POST", path: v1 + "renew", handle: ofRoom(writes, (*call).renew)},
		{method: "POST", path: v1 + "leave", handle: ofRoom(writes, (*call).leave)},
		{method: "GET", path: v1 + "now", handle: ofRoom(public, (*call).now)},
		{method: "GET", path: v1 + "events", handle: ofRoom(writes, (*call).events), stream: true},
		{method: "GET", path: v1 + "poll", handle: ofRoom(writes, (*call).poll), stream: true},
		{method: "GET", path: "/v1/stomp", handle: (*call).stomp, stream: true},
		{method: "GET", path: v1 + "check", handle: ofRoom(reads, (*call).check)},
		{method: "GET", path: "/wait/{room}", handle: (*call).wait},
		{method: "GET", path: "/v1/openapi.json", handle: (*call).openapi},
		{method: "GET", path: "/v1/usher.js", handle: (*call).usherJS},
		{method: "GET", path: "/.well-known/jwks.json", handle: (*call).jwks},
		{method: "GET", path: "/health/live", handle: (*call).live},
		{method: "GET", path: "/health/ready", handle: (*call).ready},
	})
}

// ofRoom wraps a handler that needs a room: finds it, judges the site that asks, answers preflights.
func ofRoom(kind int, handle func(*call)) func(*call) {
	return func(c *call) {
		e, p := c.s.entry(c.ctx, c.id)
		if p != nil {
			c.fail(p)
			return
		}
		c.entry = e
		from := siteOwn
		if kind != public {
			from = c.origin()
			c.allowCORS(from)
		} else if c.r.Method == http.MethodOptions {
			c.w.Header().Set("Access-Control-Allow-Origin", "*")
		}
		if c.r.Method == http.MethodOptions {
			c.preflight(from)
			return
		}
		if kind == writes && from == siteForeign {
			c.fail(crossSite())
			return
		}
		handle(c)
	}
}

// enter gives a place: of the ticket presented, of the request id, or a new one.
func (c *call) enter() {
	request, p := c.readEnter()
	if p != nil {
		c.fail(p)
		return
	}
	pres, p := c.s.presented(c.r, c.entry, c.client.https, c.named)
	if p != nil {
		c.fail(p)
		return
	}
	v, secret, p := c.s.enter(c.ctx, c.client, c.entry, &pres, request)
	if p != nil {
		c.fail(p)
		return
	}
	if !pres.byHeader {
		c.entry.setCookie(c.w.Header(), secret, c.client.https)
	}
	status := http.StatusAccepted
	if v.State == room.Active {
		status = http.StatusOK
	}
	c.answer(status, &v, secret, false)
}

// enter is what every way in does, whatever it then answers. secret is the ticket's.
func (s *Server) enter(ctx context.Context, c *client, e *entry, pres *presented, request [16]byte) (v room.Visit, secret string, p *problem) {
	counted := !pres.ok // whoever has a ticket already is not a new visitor
	if !s.limit.take(c.addr, false) {
		if counted {
			return v, "", s.tooMany(e)
		}
		// The ticket may have ended, and entering would make a new one.
		v, err := e.room.Status(ctx, pres.ref())
		switch {
		case err == nil:
			return v, pres.secret, nil
		case isEnded(err):
			return v, "", s.tooMany(e)
		}
		return v, "", s.roomProblem(e, &v, err)
	}
	v, err := e.room.Enter(ctx, pres.ref(), request)
	if err != nil || !v.Created {
		s.limit.back(c.addr)
	}
	if err != nil {
		p = s.roomProblem(e, &v, err)
		if p.status == http.StatusServiceUnavailable {
			s.log.Warn("enter was not answered", "room", e.room.ID(), "err", err)
		}
		return v, "", p
	}
	if pres.ok && v.Ref == pres.ref() {
		return v, pres.secret, nil
	}
	return v, s.seal(e, &v), nil
}

// seal makes the secret of a ticket.
func (s *Server) seal(e *entry, v *room.Visit) string {
	return s.opts.Keys.SealTicket(token.Ticket{Room: e.room.ID(), ID: v.ID, Seq: v.Seq, Issued: fromMicro(v.At)})
}

func (s *Server) tooMany(e *entry) *problem {
	s.metrics.limited.WithLabelValues(e.room.ID()).Inc()
	return &problem{status: 429, code: "too_many", retry: 1e9, // a second
		detail: "too many new tickets were asked for from this network address; those who have a ticket are not concerned"}
}

// readEnter reads enter's optional body: {"request_id": "…"} and nothing else.
func (c *call) readEnter() (request [16]byte, p *problem) {
	body, p := c.body(maxBody)
	if p != nil || len(bytes.TrimSpace(body)) == 0 {
		return request, p
	}
	id, ok := quickRequestID(body)
	if !ok {
		bad := func(detail string) ([16]byte, *problem) {
			return request, &problem{status: 400, code: "bad_request", detail: detail}
		}
		var doc map[string]json.RawMessage
		if err := json.Unmarshal(body, &doc); err != nil || doc == nil {
			return bad(`the body is not a JSON object; send {"request_id": "…"} or no body at all`)
		}
		for k := range doc {
			if k != "request_id" {
				return bad("unknown field " + strconv.Quote(clip(k)) + "; enter takes request_id alone")
			}
		}
		raw, given := doc["request_id"]
		if !given || string(raw) == "null" {
			return request, nil
		}
		if json.Unmarshal(raw, &id) != nil || !validRequestID(id) {
			return bad("request_id must be 22 to 64 characters of A-Z a-z 0-9 - _; make it of 128 random bits or more")
		}
	}
	return c.s.opts.Keys.RequestHash(c.entry.room.ID(), id), nil
}

// quickRequestID reads the body that clients write, without reflection.
func quickRequestID(b []byte) (string, bool) {
	b = bytes.TrimSpace(b)
	if len(b) < 2 || b[0] != '{' || b[len(b)-1] != '}' {
		return "", false
	}
	rest, ok := bytes.CutPrefix(bytes.TrimSpace(b[1:len(b)-1]), []byte(`"request_id"`))
	if !ok {
		return "", false
	}
	if rest, ok = bytes.CutPrefix(bytes.TrimSpace(rest), []byte(":")); !ok {
		return "", false
	}
	rest = bytes.TrimSpace(rest)
	if len(rest) < 2 || rest[0] != '"' || rest[len(rest)-1] != '"' {
		return "", false
	}
	id := string(rest[1 : len(rest)-1])
	return id, validRequestID(id)
}

func validRequestID(id string) bool {
	return len(id) >= 22 && len(id) <= 64 && !strings.ContainsFunc(id, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
	})
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

// body reads a request's body of at most limit bytes.
func (c *call) body(limit int64) ([]byte, *problem) {
	if c.r.ContentLength == 0 || c.r.Body == nil {
		return nil, nil
	}
	tooLarge := &problem{status: 413, code: "body_too_large", detail: "the body is larger than " + strconv.FormatInt(limit, 10) + " bytes"}
	if c.r.ContentLength > limit {
		return nil, tooLarge
	}
	if n := c.r.ContentLength; n > 0 {
		b := make([]byte, n)
		if _, err := io.ReadFull(c.r.Body, b); err != nil {
			return nil, &problem{status: 400, code: "bad_request", detail: "the body could not be read"}
		}
		return b, nil
	}
	b, err := io.ReadAll(io.LimitReader(c.r.Body, limit+1))
	switch {
	case err != nil:
		return nil, &problem{status: 400, code: "bad_request", detail: "the body could not be read"}
	case int64(len(b)) > limit:
		return nil, tooLarge
	}
	return b, nil
}

// ticket reads the ticket that a route of one visitor needs.
func (c *call) ticket() (room.Ref, bool) {
	pres, p := c.s.presented(c.r, c.entry, c.client.https, c.named)
	if p == nil && !pres.ok {
		p = c.s.noTicket(&pres, c.named)
	}
	if p != nil {
		c.fail(p)
		return room.Ref{}, false
	}
	return pres.ref(), true
}

func (s *Server) noTicket(p *presented, named bool) *problem {
	switch {
	case p.some:
		return &problem{status: 401, code: "ticket_invalid", detail: "the ticket is not one of this room; enter for a new one"}
	case named:
		return noTicket("no ticket: enter first, and send its cookie or Usher-Ticket (on this host Authorization belongs to the origin)")
	}
	return noTicket("no ticket: enter first, and send its cookie, Authorization: Bearer or Usher-Ticket")
}

func (c *call) status() {
	if ref, ok := c.ticket(); ok {
		v, err := c.entry.room.Status(c.ctx, ref)
		c.visit(&v, err, false)
	}
}

func (c *call) claim() {
	if ref, ok := c.ticket(); ok {
		v, err := c.entry.room.Claim(c.ctx, ref)
		c.visit(&v, err, false)
	}
}

func (c *call) renew() {
	if ref, ok := c.ticket(); ok {
		v, err := c.entry.room.Renew(c.ctx, ref)
		c.visit(&v, err, true)
	}
}

// presence is a sign of life.
func (c *call) presence() {
	if ref, ok := c.ticket(); ok {
		v, err := c.entry.room.Status(c.ctx, ref)
		c.empty(&v, err)
	}
}

// leave gives up a place or a session. What is gone already is as left.
func (c *call) leave() {
	if ref, ok := c.ticket(); ok {
		v, err := c.entry.room.Leave(c.ctx, ref)
		if isEnded(err) {
			err = nil
		}
		c.empty(&v, err)
	}
}

func (c *call) empty(v *room.Visit, err error) {
	if err != nil {
		c.fail(c.s.roomProblem(c.entry, v, err))
		return
	}
	c.w.Header().Set("Cache-Control", "no-store")
	c.w.WriteHeader(http.StatusNoContent)
}

func (c *call) visit(v *room.Visit, err error, fresh bool) {
	if err != nil {
		c.fail(c.s.roomProblem(c.entry, v, err))
		return
	}
	c.answer(http.StatusOK, v, "", fresh)
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 2048); return &b }}

// answer writes a visit. Nothing about a visitor may be stored by a cache.
func (c *call) answer(status int, v *room.Visit, secret string, fresh bool) {
	var adm *admission
	if v.State == room.Active {
		var err error
		if adm, err = c.s.admissions.of(c.entry, v, fresh); err != nil {
			c.s.log.Error("an admission could not be signed", "room", c.id, "err", err)
			c.fail(&problem{status: 500, code: "internal", detail: "the admission could not be signed; the operator's log says why"})
			return
		}
	}
	buf := buffers.Get().(*[]byte)
	*buf = appendVisit((*buf)[:0], c.id, v, secret, adm)
	h := c.w.Header()
	h["Content-Type"] = jsonType
	h["Cache-Control"] = noStore
	h["Content-Length"] = []string{strconv.Itoa(len(*buf))}
	c.w.WriteHeader(status)
	_, _ = c.w.Write(*buf)
	buffers.Put(buf)
}

// Header values that most answers share; net/http only reads them.
var (
	jsonType = []string{"application/json"}
	noStore  = []string{"no-store"}
)
