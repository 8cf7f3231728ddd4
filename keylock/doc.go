// Package keylock lets one caller at a time work on a key, first come, first served; other keys are untouched.
//
//	locks := keylock.New(keylock.Options{})
//	err := locks.Do(ctx, account, func(ctx context.Context) error { … })
//
// One Locks stands at every entrance to the same things: [Locks.Do] for calls, [Consumer] for messages,
// keylockhttp.Middleware for requests. Whoever enters beside it is not kept out.
//
// # Promises
//
//   - No overtaking: a caller that began to wait later is never granted earlier.
//
//   - Every queue has a bound ([ErrFull]) and every wait a limit ([ErrWait], counted from the arrival).
//
//   - A hold longer than MaxHold, counted from its grant, ends by a forced release: the holder's context is cancelled
//     with [ErrForced], Options.Forced is called, and only after it has returned the next one is granted. What the late
//     holder does with its hold then changes nothing. It may still be running: what it was using must be thrown away,
//     not handed on.
//
//   - A cancelled wait is either an error, and whoever is next gets the key, or a hold; never both, never neither.
//
//   - A caller that asks again for a key that it holds, by the context of that hold, gets [ErrReentry] instead of waiting
//     for itself.
//
//   - A key costs memory while it is held or waited for, and a second or so longer.
//
//     free ──Lock──> held ──Release──> held by the next, or free
//     └──MaxHold──> retiring ──Forced returns──> held by the next, or free
//
// Generations number the grants: for one Locks and key they only grow. They begin anew with the process; a fence that
// others compare needs the generation of package affinity before it.
package keylock
