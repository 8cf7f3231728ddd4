package web

import (
	"context"
	"net/http"
	"net/netip"
	"time"
)

// heldKey finds a forward in the context of what Options.BeforeOrigin gets.
type heldKey struct{}

// held is the request as BeforeOrigin's handler sees it.
func (f *forward) held() *http.Request {
	r := f.r.WithContext(context.WithValue(f.r.Context(), heldKey{}, f))
	r.Host = f.client.hostRaw
	return r
}

// heldOf panics for a request that BeforeOrigin was not asked about: a fault of the program.
func heldOf(r *http.Request) *forward {
	f, ok := r.Context().Value(heldKey{}).(*forward)
	if !ok {
		panic("web: a request that Options.BeforeOrigin did not get")
	}
	return f
}

// Forward sends a request that Options.BeforeOrigin got on to its origin, and returns when the answer is over.
func Forward(w http.ResponseWriter, r *http.Request) {
	f := heldOf(r)
	f.w, f.r = w, r
	f.g.proxy.forward(f)
}

// Refuse answers a request that Options.BeforeOrigin got by problem+json with a stable code; a person who may try again
// after retry sees a page instead. A ticket that was just given out is told all the same, so that the next try finds it.
func Refuse(w http.ResponseWriter, r *http.Request, status int, code, detail string, retry time.Duration) {
	f := heldOf(r)
	if r.Context().Err() != nil {
		gone(w)
		return
	}
	for _, line := range f.cookies {
		w.Header().Add("Set-Cookie", line)
	}
	p := &problem{status: status, code: code, detail: detail, retry: retry}
	if retry <= 0 || !wantsPage(r) {
		p.write(w)
		return
	}
	f.w, f.r = w, r
	f.g.s.originPage(f, p)
}

// VisitorAddr is who sends a request that Options.BeforeOrigin got, as far as TrustedProxies say so: an IPv4 address or an IPv6 /64.
func VisitorAddr(r *http.Request) string {
	a := heldOf(r).client.addr
	switch {
	case !a.IsValid():
		return ""
	case a.Is4():
		return a.String()
	}
	return netip.PrefixFrom(a, 64).Masked().String()
}

// Readings are all the ways in which the origin of a request that Options.BeforeOrigin got may read its path.
func Readings(r *http.Request) []string {
	heldOf(r)
	if r.URL.Path == "" { // GET http://host
		return []string{"/"}
	}
	if isPlain(r.URL.Path) && !keepsSlash(r.URL.RawPath) {
		return []string{r.URL.Path}
	}
	all, _ := readings(r.URL)
	return append(all, r.URL.Path)
}
