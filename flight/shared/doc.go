// Package shared makes the callers of many processes share one running load, as package flight does in one. What they
// have in common is a Store (memory for one process, Redis for many); the N waiters of a process are one waiter outside.
//
//	g := shared.New[Page](redis.NewFlights(client), "pages", shared.Options[Page]{})
//	defer g.Close(context.Background())
//
//	page, err := g.Do(ctx, slug, func(ctx context.Context) (Page, error) { return db.Page(ctx, slug) })
//
// # How
//
// The first process to ask leads: it holds a lease with a fence, loads, and publishes under the fence. The others follow:
// they are woken by message, and ask again after Options.Poll in case the message was lost, and when the lease runs out.
// When a leader dies exactly one of those who follow succeeds it. A leader that cannot renew its lease in time cancels
// its load before anyone can have taken over.
//
//	Begin ──> Lead ──> load, renewing ──> Finish: published, or superseded, or lost
//	  ^  └──> Follow ──> event, poll, lease over ──┐
//	  │          └───────── Begin again ───────────┤
//	  └────────────────────────────────────────────┘──> Done, Held (back-off), Alone (not shareable)
//
// # Promises
//
//   - A result is given only to those who asked before it was published (or within Options.MaxAge after, if set), and
//     never to those who asked after a Forget of its key that came while it was being loaded. Those who asked before get
//     it, marked superseded. A process learns of another's Forget by message; until then (milliseconds; when messages
//     are lost, until it has subscribed again) its new callers may still join a load of before.
//   - A late load, of a leader that was taken for dead, publishes nothing: its fence is not the leading one.
//   - Loads at the origin for one key: one at a time, plus, for each leader that was killed, frozen or cut off from the
//     store while loading, the one it had begun, until the origin has done with it. In all, at most one more than
//     leaders lost for each value that is asked for. With Redis a failover counts as a leader lost.
//   - Failures travel as class and text, and back off for all processes together.
//   - When the store does not answer, each process serves alone, within its own budget and back-off, or fails, as
//     Options.OnStoreFailure says. It tries the store again every second.
//
// The budget (Options.Local.Budget) is each process's own. Following takes nothing from it.
package shared
