package relay

import (
	"context"
	"errors"
	"time"
)

// DeadLetters keeps what sinks did not take. Engines implement it; relaytest holds each of them to what is said here.
// All methods are safe for concurrent use. Errors of the store itself are unclassed and mean: nothing is known, try again.
type DeadLetters interface {
	// Put keeps a letter, durably, before it returns. A letter of that relay and event that is there already is
	// replaced, but keeps its First; so a Put can be repeated. ErrDeadFull: the relay's bound is reached and the letter is
	// not there; replacing never fails by it.
	Put(ctx context.Context, l Letter, b DeadBounds) error

	// List returns up to limit letters of a relay, by Seq, behind a Seq; 0: from the beginning. A replaced letter keeps its
	// Seq.
	List(ctx context.Context, relay string, after uint64, limit int) ([]Letter, error)

	// Get returns a letter by the id of its event. ErrNoLetter.
	Get(ctx context.Context, relay, id string) (Letter, error)

	// Drop forgets letters, and returns how many there were.
	Drop(ctx context.Context, relay string, ids ...string) (int, error)

	// Expire forgets a relay's letters whose Last is before a time, and returns how many.
	Expire(ctx context.Context, relay string, before time.Time) (int, error)

	// Stats tell of a relay's letters.
	Stats(ctx context.Context, relay string) (DeadStats, error)
}

// Letter is an event that a sink did not take.
type Letter struct {
	Seq       uint64    `json:"seq"` // given by the store; grows
	Relay     string    `json:"relay"`
	Partition string    `json:"partition"`
	Event     Envelope  `json:"event"`
	Class     string    `json:"class"`  // rejected, transient
	Reason    string    `json:"reason"` // the last error, at most 1 KiB
	Attempts  int       `json:"attempts"`
	First     time.Time `json:"first"`    // attempt
	Last      time.Time `json:"last"`     // attempt
	Redriven  int       `json:"redriven"` // how often it was brought back in vain
}

// DeadBounds bound a relay's letters. Zero: the defaults.
type DeadBounds struct {
	Letters int   // default 100,000
	Bytes   int64 // of payloads, keys and ids; default 256 MiB
}

// WithDefaults fills in what is zero.
func (b DeadBounds) WithDefaults() DeadBounds {
	if b.Letters <= 0 {
		b.Letters = 100_000
	}
	if b.Bytes <= 0 {
		b.Bytes = 256 << 20
	}
	return b
}

// Size is what a letter counts for DeadBounds.Bytes.
func (l *Letter) Size() int64 {
	return int64(len(l.Event.ID) + len(l.Event.Key) + len(l.Event.Payload) + len(l.Event.Binary) + len(l.Reason))
}

// DeadStats are figures of a relay's letters.
type DeadStats struct {
	Letters int       `json:"letters"`
	Bytes   int64     `json:"bytes"`
	Oldest  time.Time `json:"oldest"` // First of the oldest letter; zero: there is none
}

var (
	// ErrDeadFull is DeadLetters.Put's when a bound is reached. The relay stops, loudly, rather than drop.
	ErrDeadFull = errors.New("relay: the dead letters are full")
	// ErrNoLetter is DeadLetters.Get's.
	ErrNoLetter = errors.New("relay: no such dead letter")
)
