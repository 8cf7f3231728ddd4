package kinesis

import "time"

// Hurry makes a source ask and mark more often than a real stream would bear.
func (s *Source) Hurry(poll, marks time.Duration) { s.poll, s.marks = poll, marks }
