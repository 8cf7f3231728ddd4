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
//   - After any time away nobody has lost grace, claim, idle or max.
//
// # Folder
//
//	rooms/<room>/   one journal for each room: its log and its snapshots
//
// The folder belongs to one process at a time.
package memory
