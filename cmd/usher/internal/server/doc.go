// Package server puts a running usher together from a configuration: engine,
// rooms, keys, handlers, listeners. It is used by usher serve, and inside the
// process of usher demo.
//
// What it promises:
//
//   - [Start] returns a server that answers on both listeners, or an error that
//     says what to do; in that case nothing is left running.
//   - [Server.Shutdown] stops gracefully: ready answers 503, no new connection is
//     taken, what is under way is answered, streams are told when to come back,
//     the engine is flushed. It takes no longer than its context allows.
//   - [Server.Reload] applies a new configuration to rooms and certificates
//     without dropping anybody; a room is touched only when it differs from what
//     the file said last.
//   - No secret is logged.
package server
