package web

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ushergo/usher/room"
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

// passLine is the Set-Cookie line that gives a browser its admission.
func (e *entry) passLine(text string, lives time.Duration, https bool) string {
	lives = max(lives+token.Leeway, time.Second)
	return cookieLine(e.passCookie(https), text, strconv.Itoa(int(lives/time.Second)), https)
}

// goneCookies are the Set-Cookie lines that take ticket and admission away.
func (e *entry) goneCookies(https bool) []string {
	lines := []string{cookieLine(e.cookie(https), "", "0", https)}
	if e.cfg.OnEngineFailure == "admitted" {
		lines = append(lines, cookieLine(e.passCookie(https), "", "0", https))
	}
	return lines
}

// until returns the token of a session that a token signed now may outlive until end. It is signed once for
// each renewal.
func (a *admissions) until(e *entry, id room.ID, end time.Time) (text string, expires time.Time, err error) {
	sh := &a.shards[id[0]&63]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	expires = end.Truncate(time.Second)
	if k, ok := sh.known[id]; ok && k.expires == expires.Unix() {
		return k.token, expires, nil
	}
	now := time.Now()
	if latest := now.Add(token.MaxAge); expires.After(latest) {
		expires = latest.Truncate(time.Second)
	} else if expires.Before(now) {
		expires = now
	}
	text, err = a.keys.Sign(token.Admission{Issuer: a.issuer, Room: e.room.ID(), TicketID: id.String(), IssuedAt: now, Expires: expires})
	if err != nil {
		return "", expires, err
	}
	if len(sh.known) >= maxSigned {
		for other := range sh.known {
			delete(sh.known, other)
			break
		}
	}
	sh.known[id] = signed{end.Truncate(time.Second).Unix(), text}
	return text, expires, nil
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
