// Package affinity keeps a directory of live sessions: which instance of a service has the session of a key, so that
// requests can go there, and nobody builds a second one beside it.
//
// An instance holds an [Owner]. Its Use takes the key's lock (package keylock), finds the session or claims the key and
// builds one, and runs one caller at a time on it:
//
//	owner, err := affinity.Open(store, affinity.Options[*Browser]{Space: "browsers", Instance: "b-1", Addr: "10.0.0.7:3000", Build: login, …})
//	err = owner.Use(ctx, account, func(ctx context.Context, s affinity.Session[*Browser]) error { … })
//	var other *affinity.NotOwnerError // it runs elsewhere, and this says where
//
// Package affinity/gateway brings requests to owners.
//
// # A row
//
//	        claim                     refresh, ready
//	none ──────────> building(owner) ────────────────> ready(owner)
//	  ^                │ deadline, clear                 │ expiry, clear
//	  └────────────────┴─────────────────────────────────┘
//
// An owner is an instance and its epoch, a number that is greater after each start. A claim draws a generation, which
// grows for a key whatever happens to its rows, also where the store has lost its memory, as long as its clock goes on.
// Refresh and clear name owner, epoch and generation and change nothing when one of them is another's.
//
// # Promises
//
//   - A key is claimed before its session is built, so no two instances build at once. Whoever loses learns the owner. A
//     claim whose answer was lost is repeated with its token and is the same claim.
//   - Expiry is long (15 minutes): it is not how death is noticed. Whoever finds an owner dead (its process answers no
//     more, or says that it is another) evicts the row by comparison. So the directory may be away for minutes: sessions
//     go on serving, new ones are refused ([ErrUnavailable]), and nothing has to be started again afterwards.
//   - An owner whose refresh is refused stops at once: it cancels its callers and closes the session. One that cannot
//     confirm its row stops Margin before the row's expiry.
//   - An owner that stood still asks before it serves again.
//   - A hold that was ended by force costs the session: it is retired, never handed to the next caller.
//   - A session is not moved. When its instance dies it is gone, and another is built.
//
// # What is not promised
//
// Between the eviction of a stopped or cut-off owner and the moment at which it hears of it (at its next refresh or use),
// the old session exists beside the new one, though nothing is sent to it. What must not happen twice outside needs the
// generation as a fence. docs/affinity.md has the cases.
package affinity
