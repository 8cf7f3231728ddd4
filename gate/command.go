package gate

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// ID names one permit: 16 bytes that the caller chooses at random, 32 hexadecimal digits as
// text. Who knows it can release the permit.
type ID [16]byte

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// ParseID reads the 32 hexadecimal digits of an id.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 2*len(id) {
		return id, fmt.Errorf("%w: a permit id has 32 hexadecimal digits, not %d characters", ErrBadRequest, len(s))
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return id, fmt.Errorf("%w: a permit id has only hexadecimal digits", ErrBadRequest)
	}
	return id, nil
}

// Members are the ids of an acquire of n permits: id itself and n-1 that follow from it, so
// that whoever repeats or releases the acquire needs only the first.
func (id ID) Members(n int) []ID {
	ids := make([]ID, 1, n)
	ids[0] = id
	var seed [20]byte
	copy(seed[:], id[:])
	for i := 1; i < n; i++ {
		binary.BigEndian.PutUint32(seed[16:], uint32(i))
		sum := sha256.Sum256(seed[:])
		ids = append(ids, ID(sum[:16]))
	}
	return ids
}

// Op says what a Command asks for.
type Op uint8

const (
	OpStatus  Op = iota // how the key stands
	OpAcquire           // N permits or none
	OpRelease           // give an acquire's permits back
	OpExtend            // a new lease for permits that are still held
	OpSettle            // close the key with a verdict
	OpReopen            // forget the verdict and draw a fence
	OpSet               // how many permits there are
	OpDelete            // forget the key, but not its fence
)

func (op Op) String() string {
	switch op {
	case OpStatus:
		return "status"
	case OpAcquire:
		return "acquire"
	case OpRelease:
		return "release"
	case OpExtend:
		return "extend"
	case OpSettle:
		return "settle"
	case OpReopen:
		return "reopen"
	case OpSet:
		return "set"
	case OpDelete:
		return "delete"
	}
	return "none"
}

// Command is one request to a key's machine. Which fields count depends on Op.
type Command struct {
	Op    Op
	ID    ID            // acquire, release, extend, settle
	N     int           // acquire: how many permits, 1 to MaxPermits; release, extend: a hint, the acquire's counts
	Lease time.Duration // acquire, extend: whole milliseconds, 1 ms to MaxLease

	// Permits: of a key that nobody has set, made by this acquire (0: ErrNotSet); or what OpSet
	// sets, 0 to MaxLimit.
	Permits int64
	// Idle: a key that an acquire made is forgotten when it was not acquired for so long.
	Idle time.Duration
	// Node and Patience bound how often one node's first waiter is overtaken by other nodes: a
	// refused acquire with Patience > 0 asks to be heard of next. See MaxOvertakes. Lines send it, a first try does not.
	Node     uint64
	Patience time.Duration

	Fence   uint64        // settle: the permit's
	Verdict string        // settle: at most MaxVerdict bytes
	TTL     time.Duration // settle: whole milliseconds, 1 ms to MaxTTL
}

// Bounds of a Command.
const (
	MaxPermits = 500              // of one acquire
	MaxLimit   = 1_000_000_000    // of one key
	MaxLease   = 24 * time.Hour   // of one acquire or extend
	MaxVerdict = 1024             // bytes
	MaxTTL     = 60 * time.Second // of a verdict
	MaxMoves   = 500              // expired permits that one command takes back
	// MaxOvertakes is how many permits go to other nodes while one node's first waiter has been
	// promised the next; after that the others are refused until it has come or given up.
	MaxOvertakes = 32
)

// Result is a machine's answer.
type Result struct {
	At  int64 // decision time, µs since 1970, by the engine's clock
	Err error // one of the machine's answers below, or nil

	N       int           // acquire, extend: permits of this acquire
	Fence   uint64        // acquire, reopen: drawn; settled: the verdict's
	Expires int64         // acquire, extend: ms since 1970
	Again   bool          // acquire: it was granted by an earlier command with the same id
	Verdict string        // settled
	Until   int64         // settled: when the verdict is forgotten, ms since 1970
	Next    time.Duration // acquire, full or granted the last with Patience > 0: until the next permit expires; 0: none will, or now
	Set     bool          // the key has a limit
	Limit   int64         // permits in all, as of after the command
	Free    int64         // of them not held; negative while a lowered limit is not yet reached
	Expired int           // permits of crashed or late holders that this command took back
	More    bool          // MaxMoves was reached: there may be more to take back
	Wake    bool          // those who wait for this key should try again
}

// Held is how many permits are held.
func (r Result) Held() int64 { return r.Limit - r.Free }

// Left is how long permits are held from the decision on.
func (r Result) Left() time.Duration {
	return time.Duration(r.Expires)*time.Millisecond - time.Duration(r.At)*time.Microsecond
}

// Answers of the machine. They are expected outcomes, not failures; compare with errors.Is.
var (
	// ErrFull: no permit within the time given, or too many wait already.
	ErrFull = errors.New("no permit is free")
	// ErrSettled: the key is closed by a verdict; it comes as a *SettledError.
	ErrSettled = errors.New("key is settled")
	// ErrExpired: the permit's lease had ended before; it is not given back twice and not revived.
	ErrExpired = errors.New("permit has expired")
	// ErrReleased: the id belongs to a permit that was given back; it is never granted anew.
	ErrReleased = errors.New("permit was released")
	// ErrNotSet: nobody has said how many permits the key has.
	ErrNotSet = errors.New("key has no permits set")
	// ErrStale: the key was reopened after the settling permit was granted, or the fence is not its.
	ErrStale = errors.New("fence is too old to settle")
	// ErrBadRequest: a value out of bounds; the message names it.
	ErrBadRequest = errors.New("bad request")
)

// Answers of stores and the shell.
var (
	// ErrUnavailable: the engine cannot take the command now; nothing was done.
	ErrUnavailable = errors.New("engine unavailable")
	// ErrUnknown: the command may or may not have been done. Ask again with the same id.
	ErrUnknown = errors.New("outcome unknown")
	// ErrClosed: the gate was closed.
	ErrClosed = errors.New("gate is closed")
)

// SettledError says with which verdict a key was closed. errors.Is(err, ErrSettled).
type SettledError struct {
	Key     string
	Verdict string
	Fence   uint64        // of the permit that settled
	Left    time.Duration // until the verdict is forgotten
}

func (e *SettledError) Error() string {
	return fmt.Sprintf("key %s is settled: %s", e.Key, e.Verdict)
}

func (e *SettledError) Is(target error) bool { return target == ErrSettled }

// FullError is an ErrFull that says when it may be worth to ask again.
type FullError struct {
	Key     string
	Crowded bool          // as many wait as may: nobody was asked
	After   time.Duration // until the next permit expires by itself; 0: not known
}

func (e *FullError) Error() string {
	if e.Crowded {
		return fmt.Sprintf("key %s: no permit is free and as many wait as may", e.Key)
	}
	return fmt.Sprintf("key %s: no permit is free", e.Key)
}

func (e *FullError) Is(target error) bool { return target == ErrFull }

var keyForm = regexp.MustCompile(`^[A-Za-z0-9:_.-]{1,128}$`)

// CheckKey says what is wrong with a key, wrapping ErrBadRequest.
func CheckKey(key string) error {
	if !keyForm.MatchString(key) {
		return fmt.Errorf("%w: key %.140q must be 1 to 128 of A-Z a-z 0-9 : _ . -", ErrBadRequest, key)
	}
	if strings.HasPrefix(key, "usher:") {
		return fmt.Errorf("%w: key %q: names that begin with usher: are usher's own", ErrBadRequest, key)
	}
	return nil
}

// Check says what is out of bounds in a command, wrapping ErrBadRequest. Engines call it first.
func (c *Command) Check() error {
	bad := func(what string, got any, want string) error {
		return fmt.Errorf("%w: %s is %v, must be %s", ErrBadRequest, what, got, want)
	}
	lease := func() error {
		if c.Lease < time.Millisecond || c.Lease > MaxLease {
			return bad("lease", c.Lease, "1ms to "+MaxLease.String())
		}
		return nil
	}
	switch c.Op {
	case OpAcquire:
		if c.N < 1 || c.N > MaxPermits {
			return bad("n", c.N, fmt.Sprintf("1 to %d", MaxPermits))
		}
		if c.Permits < 0 || c.Permits > MaxLimit {
			return bad("permits", c.Permits, fmt.Sprintf("0 to %d", MaxLimit))
		}
		return lease()
	case OpExtend:
		return lease()
	case OpSet:
		if c.Permits < 0 || c.Permits > MaxLimit {
			return bad("permits", c.Permits, fmt.Sprintf("0 to %d", MaxLimit))
		}
	case OpSettle:
		if len(c.Verdict) > MaxVerdict {
			return bad("verdict", fmt.Sprintf("%d bytes", len(c.Verdict)), fmt.Sprintf("at most %d", MaxVerdict))
		}
		if c.TTL < time.Millisecond || c.TTL > MaxTTL {
			return bad("ttl", c.TTL, "1ms to "+MaxTTL.String())
		}
		if c.Fence == 0 {
			return bad("fence", 0, "the permit's")
		}
	case OpStatus, OpRelease, OpReopen, OpDelete:
	default:
		return bad("op", c.Op, "known")
	}
	return nil
}

func isFull(err error) bool    { return errors.Is(err, ErrFull) }
func isSettled(err error) bool { return errors.Is(err, ErrSettled) }
