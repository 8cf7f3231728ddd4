package web

import (
	"net/http"
	"strconv"
	"strings"
)

// wantsPage says whether a request is a browser's page navigation, which is answered with HTML and may enter:
// a GET that says so, or one without that header whose Accept prefers text/html by q-value. Everything else
// gets JSON.
func wantsPage(r *http.Request) bool {
	if r.Header.Get("Sec-Fetch-Mode") == "navigate" {
		return true
	}
	return prefersHTML(r.Header["Accept"])
}

// prefersHTML says whether text/html (or xhtml) is wanted more than JSON. Wildcards want both alike.
func prefersHTML(accept []string) bool {
	html, json := quality(accept, "text/html"), quality(accept, "application/json")
	json = max(json, quality(accept, "application/problem+json"))
	return html > 0 && html > json
}

// quality is the q-value that a list gives to a media type, by its most specific range; 0: not wanted.
func quality(lines []string, media string) float64 {
	kind, _, _ := strings.Cut(media, "/")
	best, q := 0, 0.0
	for _, line := range lines {
		if len(line) > 4096 {
			continue // nobody needs so much, and it is parsed for each request
		}
		for line != "" {
			var part string
			part, line, _ = strings.Cut(line, ",")
			name, params, _ := strings.Cut(part, ";")
			name = strings.ToLower(strings.TrimSpace(name))
			how := 0
			switch {
			case name == media:
				how = 3
			case strings.HasSuffix(name, "/*") && name[:len(name)-2] == kind:
				how = 2
			case name == "*/*":
				how = 1
			}
			if how > best {
				best, q = how, qValue(params)
			}
		}
	}
	return q
}

func qValue(params string) float64 {
	for params != "" {
		var p string
		p, params, _ = strings.Cut(params, ";")
		if k, v, ok := strings.Cut(strings.TrimSpace(p), "="); ok && strings.EqualFold(strings.TrimSpace(k), "q") {
			if f, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil && f >= 0 && f <= 1 {
				return f
			}
			return 0 // a range that cannot be read asks for nothing
		}
	}
	return 1
}

// isPrefetch says whether a browser fetches a page that nobody may ever look at.
func isPrefetch(r *http.Request) bool {
	for _, name := range []string{"Sec-Purpose", "Purpose", "X-Purpose", "X-Moz"} {
		if v := r.Header.Get(name); v != "" {
			v = strings.ToLower(v)
			if strings.Contains(v, "prefetch") || strings.Contains(v, "prerender") || strings.Contains(v, "preview") {
				return true
			}
		}
	}
	return false
}

// entersByGet says whether a navigation may take a ticket: not a prefetch, and not a foreign page's frame,
// whose cookies the browser does not send, so that each load would be a new visitor.
func entersByGet(r *http.Request) bool {
	if r.Method != http.MethodGet || isPrefetch(r) {
		return false
	}
	if m := r.Header.Get("Sec-Fetch-Mode"); m != "" && m != "navigate" {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Dest") {
	case "", "document":
		return true
	}
	return r.Header.Get("Sec-Fetch-Site") != "cross-site"
}

// safeNext reduces a wish for where to go to a path of this site. Browsers read a backslash as a slash and
// drop control characters, so both are refused. ok is false for anything that leads elsewhere.
func safeNext(next string, s *Server, c *client) (path string, ok bool) {
	if next == "" {
		return "", true
	}
	if len(next) > 4096 || strings.ContainsFunc(next, func(r rune) bool { return r <= 0x20 || r == 0x7f || r == '\\' }) {
		return "", false
	}
	if strings.HasPrefix(next, "http://") || strings.HasPrefix(next, "https://") {
		rest := next[strings.Index(next, "://")+3:]
		end := strings.IndexAny(rest, "/?#")
		if end < 0 {
			end = len(rest)
		}
		if !s.sameOrigin(c, next[:len(next)-len(rest)+end]) {
			return "", false
		}
		if next = rest[end:]; next == "" || next[0] != '/' {
			next = "/" + next
		}
	}
	if next[0] != '/' || strings.HasPrefix(next, "//") {
		return "", false
	}
	return next, true
}
