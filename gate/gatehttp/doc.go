// Package gatehttp puts a gate in front of an http.Handler: at most so many requests of a key
// run at once, the others wait a little or get 429.
//
//	mux.Handle("POST /jobs/{id}/accept", gatehttp.Handler(g, byJob, accept, gatehttp.Options{}))
//
// A request holds its permit while it runs, however long that is: the lease is extended as long as the handler has
// not returned, so a short lease is a good one (a crashed process blocks for no longer than that). Should the permit be lost all
// the same, the request's context ends with cause gate.ErrExpired. FromContext hands the permit to the handler, for its
// fence and for Settle.
//
// Rules do the same for a whole site by configuration, the gates: section of usher's proxy mode.
package gatehttp
