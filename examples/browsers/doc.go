// Command browsers is one instance of a service that drives a headless Chromium: an account's session is a browser tab that
// has logged in to a site, lives in this process alone, and does one task at a time. Three of them run behind a balancer
// that knows nothing of sessions; the test starts them, sends callers through three entrances, and kills them.
//
// The three entrances share one lock: HTTP (gateway.Peer), messages (a list in Redis), and an admin endpoint.
package main
