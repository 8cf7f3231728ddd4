// Package relay carries every event of a source to a sink, or to the dead letters, and loses none.
//
// # Promises
//
//   - At least once. An event is done when the sink has taken it, or the dead letters have. What is sent twice has the
//     same Event.ID both times.
//   - In order per key. A batch holds one event of a key, and the next of that key waits until that one is done.
//   - A cursor for each relay (one source and one sink) and partition, moved only over events that are done, and kept
//     under the fence of a lease: one that has lost its partition cannot move it, and a sink that stands still delays
//     no other.
//   - Only what failed is sent again, with full jitter; by whose fault it failed (Class).
//   - An event that a sink does not take holds up its key for a bounded time, and nothing else.
//   - Memory, batches in flight and dead letters are bounded. When the dead letters are full, the relay stops and says so.
//   - What a source no longer has is told: a gap event goes to the sink, an alarm is raised, and the relay stops until
//     somebody says resume (Options.OnGap).
//
// # An event's life
//
//	source ──> window ──> sending ──> done ──> the cursor moves over it
//	             ^           │  \
//	             └── waiting ┘   └──> burying ──> done
//	           (full jitter)       (dead letters)
//
// # Parts
//
//	event.go source.go sink.go dead.go   what sources, sinks and engines implement
//	machine.go                           which event is sent when, and how far the cursor may go: pure
//	lane.go                              one partition on its way to one sink
//	relay.go                             the partitions of a source, shared out by leases
//	redrive.go                           back from the dead letters
package relay
