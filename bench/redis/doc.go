// Command redis measures rooms on Redis, in one run on one machine, and prints ratios:
//
//   - enter: enters a second of 1,024 callers, each with a request id of its own and all of them waiting, beside plain
//     ZADDs over the same client, which pipelines them, and beside the same store with one enter a call;
//   - status: the same callers asking what became of a ticket, and repeating an enter;
//   - places: every place of 100,000 and of 1,000,000 waiters, by the line that a node keeps from the log, beside one ZRANK
//     for each, pipelined by the thousand;
//   - start: how long a node takes to follow a room in which so many wait;
//   - bulk: a limit raised by 100,000, and 100,000 who fall silent: admissions a second, and the longest call by SLOWLOG.
//
// redis-server is a process of its own on loopback, with appendonly yes and appendfsync everysec. Run it from bench/:
//
//	go run ./redis
package main
