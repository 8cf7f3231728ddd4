// Package push tells every browser at once, and lets none hold up the others.
//
// A [Hub] holds the connections of one node, whatever their transport: push/stomp, push/sse and push/poll bring them.
// It learns what to say from a [Source] for each room, and from the room's log ([Room.Events]).
//
// # Promises
//
//   - No write waits. What a peer does not take at once goes to a slow path of its own, bounded in number and time;
//     nobody else notices. Liveness is judged by what a peer sends, where it sends something, never by write errors.
//   - Places and stats are the newest ones: they are read when they are sent, so there is no queue of old ones.
//   - Admissions, timeouts and the operator's messages are never dropped: they are kept until they are written, and
//     said again to whoever comes back with a cursor from before them. Where the hub cannot tell what was missed, it
//     says so ([Message.Reset]) and everything that is true now follows. There is never a silent hole.
//   - A message that everybody gets is encoded once for each form that connections want it in.
//   - A cursor on a frame means: everything sure up to that position of the log was sent before it.
//   - Every queue has a bound. Whoever falls behind it is closed with a code that says whether to come back.
//
// # How it is made
//
// Connections are spread over shards by ticket, so all tabs of a visitor are on one. A shard is a goroutine that owns
// its connections: no lock is held while writing. Each connection has one small goroutine, its reader. A shard visits a
// connection when it is due (a wheel of 250 ms), when something sure happened to its ticket, or when it can be written
// to again; a visit gathers all there is to say into one write.
//
//	hub.go     hub, figures            room.go    log events, recall
//	door.go    who may come            conn.go    one connection
//	attach.go  coming and going        shard.go   the loop
//	stand.go   what became of whom     wheel.go   who is due
//	flush.go   what to say             write.go   the write that never parks
//	pace.go    how often               drain.go   leaving
//	body.go    the bodies              message.go one body, encoded once
package push
