package web

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/ushergo/usher/room"
)

// problem is an RFC 9457 answer with a stable code.
type problem struct {
	status int
	code   string
	detail string         // what is wrong and the mend, for people
	retry  time.Duration  // Retry-After, rounded up to seconds; 0: none
	more   map[string]any // members of this kind of problem
}

func (p *problem) write(w http.ResponseWriter) {
	doc := make(map[string]any, len(p.more)+5)
	for k, v := range p.more {
		doc[k] = v
	}
	doc["type"], doc["title"], doc["status"], doc["code"] = "about:blank", http.StatusText(p.status), p.status, p.code
	if p.detail != "" {
		doc["detail"] = p.detail
	}
	b, err := json.Marshal(doc)
	if err != nil { // strings and numbers: cannot happen
		panic(err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	h.Set("X-Content-Type-Options", "nosniff")
	if p.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(seconds(p.retry)))
	}
	w.WriteHeader(p.status)
	_, _ = w.Write(b)
}

// seconds rounds up: nobody is told to come too early.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

func notFound(detail string) *problem {
	return &problem{status: 404, code: "not_found", detail: detail}
}

func noRoom(id string) *problem {
	return &problem{status: 404, code: "room_not_found", detail: "there is no room " + strconv.Quote(id)}
}

func notAllowed(w http.ResponseWriter, allow string) *problem {
	w.Header().Set("Allow", allow)
	return &problem{status: 405, code: "method_not_allowed", detail: "use " + allow}
}

// roomProblem is the answer to what a room or its engine said.
func (s *Server) roomProblem(e *entry, v *room.Visit, err error) *problem {
	switch {
	case errors.Is(err, room.ErrClosed):
		p := &problem{status: 403, code: "room_closed", detail: "the room takes no new visitors"}
		if m := e.room.Summary().Message; m != "" {
			p.more = map[string]any{"message": m}
		}
		return p
	case errors.Is(err, room.ErrNotOpen):
		return notOpen(e, time.Now())
	case errors.Is(err, room.ErrFull):
		return &problem{status: 429, code: "room_full", detail: "the room takes no more visitors for now", retry: 15 * time.Second}
	case errors.Is(err, room.ErrSpent):
		return ended("request_spent", "this request id belongs to a ticket that has ended; enter with a new one", v)
	case errors.Is(err, room.ErrEnded):
		return ended("ticket_ended", "the ticket has ended; enter again for a new one", v)
	case errors.Is(err, room.ErrNoTicket):
		return noTicket("the ticket is not known here")
	case errors.Is(err, room.ErrNotAdmitted):
		return &problem{status: 409, code: "not_admitted", detail: "the ticket is still waiting", more: map[string]any{"state": "waiting"}}
	case errors.Is(err, room.ErrNotFound):
		return noRoom(e.room.ID())
	}
	return &problem{
		status: 503, code: "engine_unavailable", retry: 2 * time.Second,
		detail: "the engine does not answer; ask again with the same request id or ticket, no place is lost",
	}
}

func notOpen(e *entry, now time.Time) *problem {
	p := &problem{status: 403, code: "room_not_open", detail: "the room is not open yet", retry: time.Minute}
	if opens := e.cfg.Schedule.OpensAt.Time; !opens.IsZero() {
		enters := opens.Add(-time.Duration(e.cfg.Schedule.Prequeue))
		p.more = map[string]any{"opens_at": opens.UTC().Format(time.RFC3339), "enters_at": enters.UTC().Format(time.RFC3339)}
		p.retry = min(max(enters.Sub(now), time.Second), time.Hour)
	}
	return p
}

func ended(code, detail string, v *room.Visit) *problem {
	p := &problem{status: 410, code: code, detail: detail, more: map[string]any{"state": "ended"}}
	if v != nil && v.Reason != room.NoReason {
		p.more["reason"] = v.Reason.String()
	}
	return p
}

func noTicket(detail string) *problem {
	return &problem{status: 401, code: "ticket_missing", detail: detail}
}
