// Package journal is the durable log of one room: records are appended, synced in
// groups, read back from any position, and forgotten when a snapshot covers them and
// nobody is to read them any more.
//
// # Promises
//
//   - When [Journal.Sync] returns nil, every record up to that position is on the disk,
//     in order, and is there after a kill -9 and after a power loss. It never returns nil
//     before the disk has said so.
//   - After a restart the log is a prefix of what was appended: no hole, no record that
//     was never appended, none after a lost one. Records whose Sync did not return may
//     be there or not; that is what [ErrUnknown] means.
//   - What cannot be told from an interrupted write, at the very end, is cut off and
//     reported to the logger. Any other damage is a [*CorruptError] that names file and
//     offset. Nothing is skipped and nothing foreign is deleted.
//   - A disk that is full or fails loses nothing that was answered: records wait in
//     memory, Sync waits, [Journal.Err] says what to do, and all goes on by itself once
//     the disk does. Memory is bounded by Options.MaxPending.
//   - One process at a time ([*LockedError]).
//
// # Life of a record
//
//	Append ──> group in memory ──> written ──> synced ──> OnDurable, then Sync returns
//	                │                 ^ │
//	                │       full disk │ │ failed sync: the same group goes to a new segment
//	                └ bounded         └─┘ (what the old one holds of it is never trusted)
//
// One goroutine, the committer, writes. While it syncs one group, the next gathers; so a
// group's size adapts to the load and nobody tunes it. A group is written only after the
// one before it was synced. From this follows that only the last group on the disk can be
// torn, and that a bad spot with a whole group behind it is damage.
//
// # Files
//
//	lock                   held by the living process
//	0000000000000000.log   segments, named by the position they begin with, in hexadecimal
//	0000000000000c40.log
//	0000000000000c00.snap  snapshots, named by the position they cover: the last two
//
// A segment is a header of 64 bytes and groups. A group is a header and its records. All
// integers are little-endian; all checksums are CRC-32C mixed with the journal's random id
// and the position, so that bytes of another journal or from another place never pass.
//
//	segment: "USHERJNL" layout:4 crc:4 id:8 start:8 created:8 (Unix ms), zeros
//	group:   crc:4 0xffffffff:4 length:4   (of all its records)
//	record:  crc:4 length:4 payload
//
// A [Pos] counts the bytes of groups and records since the journal was made; segment headers do not
// count. Bytes of a segment beyond the next one's start are what a failed sync left there
// and are ignored.
//
// A file gets its name only when its header, or all of a snapshot, is synced.
package journal
