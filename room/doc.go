// Package room is one waiting room, and many: who comes in, and in what order.
//
// # Promises
//
//   - Never more admitted at one moment than the limit, at every position of the log; order
//     passthrough is the named exception. A limit that is lowered throws nobody out.
//   - No ticket is admitted twice. A refresh, a repeat, a second tab never costs a place.
//   - A freed slot goes to the next waiter in the step that freed it.
//   - No half-open minute of room time holds more admissions than the rate.
//   - Ghosts never hold up the line: a waiter not heard from for the grace is skipped, and
//     counted until then and no longer.
//   - State and log change together: there is no admission without its event.
//   - Time in which usher was away counts against nobody, and time never runs backwards.
//
// # A ticket's life
//
//	         enter ──> waiting ──────────────> admitted ──────────> ended
//	(prequeue: the draw     │   slot, limit,       │   left, idle, max,
//	 gives the position)    │   rate, state        │   claim (never used)
//	                        └──> ended: left, abandoned
//
// # Parts
//
//	machine.go   what a command does: pure, no clock, no I/O        apply.go    what an event changes
//	operate.go   configuration, state and schedule, as the machine obeys them
//	line.go      living positions: place, head, sketch              opening.go  the draw and its proof
//	rate.go      admissions a minute                                ticket.go   what is kept of a ticket
//	event.go     the log's events and their binary form             snapshot.go a machine on disk
//	mirror.go    a node's view from the log alone, and the ETA      store.go    what engines implement
//	room.go      Rooms and Room, which users hold                   watch.go    watching and using a ticket
//
// DESIGN.md says why it is made this way.
package room
