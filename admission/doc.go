// Package admission lets an origin serve only visitors whom usher has let in. It is middleware for net/http:
//
//	mux.Handle("/checkout/", admission.Require("premiere", "https://tickets.example/.well-known/jwks.json")(checkout))
//
// and, behind it:
//
//	a, _ := admission.FromContext(r.Context()) // who: a.TicketID, until when: a.Expires
//
// # What it promises
//
// Every request is judged here, from its token and usher's public keys: usher is not asked. The keys are fetched
// when the first request comes, refreshed in the background while requests come, and fetched at once when a token
// names a key that is not known; but never more than once a minute, whatever the traffic and whatever the failure,
// and by one request at a time. When usher is away the keys at hand go on being used. No goroutine lives on
// between fetches, so there is nothing to close.
//
// A token is looked for in the header X-Usher-Token, which usher's proxy sets; then in a cookie, if the Cookie
// option names one; then in "Authorization: Bearer". Clocks may differ by 60 seconds; beyond that the refusal says
// so, and by how much this machine's clock was off when keys were last fetched.
//
// A handler behind Require sees X-Usher-Room and X-Usher-Ticket-Id as the token says them, whatever the client
// sent in these headers.
//
// # Refusals
//
// A refusal is application/problem+json with one of these codes, and never contains the token:
//
//	token_missing       401  no token came with the request
//	token_malformed     401  it is not an admission token, or there were several
//	wrong_algorithm     401  it is not signed with EdDSA
//	unknown_key         401  usher publishes no key of the name it gives
//	bad_signature       401  it was changed, or signed by somebody else
//	token_expired       401  renew it, or enter again
//	token_not_yet       401  it begins in the future: clocks differ
//	wrong_issuer        401  another usher made it (only with the Issuer option)
//	wrong_room          403  a good token for another room
//	keys_unavailable    503  usher's keys could not be fetched, so nothing can be said yet
//
// It is never a redirect: an origin and a waiting room whose clocks differ would send a visitor to and fro for
// ever. Use the Refuse option to answer otherwise, and send nobody back for token_not_yet.
//
// Requests that carry no token by design, such as CORS preflights and health checks, belong outside.
package admission
