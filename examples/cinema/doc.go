// Package cinema is a small booking site: films, showings, a seat map, and a
// seat that exactly one person gets. It is the back end that the demo and the
// guides put Usher in front of, and it is a complete site on its own.
//
// What it promises:
//
//   - A seat of a showing has one owner. The database decides, by a primary key
//     on (showing, seat) and one short write; whoever loses is told at once
//     (409 and the seat map as it now is), never queued behind the winner.
//   - A hold ends by itself after [Options.Hold], without a sweeper: the next
//     person who asks for the seat takes it over in the same write.
//   - It is scarce on purpose. All requests share a pool of [Options.Conns]
//     connections; whoever does not get one within [Options.Wait] is answered
//     503 with Retry-After. That is the trouble a waiting room ends.
//
// What it does with Usher, all of it optional:
//
//   - X-Usher-Ticket-Id, when present, names the person for the "people inside"
//     count and is written beside the booking.
//   - The page that confirms a purchase answers "Usher-Session: end", so that the
//     proxy frees the slot at once. That page lies under the film's own path,
//     because a proxy hears only what it proxies in the room's name; the list of
//     bookings lies at /bookings, outside a room that matches /premiere, so that
//     nobody queues again to look at what she bought.
//
// A visitor is known by a random cookie, of which only a hash is stored. Forms
// are safe from other sites by SameSite=Lax and by refusing a foreign Origin.
// Pages need no script and ask no other host for anything.
package cinema
