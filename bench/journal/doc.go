// Command journal measures what could keep a room's log: the group-committed
// journal of engine/memory, hashicorp/raft-wal, Pebble and SQLite.
//
// Every caller appends one small record, waits until that record is synced, and
// only then appends the next. All candidates run in the same process, in turns, on
// the same folder; what counts is the ratio, not the figure.
//
// Many short turns, since other work on the machine comes in bursts.
//
//	go run ./journal -dir /some/real/disk
package main
