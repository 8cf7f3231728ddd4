// Package crowd is a crowd of visitors for a waiting room: each one a real HTTP
// client with a cookie of its own and a temper, who enters, waits, is let in,
// walks the site behind the room and buys a ticket, or does not.
//
//	patient     polls as the server asks, buys a seat, is done
//	leaver      loses patience; says so, or just vanishes
//	refresher   reloads the page all the time, and must keep its place
//	sleeper     falls silent, within the grace or beyond it
//	double tab  two clients with one cookie, who must share one place
//	no-show     is admitted and never comes
//
// The crowd also keeps watch. It counts, in [Violations], what a room must never
// do to a visitor: change a seq, let a place rise, send an admitted ticket back
// to the line, forget a ticket that was heard from, or serve the site to someone
// who is still waiting.
//
// A visitor costs one goroutine, one timer and a few hundred bytes; connections
// are shared and bounded by [Options.Conns]. Thousands fit in one process.
package crowd
