// Command web compares usher over HTTP with its peers, in one run on one machine, and prints ratios:
//
//   - enter on the waiting path (durable memory engine) with a net/http handler that does nothing but answer the same
//     JSON;
//   - the proxy, for admitted visitors, with httputil.ReverseProxy alone on a tuned transport (and on Go's default
//     one), nginx and HAProxy, all in front of the same origin.
//
// Every server is a process of its own on loopback; wrk makes the load; peers take turns in each round, so that noise
// falls on all alike, and the median of the rounds' ratios is printed. Run it from bench/:
//
//	go run ./web -rounds 3 -seconds 5
//
// It needs wrk, nginx and haproxy (Debian's packages of those names); what is missing is left out and said.
package main
