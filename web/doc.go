// Package web is usher's HTTP side: the visitors' API and waiting page on the public listener, the
// operator's API, metrics and dashboard on the admin listener.
//
// # Where things live
//
// On a host that a room's match names (or on every host, if one matches without a host) every path of the
// public API has the prefix /.usher, and everything else belongs to the origin. There a ticket is read from
// the cookie or from Usher-Ticket, never from Authorization, which is the origin's. On other hosts the
// paths have no prefix. Where a matched host has no origin (check mode) nothing is shadowed by the plain
// paths, so they are answered too.
//
// # Promises
//
//   - A refusal is never a 2xx. Errors are application/problem+json with a stable code.
//   - A ticket's secret, a request id and the admin token are in no log, URL or metric.
//   - Whoever polls, refreshes or repeats is never limited; only new tickets are counted, by address.
//   - A request that a browser marks as cross-site, or that carries a foreign Origin, changes nothing.
//   - X-Forwarded-* are believed from the configured networks alone.
//   - A slow reader of events is cut off; nobody waits for it.
//
// # Parts
//
//	server.go   which handler a request gets      match.go    rooms by host and path
//	client.go   address, scheme and host          ticket.go   the visitor's ticket
//	api.go      enter, status, claim, …           events.go   WebSockets, event streams, polls
//	push.go     a room, as the hub asks it
//	wait.go     the waiting page                  now.go      the public document
//	gate.go     who passes to an origin           paths.go    every reading of a path
//	proxy*.go   forwarding, sockets, headers      origin.go   the origin's answer
//	check.go    what proxies in front ask         admin*.go   the operator's side
package web
