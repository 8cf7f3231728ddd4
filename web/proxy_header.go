package web

import (
	"net"
	"net/http"
	"net/url"
	"strings"
)

// What origins read, by hand or by package admission.
const (
	headerRoom     = "X-Usher-Room"
	headerTicketID = "X-Usher-Ticket-Id"
	headerToken    = "X-Usher-Token"
)

// keepPath makes the outgoing path the one that came, byte for byte: net/url would escape what browsers do not.
func keepPath(out *url.URL, requestURI string) {
	if !strings.HasPrefix(requestURI, "/") || strings.HasPrefix(requestURI, "//") {
		return // an absolute address, or what net/url would take for one: its own spelling will do
	}
	path, _, _ := strings.Cut(requestURI, "?")
	if path != out.EscapedPath() {
		out.Opaque = path
	}
}

// headers makes the outgoing headers: those of the visitor without what only usher may say, and usher's own.
func (f *forward) headers(in, out *http.Request) {
	h := out.Header
	for key := range h {
		if f.drops(key) {
			delete(h, key)
		}
	}
	for key := range out.Trailer {
		if f.drops(key) {
			delete(out.Trailer, key)
		}
	}
	stripCookies(h, f.table)

	peer, _, err := net.SplitHostPort(in.RemoteAddr)
	if err != nil {
		peer = in.RemoteAddr
	}
	if prior := in.Header["X-Forwarded-For"]; f.client.trusted && len(prior) > 0 {
		peer = strings.Join(prior, ", ") + ", " + peer
	}
	values := [...]string{peer, f.client.hostRaw, f.client.scheme(), "", "", ""}
	h["X-Forwarded-For"] = values[0:1:1]
	h["X-Forwarded-Host"] = values[1:2:2]
	h["X-Forwarded-Proto"] = values[2:3:3]
	if f.entry == nil {
		return
	}
	values[3], values[4], values[5] = f.entry.room.ID(), f.id, f.token
	h[headerRoom] = values[3:4:4]
	if f.id != "" {
		h[headerTicketID] = values[4:5:5]
	}
	if f.token != "" {
		h[headerToken] = values[5:6:6]
	}
}

// drops says whether a visitor's header stays behind.
func (f *forward) drops(key string) bool {
	if key == "" {
		return true
	}
	switch key[0] {
	case 'u', 'U':
		return spelled(key, "usher-ticket", false) || spelled(key, "usher-session", false)
	case 'x', 'X':
		switch {
		case spelled(key, "x-usher-", true),
			// By these some frameworks take another path than the one that was decided about.
			spelled(key, "x-original-url", false), spelled(key, "x-rewrite-url", false),
			spelled(key, "x-forwarded-for", false), spelled(key, "x-forwarded-host", false), spelled(key, "x-forwarded-proto", false):
			return true
		case f.client.trusted:
			return false
		}
		return spelled(key, "x-forwarded-", true) || spelled(key, "x-real-ip", false) || spelled(key, "x-original-uri", false)
	}
	return false
}

// spelled says whether an origin may take a header's name for the given one, or for one that begins with it:
// CGI folds case and turns all but letters and digits into underscores.
func spelled(key, name string, prefix bool) bool {
	if len(key) < len(name) || !prefix && len(key) != len(name) {
		return false
	}
	for i := 0; i < len(name); i++ {
		c := key[i]
		switch {
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		default:
			c = '-'
		}
		if c != name[i] {
			return false
		}
	}
	return true
}

// stripCookies takes the cookies of all rooms out; the others stay byte for byte.
func stripCookies(h http.Header, t *table) {
	lines := h["Cookie"]
	changed := false
	for _, line := range lines {
		changed = changed || strings.Contains(line, "usher-")
	}
	if !changed {
		return
	}
	kept := make([]string, 0, len(lines))
	for _, line := range lines {
		if line = withoutOurs(line, t); line != "" {
			kept = append(kept, line)
		}
	}
	if len(kept) == 0 {
		delete(h, "Cookie")
	} else {
		h["Cookie"] = kept
	}
}

func withoutOurs(line string, t *table) string {
	var b strings.Builder
	b.Grow(len(line))
	for rest, more := line, true; more; {
		var part string
		part, rest, more = strings.Cut(rest, ";")
		name, _, _ := strings.Cut(part, "=")
		if t.isOurs(strings.Trim(name, " \t")) {
			continue
		}
		if b.Len() == 0 {
			part = strings.TrimLeft(part, " \t")
		} else {
			b.WriteByte(';')
		}
		b.WriteString(part)
	}
	return b.String()
}

// isOurs says whether a cookie is a ticket or a pass of a room.
func (t *table) isOurs(name string) bool {
	id, ok := strings.CutPrefix(strings.TrimPrefix(name, "__Host-"), "usher-")
	return ok && t.rooms[strings.TrimSuffix(id, passSuffix)] != nil
}
