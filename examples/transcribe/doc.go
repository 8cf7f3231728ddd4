// Package transcribe is a feed ingester in small: an upstream sends numbered messages over WebSocket, three worker
// processes hold the connections and store every message once, and a script kills, stops, partitions and redeploys them.
//
//	go run ./examples/transcribe/cmd/transcribe chaos --minutes 1
//
// worker.go is all that such a service needs; the rest is the script and its audit.
package transcribe
