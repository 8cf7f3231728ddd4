// Command gate compares the gate with its peers, in one run on one machine, and prints ratios:
//
//   - pairs: acquire + release pairs a second, each caller on a key of its own and all on one key, in memory and on Redis,
//     beside redsync and rueidislock (which are locks: n = 1) and beside a script that does nothing but count (the floor);
//   - waiters: what 1,000 who wait cost while nothing happens, on one key and on a thousand;
//   - held: the same pairs on a key of which 100,000 permits are held.
//
// Redis is a process of its own on loopback. Peers take turns in each round, and the median of the rounds is printed.
// Run it from bench/:
//
//	go run ./gate -rounds 5 -seconds 1
package main
