// Package matching is a worked example of package gate: freelancers accept jobs, first come, first served, on a real
// database.
//
// The gate decides how many try at once. One short transaction verifies that the job is open, that a place is free, that the freelancer has
// none yet, and the fence, and is the only truth. After its commit the winner of the last place settles the gate's key, so that the
// hundreds who wait are told "taken" without asking the database; without that a gate buys almost nothing on a hot row. A loser
// gets a clear reason at once.
//
// SQLite by default; MariaDB and PostgreSQL by DSN (see Open). Reads go to a reader pool where one is set, writes to the writer.
//
//	go run ./examples/matching/cmd/matching              # serves on 127.0.0.1:9100
//	go run ./examples/matching/cmd/matching storm        # 500 callers on one row, with and without the gate
//
// # When a single conditional UPDATE is enough
//
// AcceptOnce is one statement, without a gate: UPDATE … WHERE status = 'open' AND taken < places. It is about three times
// faster than SELECT … FOR UPDATE and UPDATE, and as right. It is enough by itself when all that has to be verified is in that one row,
// "no" is a good enough answer, and the database can take every caller. Take the transaction when other rows have a say or a loser
// is to learn why; put the gate in front of either when the callers are more than the connections.
package matching
