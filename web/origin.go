package web

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ushergo/usher/token"
	"github.com/ushergo/usher/web/page"
)

// passSuffix makes the name of the cookie that keeps an admission for the time the engine is away. Room ids
// have no dot, so it is no other room's ticket.
const passSuffix = ".pass"

func (e *entry) passCookie(https bool) string { return e.cookie(https) + passSuffix }

func cookieLine(name, value, maxAge string, https bool) string {
	line := name + "=" + value + "; Path=/; Max-Age=" + maxAge + "; HttpOnly; SameSite=Lax"
	if https {
		line += "; Secure"
	}
	return line
}

// ticketCookie is the Set-Cookie line that gives a browser its ticket.
func (e *entry) ticketCookie(secret string, https bool) string {
	return cookieLine(e.cookie(https), secret, cookieAge, https)
}

// passFor is the Set-Cookie line that gives a browser its admission, where that may be needed and it has another.
func (e *entry) passFor(r *http.Request, in letIn, https bool) []string {
	if in.token == "" || e.cfg.OnEngineFailure != "admitted" {
		return nil
	}
	name, known := e.passCookie(https), false
	cookies(r.Header["Cookie"], name, func(v string) { known = known || v == in.token })
	if known {
		return nil
	}
	lives := max(time.Until(in.expires)+token.Leeway, time.Second)
	return []string{cookieLine(name, in.token, strconv.Itoa(int(lives/time.Second)), https)}
}

// goneCookies are the Set-Cookie lines that take the admission away. The ticket stays: it has ended, and the files of
// the page that ended it come with it (see linger); the next page takes a new one.
func (e *entry) goneCookies(https bool) []string {
	if e.cfg.OnEngineFailure == "admitted" {
		return []string{cookieLine(e.passCookie(https), "", "0", https)}
	}
	return nil
}

// endsSession takes the origin's word about the session out of its answer.
func endsSession(h http.Header) (over bool) {
	const name = "Usher-Session"
	lines := h[name]
	if lines == nil {
		return false
	}
	delete(h, name)
	for _, line := range lines {
		for word := range strings.SplitSeq(line, ",") {
			over = over || strings.EqualFold(strings.TrimSpace(word), "end")
		}
	}
	return over
}

// makePrivate keeps shared caches from handing one visitor's answer to another who was not let in.
func makePrivate(h http.Header) {
	for key := range h {
		switch key {
		case "Surrogate-Control", "Edge-Control", "X-Accel-Expires":
			delete(h, key)
		default:
			if strings.HasSuffix(key, "Cdn-Cache-Control") {
				delete(h, key)
			}
		}
	}
	lines := h["Cache-Control"]
	if len(lines) == 0 {
		h["Cache-Control"] = onlyPrivate
		return
	}
	kept, closed := make([]string, 0, 4), false
	for _, line := range lines {
		for line != "" {
			var part string
			part, line = cutDirective(line)
			name, _, _ := strings.Cut(part, "=")
			switch name = strings.ToLower(strings.TrimSpace(name)); name {
			case "", "public", "s-maxage", "private": // a private with fields covers them alone
				continue
			case "no-store":
				closed = true
			}
			kept = append(kept, part)
		}
	}
	if !closed {
		kept = append(kept, "private")
	}
	h["Cache-Control"] = []string{strings.Join(kept, ", ")}
}

var onlyPrivate = []string{"private"}

// cutDirective takes the first element of a list whose elements may hold quoted commas.
func cutDirective(list string) (part, rest string) {
	quoted := false
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			return strings.TrimSpace(list[:i]), list[i+1:]
		}
	}
	return strings.TrimSpace(list), ""
}

// originPage tells a visitor that the site behind is down. She keeps her session; what can be fetched again is.
func (s *Server) originPage(f *forward, p *problem) {
	st, pages := page.State{Room: f.client.host, APIBase: Prefix + "/v1"}, s.builtin
	if f.entry != nil {
		st, pages = f.entry.page("", Prefix), f.entry.pages
		st.View.TicketID = f.id
	}
	st.View.State, st.RetryAfter, st.Next = page.Origin, seconds(p.retry), ""
	if isSafe(f.r.Method) {
		st.Next = f.r.URL.RequestURI()
	}
	s.showPage(f.w, f.r, pages, p.status, st)
}
