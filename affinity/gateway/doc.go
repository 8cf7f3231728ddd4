// Package gateway brings HTTP requests to the instance that has their session.
//
// A [Gateway] stands in front of the instances, or inside each of them behind a blind balancer ([Peer]). It finds the
// session's key in the request, asks the directory who owns it, and proxies to the owner: plain requests, streams,
// WebSockets. Where nobody owns the key, the living instance with the fewest sessions is asked to build. An instance
// written in Go answers with [Owned].
//
// # Promises
//
//   - A request reaches an instance that owns the session, or learns of nobody. Who is asked by name and generation and is
//     not the owner answers 421 with Usher-Not-Owner; the row is then evicted by comparison and read again.
//   - A request is sent a second time only after such a 421, or when no connection came about, and only once; a body is
//     then sent again byte for byte, if it was short enough to be kept (MaxReplay). Anything else is an error for the
//     client, who alone knows whether it may be repeated.
//   - A request passes through one gateway at most. What gateways say among themselves is signed with Secret and taken out
//     of whatever comes from outside.
//   - An owner is dead when its process refuses connections, answers under another name, or did not answer probes for
//     FailAfter. A stall shorter than that moves nothing. When it is found dead, its clients' requests and sockets are
//     cut at once.
//   - At capacity or while draining an instance gets no new sessions; requests of existing ones are always let through.
//   - When the directory does not answer, requests of sessions that this gateway has seen lately go on.
package gateway
