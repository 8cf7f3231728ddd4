package web

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/ushergo/usher/push"
	"github.com/ushergo/usher/push/poll"
	"github.com/ushergo/usher/push/sse"
	"github.com/ushergo/usher/push/stomp"
	"github.com/ushergo/usher/room"
)

// streams are the connections by which visitors are told: WebSockets, event streams and polls, all of one hub.
type streams struct {
	s      *Server
	hub    *push.Hub
	window atomic.Int64 // of the drain, ns
}

func newStreams(s *Server) *streams {
	st := &streams{s: s, hub: push.New(push.Options{MaxConns: s.opts.MaxStreams, StatsEvery: s.opts.StatsEvery, Logger: s.log})}
	s.wg.Go(func() {
		<-s.stop
		st.hub.Close()
	})
	return st
}

func (st *streams) count() int { return st.hub.Conns() }

// drainRate is how many connections a second a node lets go: what those that take over accept without noticing.
const drainRate = 1500

// Drain makes the node lose its visitors: ready becomes 503, and each connection is told when to come back and is
// closed, at a bounded rate. It returns when all are closed or ctx ends. The listeners go on answering; stop them
// after it.
func (s *Server) Drain(ctx context.Context) error {
	window := s.opts.DrainFor / 2
	if at, ok := ctx.Deadline(); ok {
		window = max(time.Until(at)/2, 0)
	}
	s.streams.window.Store(int64(min(window, time.Duration(s.streams.count())*time.Second/drainRate)))
	s.drainOnce.Do(func() { close(s.draining) })
	return s.streams.hub.Drain(ctx, drainRate)
}

// Leave makes ready 503, so that balancers send visitors elsewhere; nothing else changes until Drain. It returns how
// many connections there are to drain: where there are none, nobody needs to be waited for.
func (s *Server) Leave() int {
	s.drainOnce.Do(func() { close(s.draining) })
	return s.streams.count()
}

// slot is when a proxied socket closes in a drain, and how long its client then waits.
func (st *streams) slot() (closeIn, comeBack time.Duration) {
	window := time.Duration(st.window.Load())
	return rand.N(window + 1), time.Second + rand.N(2*time.Second+window)
}

// pushAddr is how the hub counts a visitor's address; "" where many sit behind one.
func (c *call) pushAddr() string {
	if c.s.limit.exempt(c.client.addr) {
		return ""
	}
	if a := c.client.addr; a.Is4() {
		return a.String()
	}
	p, err := c.client.addr.Prefix(64)
	if err != nil {
		return ""
	}
	return p.String()
}

// refused is the answer to a connection that the hub does not take.
func refused(err error, after time.Duration) *problem {
	switch {
	case errors.Is(err, push.ErrDraining), errors.Is(err, push.ErrClosed):
		return &problem{status: 503, code: "draining", detail: "this node is being stopped; come back in a moment", retry: 5 * time.Second}
	case errors.Is(err, push.ErrTicket):
		return &problem{status: 429, code: "too_many", detail: "this ticket has too many event streams open already", retry: 30 * time.Second}
	case errors.Is(err, push.ErrAddress):
		return &problem{status: 429, code: "too_many", detail: "this network address has too many event streams open already", retry: 30 * time.Second}
	}
	return &problem{status: 503, code: "streams_full", detail: "too many event streams are open or being opened; poll status instead", retry: max(after, time.Second)}
}

// caller is whose news are asked for.
type caller struct {
	room   *push.Room
	ticket push.Ticket
	st     push.Standing
	from   push.Cursor
}

// caller looks at the ticket of a request; ok is false when it has been answered.
func (c *call) caller() (who caller, ok bool) {
	ref, ok := c.ticket()
	if !ok {
		return who, false
	}
	who, v, err := c.s.lookFor(c.ctx, c.entry, ref)
	if err != nil {
		c.fail(c.s.roomProblem(c.entry, &v, err))
		return who, false
	}
	return who, true
}

func (s *Server) lookFor(ctx context.Context, e *entry, ref room.Ref) (who caller, v room.Visit, err error) {
	who.room = s.pushRoom(e)
	who.ticket = push.Ticket{Seq: ref.Seq, ID: push.ID(ref.ID), Name: ref.ID.String()}
	who.from = who.room.Head() // before the look, so that nothing falls between
	v, err = e.room.Status(ctx, ref)
	if err == nil {
		who.st, err = s.standing(e, &v)
	}
	return who, v, err
}

// after reads how far a client says it has come; nil: it does not.
func after(text string) (*push.Cursor, *problem) {
	if text == "" {
		return nil, nil
	}
	cursor, err := push.ParseCursor(text)
	if err != nil {
		return nil, &problem{status: 400, code: "bad_request", detail: err.Error()}
	}
	return &cursor, nil
}

func (c *call) hidden() bool { return c.r.URL.Query().Get("hidden") == "1" }

// events answers with server-sent events for one ticket.
func (c *call) events() {
	addr := c.pushAddr()
	if c.r.Method != http.MethodHead {
		if wait, err := c.s.streams.hub.Accept(addr); err != nil {
			// An EventSource that gets anything but 200 never comes back.
			if c.r.Header.Get("Accept") == "text/event-stream" {
				sse.Shed(c.w, wait)
				return
			}
			c.fail(refused(err, wait))
			return
		}
	}
	if !c.stream(addr) && c.r.Method != http.MethodHead {
		c.s.streams.hub.Forget(addr)
	}
}

// stream serves events; false when the hub did not take the connection.
func (c *call) stream(addr string) bool {
	last := c.r.Header.Get("Last-Event-ID")
	if last == "" {
		last = c.r.URL.Query().Get("after")
	}
	cursor, p := after(last)
	if p != nil {
		c.fail(p)
		return false
	}
	who, ok := c.caller()
	if !ok {
		return false
	}
	if err := c.s.streams.hub.Check(who.ticket.ID); err != nil {
		c.fail(refused(err, 0))
		return false
	}
	if c.r.Method == http.MethodHead {
		sse.Headers(c.w.Header())
		c.w.WriteHeader(http.StatusOK)
		return false
	}
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{}) // the server's limit is for requests
	cutUnheard(c.r.Context())
	err := sse.Serve(c.s.streams.hub, c.w, c.r, sse.Caller{
		Room: who.room, Ticket: who.ticket, Standing: who.st, From: who.from, After: cursor, Addr: addr, Hidden: c.hidden(),
	})
	if err != nil {
		h := c.w.Header()
		h.Del("X-Accel-Buffering")
		c.fail(refused(err, 0))
		return false
	}
	return true
}

// poll answers with what came after a cursor, as soon as there is something.
func (c *call) poll() {
	addr, hub := c.pushAddr(), c.s.streams.hub
	if wait, err := hub.Accept(addr); err != nil {
		c.fail(refused(err, wait))
		return
	}
	body, taken := c.held(addr)
	if !taken {
		hub.Forget(addr)
	}
	if body != nil {
		c.raw(http.StatusOK, "no-store", "application/json", body)
	}
}

func (c *call) held(addr string) (body []byte, taken bool) {
	cursor, p := after(c.r.URL.Query().Get("after"))
	if p != nil {
		c.fail(p)
		return nil, false
	}
	who, ok := c.caller()
	if !ok {
		return nil, false
	}
	body, err := poll.Wait(c.r.Context(), c.s.streams.hub, poll.Caller{
		Room: who.room, Ticket: who.ticket, Standing: who.st, From: who.from, After: cursor, Addr: addr, Hidden: c.hidden(),
	}, poll.Hold)
	if errors.Is(err, push.ErrTicket) || errors.Is(err, push.ErrDraining) || errors.Is(err, push.ErrClosed) {
		c.fail(refused(err, 0))
		return nil, false
	}
	return body, true // nil when the client has gone
}

// stomp upgrades to a WebSocket that speaks STOMP.
func (c *call) stomp() {
	if c.r.Method == http.MethodOptions {
		c.preflight(siteForeign)
		return
	}
	// Which room is meant is known with CONNECT; until then, any room that lists a foreign page lets it come in.
	if c.origin() == siteForeign && !c.listed() {
		c.fail(crossSite())
		return
	}
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{})
	h := stomp.Handler{Hub: c.s.streams.hub, Caller: c.connect}
	h.Serve(c.w, c.r, c.pushAddr())
}

// listed says whether the cors list of some room names the page.
func (c *call) listed() bool {
	for _, e := range c.s.table().rooms {
		if c.from(e) == siteListed {
			return true
		}
	}
	return false
}

// from judges where a request comes from as a room sees it.
func (c *call) from(e *entry) site {
	of := *c
	of.entry = e
	return of.origin()
}

// maxGuess bounds how many rooms a ticket is tried on that does not say of which room it is.
const maxGuess = 256

// connect finds whom a CONNECT belongs to: by its own ticket, else by what the upgrade carries.
func (c *call) connect(ctx context.Context, r *http.Request, in stomp.Connect) (stomp.Caller, error) {
	policy := func(text string) error { return &stomp.Refusal{Code: push.CodePolicy, Message: text} }
	rooms := c.s.table().rooms
	if in.Room != "" {
		e, p := c.s.entry(ctx, in.Room)
		if p != nil {
			return stomp.Caller{}, policy("there is no such room")
		}
		rooms = map[string]*entry{in.Room: e}
	} else if len(rooms) > maxGuess {
		return stomp.Caller{}, policy("there are many rooms here: name yours by a header room")
	}
	var found *entry
	var ref room.Ref
	for _, e := range rooms {
		var one room.Ref
		if in.Ticket != "" {
			t, err := c.s.opts.Keys.OpenTicket(e.room.ID(), in.Ticket)
			if err != nil {
				continue
			}
			one = room.Ref{Seq: t.Seq, ID: t.ID}
		} else {
			pres, p := c.s.presented(r, e, c.client.https, c.named)
			if p != nil {
				return stomp.Caller{}, policy(p.detail)
			}
			if !pres.ok {
				continue
			}
			one = pres.ref()
		}
		if found != nil {
			return stomp.Caller{}, policy("tickets of several rooms were sent: say which is meant by a header room")
		}
		found, ref = e, one
	}
	if found == nil {
		return stomp.Caller{}, policy("no valid ticket: enter first, and send its cookie, Authorization, or a header ticket in CONNECT")
	}
	if c.from(found) == siteForeign {
		return stomp.Caller{}, policy(crossSite().detail)
	}
	who, v, err := c.s.lookFor(ctx, found, ref)
	switch {
	case errors.Is(err, room.ErrEnded):
		return stomp.Caller{}, &stomp.Refusal{Code: push.CodeEnded, Message: "the ticket has ended: " + v.Reason.String()}
	case isEnded(err):
		return stomp.Caller{}, &stomp.Refusal{Code: push.CodeEnded, Message: "the ticket is not known any more; enter for a new one"}
	case err != nil:
		return stomp.Caller{}, err
	}
	return stomp.Caller{Room: who.room, Ticket: who.ticket, Standing: who.st, From: who.from}, nil
}
