package web

import (
	"net/http"
	"slices"
	"strings"
)

// site is where a browser says that a request comes from.
type site uint8

const (
	siteOwn     site = iota // the same origin, or no browser
	siteListed              // a foreign origin that the room's cors list names
	siteForeign             // refused
)

// origin judges where a request comes from. A browser marks what it does for a foreign page by Origin or by
// Sec-Fetch-Site; whoever is no browser carries neither, and has no visitor's cookie to misuse.
func (c *call) origin() site {
	if origins := c.r.Header["Origin"]; len(origins) > 0 {
		o := origins[0]
		switch {
		case len(origins) > 1:
			return siteForeign
		case c.entry != nil && slices.ContainsFunc(c.entry.cfg.CORS, func(l string) bool { return strings.EqualFold(strings.TrimRight(l, "/"), o) }):
			return siteListed
		case !c.s.sameOrigin(c.client, o):
			return siteForeign
		}
	}
	if c.r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		return siteForeign
	}
	return siteOwn
}

// allowCORS lets a listed foreign page read the answer. It must be called before any answer of a room's API.
func (c *call) allowCORS(from site) {
	if len(c.entry.cfg.CORS) == 0 {
		return
	}
	h := c.w.Header()
	h.Add("Vary", "Origin")
	if from == siteListed {
		h.Set("Access-Control-Allow-Origin", c.r.Header.Get("Origin"))
		h.Set("Access-Control-Allow-Credentials", "true")
		h.Set("Access-Control-Expose-Headers", "Retry-After, ETag")
	}
}

// preflight answers a browser that asks whether a foreign page may call.
func (c *call) preflight(from site) {
	h := c.w.Header()
	h.Set("Cache-Control", "no-store")
	if from == siteForeign {
		c.fail(crossSite())
		return
	}
	h.Set("Access-Control-Allow-Methods", c.route.method)
	h.Set("Access-Control-Allow-Headers", "Content-Type, Usher-Ticket, Authorization, Last-Event-ID")
	h.Set("Access-Control-Max-Age", "600")
	c.w.WriteHeader(http.StatusNoContent)
}

func crossSite() *problem {
	return &problem{status: 403, code: "cross_site", detail: "the request comes from another site; its operator can allow it " +
		"by the room's cors list. If this is the site itself, a proxy in front changes the Host header: pass it on, or set public.url"}
}
