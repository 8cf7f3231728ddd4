package web

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// client is who asks, as far as the connection and the proxies that are believed say so.
type client struct {
	addr    netip.Addr // of the visitor; invalid where the connection has none
	https   bool
	host    string // lower case, without port
	hostRaw string // as it came, with port: what Origin is compared with
	trusted bool   // the connection comes from a trusted proxy
}

// client reads who asks. X-Forwarded-For is read from the right: each hop vouches for the one to its left,
// so the first address that is not a trusted proxy is the visitor.
func (s *Server) client(r *http.Request) client {
	c := client{https: r.TLS != nil, hostRaw: r.Host}
	if ap, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		c.addr = ap.Addr().Unmap().WithZone("")
	}
	if len(s.opts.TrustedProxies) > 0 && s.isTrusted(c.addr) {
		c.trusted = true
		c.addr = s.forwardedFor(r.Header["X-Forwarded-For"], c.addr)
		if p := lastElement(r.Header["X-Forwarded-Proto"]); p != "" {
			c.https = strings.EqualFold(p, "https") || strings.EqualFold(p, "wss")
		}
		if h := lastElement(r.Header["X-Forwarded-Host"]); h != "" && validHost(h) {
			c.hostRaw = h
		}
	}
	c.host = hostOnly(c.hostRaw)
	// A proxy that ends TLS and was not named as trusted: the operator still says that visitors see https.
	if !c.https && s.public.Scheme == "https" && c.host == s.publicHost {
		c.https = true
	}
	return c
}

func (s *Server) isTrusted(a netip.Addr) bool {
	return slices.ContainsFunc(s.opts.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// maxHops bounds the work that a hostile X-Forwarded-For can cause.
const maxHops = 32

func (s *Server) forwardedFor(lines []string, last netip.Addr) netip.Addr {
	hops := 0
	for i := len(lines) - 1; i >= 0; i-- {
		line := lines[i]
		for line != "" {
			var hop string
			if k := strings.LastIndexByte(line, ','); k >= 0 {
				line, hop = line[:k], line[k+1:]
			} else {
				line, hop = "", line
			}
			a, ok := parseHop(strings.TrimSpace(hop))
			if hops++; !ok || hops > maxHops {
				return last // whoever wrote this is the last one we can name
			}
			if last = a; !s.isTrusted(a) {
				return a
			}
		}
	}
	return last
}

// parseHop reads an address, with or without port and brackets.
func parseHop(s string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return a.Unmap().WithZone(""), true
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	return netip.Addr{}, false
}

// lastElement is the last element of a list header: what the nearest proxy said.
func lastElement(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	line := lines[len(lines)-1]
	return strings.TrimSpace(line[strings.LastIndexByte(line, ',')+1:])
}

func validHost(h string) bool {
	return len(h) <= 255 && !strings.ContainsFunc(h, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune(".-_:[]", c))
	})
}

// hostOnly is a host without its port and final dot, in lower case.
func hostOnly(h string) string {
	if strings.HasPrefix(h, "[") {
		if i := strings.IndexByte(h, ']'); i > 0 {
			h = h[1:i]
		}
	} else if i := strings.IndexByte(h, ':'); i >= 0 && strings.LastIndexByte(h, ':') == i {
		h = h[:i]
	}
	return strings.ToLower(strings.TrimSuffix(h, ".")) // allocates only where there is an upper case letter
}

func (c *client) scheme() string {
	if c.https {
		return "https"
	}
	return "http"
}

// sameOrigin says whether an Origin header names the site that was asked. Behind a proxy that ends TLS and
// is not trusted we see http where the visitor sees https; an https origin is then believed, for it cannot
// be the weaker one.
func (s *Server) sameOrigin(c *client, origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return false
	}
	if u.Scheme == s.public.Scheme && strings.EqualFold(u.Host, s.public.Host) {
		return true
	}
	if u.Scheme != "https" && (u.Scheme != "http" || c.https) {
		return false
	}
	return strings.EqualFold(stripPort(u.Host, u.Scheme), stripPort(c.hostRaw, u.Scheme))
}

// stripPort drops the port that a scheme has anyway.
func stripPort(host, scheme string) string {
	if scheme == "https" {
		return strings.TrimSuffix(host, ":443")
	}
	return strings.TrimSuffix(host, ":80")
}
