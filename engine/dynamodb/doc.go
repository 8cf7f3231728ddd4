// Package dynamodb keeps leases and their cursors in DynamoDB (lease.Store), by conditional writes of single rows alone.
//
// A space is a pair of tables, T and T-workers, both with the partition key Pk (S). T has a row for each resource:
//
//	Pk                S  the resource's id
//	desired_state     S  started, stopped; new: being made
//	ws_url            S  its URL, where it has one
//	lease_owner       S  worker#generation; - is nobody
//	owner_generation  N
//	fence             N  of the last take
//	last_seq          S  the cursor
//	spec B, rev N, token S (while new), v N (layout 1)
//
// the row #floor with the greatest fence of those deleted, and the index desired_state-lease_owner over (desired_state,
// lease_owner) with owner_generation, fence and rev: cursors are written without touching it. Its answers may be old; each is
// checked by the condition of the write that follows. T-workers has a row for each worker: Pk, generation, beat, held, cap,
// leaving, dead, info, token, v.
//
// Nothing depends on a clock: fences and generations are max(last + 1, this machine's time in µs), and so grow whatever it says.
// The time is only there so that a generation is not the number of one whose row was removed, and that a table that was made
// anew goes on above what the old one gave out.
package dynamodb
