// Package memory is the engine for one node: the machines of the features run in memory,
// behind a durable log.
//
// # Promises
//
//   - An answered call survives kill -9 and power loss: its events are synced to the disk
//     before the answer leaves (docs/durability.md). Callers share syncs.
//   - State and events change together: the state is what its log says.
//   - While the disk does not take what is written, calls are refused with
//     room.ErrUnavailable, or end with room.ErrUnknown where they were already under way;
//     Health says what to do, and all goes on by itself once the disk does.
//   - Followers see an event before the call that made it is answered, and never one that is
//     not durable.
//   - After any time away nobody has lost grace, claim, idle or max. A disk that took nothing, or
//     a process that stood still, for more than 5 s was away, too.
//
// # Folder
//
//	lock                                   held by the living process
//	rooms/<room>/                          one journal for each room: its log and its snapshots
//	rooms/.deleted-<room>.<epoch>.<seq>/   empty: what must survive a room's deletion
//
// The folder belongs to one process at a time. Deleting a room is one rename; the next room of that
// name gives no seq again, and its events are of a later epoch.
package memory
