// Package flight lets all who ask for one key at one time share one running load. It is not a cache: what is not being
// loaded is not there, and nobody is ever given a value that was finished before she asked.
//
//	var g flight.Group[flight.Key, *Page]
//
//	page, err := g.Do(ctx, flight.Key{Space: "page", Name: slug}, func(ctx context.Context) (*Page, error) {
//		return db.Page(ctx, slug)
//	})
//
// # Promises
//
//   - A caller's life and a load's life are apart. A caller leaves the moment her context ends and leaves nothing
//     behind, not a byte; the load goes on for the others. The load has a deadline of its own (Options.Timeout).
//   - At most one load of a key runs at a time, also while an earlier one ignores that it was cancelled, forgotten or
//     timed out: who comes then waits for its real end (or for her own deadline) and gets a load of the next
//     generation. The exception are keys whose load said NotShareable: there each caller loads for herself.
//   - Each queue has a bound, and a full one answers ErrBusy at once: callers a key, callers in all, loads in all, loads
//     that wait for the origin's budget. The budget bounds loads at once and starts per second, with shares reserved
//     per class, and a load holds its part until it has really returned.
//   - Whatever a load does, panic and runtime.Goexit included, every caller gets an answer and the key is free again.
//   - A failing key is left alone on a schedule that depends on the kind of failure; callers get the remembered failure
//     meanwhile. A context's error is never remembered, and never is a value.
//   - After Forget(key) or ForgetAll() nobody who comes gets the result of a load that began before, and no such load
//     is filled into the user's cache (Options.Fill).
//   - A load that waits for its own key, directly or through other loads of the group, gets ErrRecursive.
//
// # The life of a flight
//
//	          an earlier one of its key still runs      the budget is used up
//	Do ──┬──────────────> queued ───────────────┬──────────> pending ──┐
//	     │                                      │                      │
//	     └──────────────────────────────────────┴──────────> running <─┘
//	                                                          │   │ last waiter leaves: cancelled, or not, by policy
//	        value, failure, panic, deadline: callers are told │   │ Forget: joined no more
//	                                                          v   v
//	                                     ended: the load has returned; key and budget are free
//
// Callers may be told before the end, by Deliver and by the deadline; key and budget are held to the end all the same.
//
// # Costs
//
// A call whose context cannot be cancelled runs its load in its own goroutine and allocates the flight alone. Otherwise
// the load gets a goroutine. Joining allocates nothing. All flights share one timer. A Group has one lock, held for
// some hundred nanoseconds per call and never while callers are woken.
//
// Package flight/shared does the same for many processes, package flight/httpflight for an HTTP handler.
package flight
