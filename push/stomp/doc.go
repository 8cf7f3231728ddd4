// Package stomp brings push to browsers and programs by STOMP 1.2 (1.1 and 1.0 by negotiation) over WebSocket.
//
// # What a client may do
//
// CONNECT (or STOMP) with a ticket: by the cookie of the upgrade, by its Authorization, or by a header "ticket". Then
// SUBSCRIBE to /topic/admission/{ticket_id}, /topic/rank/{ticket_id} and /topic/timeout/{ticket_id} of its own ticket,
// and to /topic/stats/{room}; UNSUBSCRIBE; DISCONNECT. ACK and NACK are taken and mean nothing. Everything else,
// another's topic, SEND and transactions, is answered with ERROR and the end of the connection. Any of them may ask for
// a receipt.
//
// # Headers of ours
//
//	CONNECT    ticket        the ticket's secret, where there is no cookie
//	           room          which room's ticket is meant, where cookies of several are sent
//	           after         the cursor of the last MESSAGE seen: what came after it is said again
//	CONNECTED  room, ticket-id, reconnect-window (ms over which to spread an unannounced return)
//	SUBSCRIBE  hidden:1      (rank) nobody looks at the tab: places come seldom
//	MESSAGE    cursor        position of the log that it is based on
//	           reset:true    what was known before cannot be continued; this and what follows is all that is true
//
// # Heart-beats
//
// The server offers 20000,0: it writes within 20 s, and wants none from the client, because timers of hidden tabs run
// once a minute. It judges liveness by WebSocket pings, which browsers answer without a script.
package stomp
