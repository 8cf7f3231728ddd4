package transcribe

import (
	"context"
	"fmt"

	"github.com/ushergo/usher/keeper/sqlsink"
)

// Audit is what the sink has, beside what the upstream sent.
type Audit struct {
	Stored     int64 // messages
	Duplicates int64 // more than one of a number
	Lost       int64 // numbers from 1 to the last that are missing
	Foreign    int64 // numbers above the last, or another text than the upstream's
	TwoFences  int64 // messages that came in after one under a higher fence
	Fences     int64 // owners there were, over all streams
}

// Check reads an SQLite sink. Of each stream messages 1 to last should be there, as text says.
func Check(ctx context.Context, sink *sqlsink.Sink, streams []string, last int64, text func(stream string, n int64) []byte) (Audit, error) {
	var a Audit
	for _, s := range streams {
		// rowid is the order of storing.
		rows, err := sink.DB().QueryContext(ctx, "SELECT seq, fence, data FROM usher_messages WHERE connection = ? ORDER BY rowid", s)
		if err != nil {
			return a, err
		}
		have, fences := make(map[int64]int64, last), map[int64]bool{}
		var highest int64
		for rows.Next() {
			var seq, fence int64
			var data []byte
			if err := rows.Scan(&seq, &fence, &data); err != nil {
				return a, fmt.Errorf("%s: %w", s, err)
			}
			a.Stored++
			have[seq]++
			fences[fence] = true
			if fence < highest {
				a.TwoFences++
			}
			highest = max(highest, fence)
			if seq < 1 || seq > last || string(data) != string(text(s, seq)) {
				a.Foreign++
			}
		}
		if err := rows.Err(); err != nil {
			return a, err
		}
		if err := rows.Close(); err != nil {
			return a, err
		}
		for n := int64(1); n <= last; n++ {
			switch c := have[n]; {
			case c == 0:
				a.Lost++
			case c > 1:
				a.Duplicates += c - 1
			}
		}
		a.Fences += int64(len(fences))
	}
	return a, nil
}

// Stored is the least number of messages of a stream.
func Stored(ctx context.Context, sink *sqlsink.Sink, streams []string) (int64, error) {
	var least int64 = -1
	for _, s := range streams {
		var n int64
		if err := sink.DB().QueryRowContext(ctx, "SELECT COUNT(*) FROM usher_messages WHERE connection = ?", s).Scan(&n); err != nil {
			return 0, err
		}
		if least < 0 || n < least {
			least = n
		}
	}
	return least, nil
}
