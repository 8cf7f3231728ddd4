package shared

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/ushergo/usher/flight"
)

// Options of a Group. The zero value is sound.
type Options[V any] struct {
	// Local bounds what this process does: waiters, loads at the origin, timeout, back-off, classes. Fill and Copy work
	// as in package flight, Fill in the process that loaded and in those that followed.
	Local flight.Options[string, V]

	// Lease is how long a lead holds without being renewed; a dead leader is succeeded after at most so long. It is
	// renewed three times within. Default 5 s, at least 50 ms.
	Lease time.Duration
	// Poll is how often a follower asks though no message came. Default 1 s.
	Poll time.Duration
	// Keep is how long a result is kept in the store for those who follow. Default 5 s, at least twice Poll: a follower
	// that misses it loads again.
	Keep time.Duration
	// MaxAge lets a new caller have a finished result that is not older. Default 0: never. At most Keep.
	MaxAge time.Duration
	// MaxValue is the longest encoded value in bytes that is published; a longer one is not shareable between processes.
	// Default 1 MiB.
	MaxValue int

	// OnForget is told, in every process, of a Forget of key or of all keys, also of one that may have been missed while
	// the store did not answer. From then on this process fills nothing older (Local.Fill): the time to take the key out
	// of its cache. It must be quick.
	OnForget func(key string, all bool)

	OnStoreFailure StorePolicy // default ServeAlone
	// StoreTimeout bounds one call of the store. Default 1 s.
	StoreTimeout time.Duration

	Encode func(V) ([]byte, error) // default encoding/json
	Decode func([]byte) (V, error)
}

// StorePolicy says what becomes of callers when the store does not answer.
type StorePolicy uint8

const (
	// ServeAlone loads in each process for itself, within the local budget. Danger: the origin sees a load a process.
	ServeAlone StorePolicy = iota
	// FailFast answers ErrStoreDown.
	FailFast
)

var (
	// ErrStoreDown is returned under FailFast when the store does not answer; the store's error is wrapped with it.
	ErrStoreDown = errors.New("flight: the store does not answer")
	// ErrLeaseLost is the cause with which a load's context ends when its lead could not be renewed in time.
	ErrLeaseLost = errors.New("flight: the lease of this load is lost")
)

// RemoteError is a failure of a load in another process: what is left of it after the journey.
type RemoteError struct{ Message string }

func (e *RemoteError) Error() string { return e.Message }

func (o Options[V]) withDefaults() Options[V] {
	if o.Lease <= 0 {
		o.Lease = 5 * time.Second
	}
	o.Lease = max(o.Lease, 50*time.Millisecond)
	if o.Poll <= 0 {
		o.Poll = time.Second
	}
	if o.Keep <= 0 {
		o.Keep = 5 * time.Second
	}
	o.Keep = max(o.Keep, 2*o.Poll)
	o.MaxAge = min(o.MaxAge, o.Keep)
	if o.MaxValue <= 0 {
		o.MaxValue = 1 << 20
	}
	if o.StoreTimeout <= 0 {
		o.StoreTimeout = time.Second
	}
	if o.Encode == nil {
		o.Encode = func(v V) ([]byte, error) { return json.Marshal(v) }
	}
	if o.Decode == nil {
		o.Decode = func(b []byte) (v V, err error) { return v, json.Unmarshal(b, &v) }
	}
	if o.Local.Timeout == 0 {
		o.Local.Timeout = 30 * time.Second
	}
	if o.Local.Classify == nil {
		o.Local.Classify = flight.Classify
	}
	return o
}
