package keylock

import "time"

// Observer is told what happens. Its methods must be quick and may be called by many goroutines. With one, a lock costs
// two readings of the clock more.
type Observer interface {
	// Granted tells how long a caller waited.
	Granted(key string, waited time.Duration)
	// Released tells how long a key was held; forced holds are not told here.
	Released(key string, held time.Duration)
	// Refused tells why a caller was not granted a key: ErrFull, ErrWait, ErrReentry, or its context's error.
	Refused(key string, err error)
	// Forced tells of a forced release. Alarm on it when it goes on.
	Forced(key string, gen uint64)
}

// Stats are figures of the moment, and totals since New.
type Stats struct {
	Keys    int // held, waited for or being cleaned up after
	Held    int
	Waiting int
	Late    int // holders whose hold was ended by force and who have not come back: tasks that hang

	Granted uint64
	Forced  uint64
	Full    uint64 // refused with ErrFull
	Expired uint64 // refused with ErrWait
}

func (s *Stats) add(o Stats) {
	s.Keys += o.Keys
	s.Held += o.Held
	s.Waiting += o.Waiting
	s.Late += o.Late
	s.Granted += o.Granted
	s.Forced += o.Forced
	s.Full += o.Full
	s.Expired += o.Expired
}
