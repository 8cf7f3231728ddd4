package instances

import (
	"fmt"
	"time"
)

// Hold is how long the last count stands in for a source that does not answer.
const Hold = time.Minute

// State says where a count came from.
type State int

// A count is counted, then held, then fallen back upon; counted again as soon
// as the source answers.
const (
	Counted  State = iota // the source answered
	Held                  // it did not; its last count, at most Hold old
	Fallback              // it has not for longer, or never did; the room's fallback
)

func (s State) String() string {
	switch s {
	case Held:
		return "held"
	case Fallback:
		return "fallback"
	default:
		return "counted"
	}
}

// A Reading is a count that can be used whatever its source said.
type Reading struct {
	Count int64
	State State
	// Err is nil for Counted; else a *SilentError.
	Err error
}

// SilentError says why a count is not what the source counts now.
type SilentError struct {
	Reading Reading       // what stands in; its Err is empty
	Age     time.Duration // since the source last answered; 0: it never did
	Err     error         // what the source said
}

func (e *SilentError) Error() string {
	switch {
	case e.Reading.State == Held:
		return fmt.Sprintf("living instances cannot be counted for %v now; the last count, %d, holds for %v more: %v",
			e.Age.Round(time.Second), e.Reading.Count, (Hold - e.Age).Round(time.Second), e.Err)
	case e.Age == 0:
		return fmt.Sprintf("living instances could never be counted; instances.fallback, %d, is used: %v", e.Reading.Count, e.Err)
	default:
		return fmt.Sprintf("living instances cannot be counted for %v now; instances.fallback, %d, is used: %v",
			e.Age.Round(time.Second), e.Reading.Count, e.Err)
	}
}

func (e *SilentError) Unwrap() error { return e.Err }

// memory is the last good answer. The zero value has none.
type memory struct {
	count int64
	at    time.Time
	known bool
}

// read takes what the source said at now and gives what counts. A count below
// zero is a fault of the source, not a count.
func (m *memory) read(now time.Time, count int64, err error, fallback int64) Reading {
	if err == nil && count < 0 {
		err = fmt.Errorf("the source counted %d", count)
	}
	if err == nil {
		*m = memory{count: count, at: now, known: true}
		return Reading{Count: count}
	}
	silent := &SilentError{Reading: Reading{Count: fallback, State: Fallback}, Err: err}
	if m.known {
		silent.Age = max(now.Sub(m.at), 0)
		if silent.Age < Hold {
			silent.Reading = Reading{Count: m.count, State: Held}
		}
	}
	r := silent.Reading
	r.Err = silent
	return r
}
