// Package gate is an expirable-permit semaphore in front of a transaction. The gate decides
// how many may try at once; the database decides who wins. Permits are not seats left.
//
//	permit, err := g.Acquire(ctx, key, gate.Wait(100*time.Millisecond))
//	if err != nil { … } // ErrFull, *SettledError, ErrUnknown, ctx's
//	defer permit.Release(ctx)
//
// # Promises
//
//   - Never more permits of a key are held than its limit. A limit that is lowered takes
//     nothing from holders; nobody is granted until enough have come back.
//   - Every permit ends: by Release, or by its lease. A crashed holder's comes back by itself, and those
//     who wait get it at that moment.
//   - An acquire is all or nothing. Repeated with the same id it gives the same permit, with the
//     same fence and end; an id that was used up is never granted anew.
//   - Releasing late is an answer, ErrExpired, never a permit too many. Extend revives nothing.
//   - Who waits on one node is served first come, first served, and bounded in number and time.
//     Across nodes, the first waiter of a node is overtaken at most MaxOvertakes times for each
//     node that waits, while others keep asking.
//   - A permit granted to somebody who has just given up is passed on.
//   - A key's fences only grow, across release, deletion and restart.
//   - A settled key answers everybody with its verdict, at once, until the verdict's time is over.
//
// # A permit's life
//
//	          acquire                release
//	(waits) ──────────> held ──────────────────────> released   (remembered for one lease:
//	    │                │  └─ extend ─┘                          repeats are told apart)
//	    │                └──── lease over ─────────> expired
//	    └──> refused: ErrFull, ErrSettled
//
// # What it is not
//
// A lock: with one permit, let the database refuse a smaller fence than the row has seen, for a holder
// that was stopped does not know that its lease is over. With more than one, only the
// transaction keeps two from winning, and the fence is a number for the audit. The permit alone
// buys little on a hot row, since every loser still asks the database; Settle, after the commit, tells
// them all without.
//
// # Parts
//
//	machine.go  what a command does to a key: pure, no clock, no I/O
//	command.go  commands, results, answers           store.go   what engines implement
//	gate.go     Gate, which users hold               line.go    those who wait
//	permit.go   Permit, Do, figures                  gatehttp   middleware for net/http
package gate
