package demo

import (
	"time"

	"github.com/ushergo/usher/internal/crowd"
)

// State is everything the view shows, at one moment.
type State struct {
	Elapsed time.Duration
	Room    string
	// Addresses to open.
	Look, Site, Admin, TokenFile string
	Notes                        []string // what differs from what was asked for
	Counts                       Counts
	Rate                         float64       // admissions a minute; negative while unknown
	ETA                          time.Duration // what a newcomer would wait; negative while unknown
	History                      []int         // waiting, a value a second, oldest first
	Booked, SeatsLeft            int           // at the cinema
	Crowd                        crowd.Stats
	Events                       []Line // oldest first
	Guests                       string // who is here and not of the crowd; empty if nobody
	Trouble                      string // why the figures may be old; empty if they are not
}

// Line is one event for people.
type Line struct {
	At   time.Time
	Text string
	Bad  bool
}

// Counts is what the room itself says: the first by its document, the others
// counted from its log.
type Counts struct {
	State                  string // open, paused, closed
	Waiting, Active, Limit int
	Entered, Admitted      int
	Claimed, Left, Ended   int // Ended: by idle or max
	Abandoned, NoShow      int
}

const (
	keepSeconds = 240 // of history
	rateWindow  = 30  // seconds that the rate looks back
	keepEvents  = 200
)

// meter turns one reading a second into rate, history and ETA.
type meter struct {
	waiting  []int
	admitted []int
	line     bool // there has been a line
}

// add takes a reading. Until there is a line, admissions only fill an empty house
// and say nothing about how fast a line moves.
func (m *meter) add(waiting, admitted int) {
	m.waiting = last(append(m.waiting, waiting), keepSeconds)
	if m.line = m.line || waiting > 0; m.line {
		m.admitted = last(append(m.admitted, admitted), rateWindow+1)
	}
}

// rate is admissions a minute over the window so far; negative before there is
// enough to say.
func (m *meter) rate() float64 {
	n := len(m.admitted) - 1
	if n < 3 {
		return -1
	}
	return float64(m.admitted[n]-m.admitted[0]) * 60 / float64(n)
}

// eta is how long the present line takes at that rate.
func (m *meter) eta() time.Duration {
	rate := m.rate()
	if len(m.waiting) == 0 || rate <= 0 {
		return -1
	}
	return time.Duration(float64(m.waiting[len(m.waiting)-1]) / rate * float64(time.Minute))
}

func last[T any](s []T, n int) []T {
	if len(s) > n {
		return append(s[:0], s[len(s)-n:]...)
	}
	return s
}
