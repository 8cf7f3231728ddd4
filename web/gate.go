package web

import "net/http"

// newGate makes what answers everything but the API on hosts that rooms name.
func newGate(s *Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		notFound(s.whereAPI(true)).write(w)
	})
}

// check answers whether a proxy in front may let a request through.
func (c *call) check() {
	c.fail(notFound("check mode"))
}
