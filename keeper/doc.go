// Package keeper holds outbound WebSocket connections for a fleet of workers: each by one worker at a time, found by a
// lease, and every message that comes in is stored once.
//
//	k, err := keeper.New(keeper.Options{Sink: sink, Egress: egress.Dialer{}})
//	err = k.Run(ctx, store, lease.Options{Worker: "worker-1"}) // until ctx ends; then everything is given back
//
// # Promises
//
//   - A message is stored with (connection, seq), each once. The cursor moves only over what is stored, and under the
//     fence, so what was not stored when a worker died is asked for again by the next one.
//   - One worker acts under one fence. The fence goes to the upstream (Resume) and to the sink, and both drop the lower.
//   - The loops of a connection (receive, heart-beat, and the watch for the end of the lease) live and die together. A
//     connection that ends for any other reason is made again, after a random time below a growing bound.
//   - Back-pressure goes from the sink to the socket: a connection that has Pending messages not yet stored is not read.
//     Nothing is dropped for want of room.
//   - A stop closes all sockets side by side and gives what is stored Drain to be acknowledged. A sink that hangs delays
//     it no longer than that.
//
// # A connection
//
//	     ┌──────────── random pause <─────────────┐
//	     v                                        │ lost, refused, silent
//	connecting ──101──> open ──frames──> queue ──> sink ──> cursor
//	     └── the lease ends, or desired is stopped ──> closed (1001), queue drained, row released
//
// # What it does not do
//
// Messages without a number in them (Cursor.JSON) are counted and left out; without Cursor.JSON the keeper numbers what
// comes, and what an upstream sent while nobody was connected is not known here. What the upstream does not send again
// cannot be stored: it must replay from a number.
package keeper
