// Package token makes and checks the two proofs a visitor carries, and keeps the keys behind them.
//
//   - A ticket secret proves a place in one room's line. Only usher makes and reads it: a MAC over the
//     ticket's id, seq and time of issue, so that it is checked without asking any store. The room is under
//     the MAC too, so a ticket of one room is worth nothing in another.
//   - An admission token proves that a visitor was let in. Anybody with the public keys can check it: a JWT
//     signed with Ed25519, typ "usher-admission+jwt", for one room (aud) and one ticket (sub).
//
// # Keys
//
// A Keys holds three kinds, none of which stands in for another: signing keys (admissions), sealing keys
// (tickets) and one key that turns request ids into hashes. They live as one line of text, which is what the
// key folder's file holds, what Export gives and what USHER_KEYS takes; Store is the seam for keeping it
// elsewhere. Every key is named by a hash of itself, so a damaged copy is refused instead of quietly signing
// with a key nobody else has.
//
// # Rotation cuts nobody off
//
//	published ──10 min──> signs ──until the next rotation──> retired ──until nothing it made can be valid──> gone
//
// A new key is published Lead before its first use, so that verifiers that cache the key set, and other nodes
// that reload it, know it by then. A retired signing key stays published for MaxAge plus Leeway and a margin
// for clocks; Sign refuses tokens that would outlive that. A retired sealing key is kept for TicketAge. The
// request-id key never rotates: its hashes are an index, and under a new key a repeated request would look
// like a new visitor and cost her place.
//
// Rotation is housekeeping. If a key has leaked, rotate is not enough, since the old key goes on being
// accepted: stop usher, remove the key file and start again, and everybody starts over.
//
// # What is never printed
//
// Keys, and everything inside it that is secret, shows itself as "[redacted]" to fmt, slog and JSON. Export is
// the one way out.
//
// All methods of Keys may be called from many goroutines at once.
package token
