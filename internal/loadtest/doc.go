// Package loadtest makes the load of real visitors on a room, over HTTP, and judges whether the room kept its promises.
//
// A visitor enters with a request id, waits (asking for her status as often as the server says, or listening to a
// stream), claims her admission, renews while she stays, and leaves; some vanish without a word, some enter twice.
// Arrivals are an open loop: when a visitor comes depends on no answer, and latency counts from when an exchange was
// due, so that a server that stalls does not hide it by slowing the load down (coordinated omission).
//
// A visitor is a small machine (visitor.go); thousands share a few connections, each with one goroutine (run.go). So a
// hundred thousand visitors cost some tens of megabytes.
//
// # What is judged
//
// Five counts, each of which must be 0: order inversions, double admissions, limit overruns, lost places, unlogged
// admissions. With an admin token they are judged by the room's own log, at every position (audit.go), held against
// what every visitor was told (judge.go). Without one, clients alone judge: an inversion is called only when it is
// certain that somebody behind was told "admitted" a second before somebody ahead was still told "waiting", and the
// limit cannot be judged at all. The report says which of the two it was.
//
// The limit is judged at admissions: one that was lowered below the number inside is no fault, admitting then is. In
// rooms that are not fifo, order is not judged. A scheduled opening is: the draw is repeated from its published seed.
//
// # What it does to a room
//
// It adds visitors, as visitors do, and takes those it added out again at the end, the vanished too. On the admin
// listener it only reads.
package loadtest
