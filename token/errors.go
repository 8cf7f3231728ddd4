package token

import (
	"errors"
	"fmt"
	"time"
)

// What can be wrong with a ticket secret. Both are fixed values: refusing junk allocates nothing.
var (
	// ErrInvalid means that the secret proves nothing: not a ticket of this room, cut short, or forged.
	ErrInvalid = errors.New("token: not a valid ticket of this room")
	// ErrUnknownSeal means that the secret names a sealing key that this process does not hold: it is forged,
	// older than TicketAge, or made under other keys (errors.Is ErrInvalid holds too). When honest visitors
	// meet it, nodes do not share their keys.
	ErrUnknownSeal error = &kindError{"token: the ticket was sealed by a key that is not known here", ErrInvalid}
)

// What can be wrong with an admission token. Verify's errors wrap exactly one of these.
var (
	ErrMalformed  = errors.New("not an admission token")
	ErrAlgorithm  = errors.New("the token is not signed with EdDSA")
	ErrUnknownKey = errors.New("the token names a signing key that is not known")
	ErrSignature  = errors.New("the token's signature is wrong")
	ErrWrongRoom  = errors.New("the token is for another room")
	ErrExpired    = errors.New("the token has expired")
	ErrNotYet     = errors.New("the token is not valid yet")
)

// What can be wrong with keys.
var (
	// ErrTooLong means that a token was to live longer than MaxAge, for which its key need not be kept.
	ErrTooLong = errors.New("token: an admission may not live longer than 24h (token.MaxAge): shorten it and renew it")
	// ErrReadOnly means that the keys came from text (USHER_KEYS), which Rotate has no place to write to.
	ErrReadOnly = errors.New("token: these keys came from USHER_KEYS and cannot be rotated in place: make the next text " +
		"with RotateText (usher keys rotate prints it) and give it to every node within ten minutes")
	// ErrTooManyKeys means that so many rotations lie within the time keys are kept that another is refused.
	ErrTooManyKeys = errors.New("token: too many keys are still in use: wait until retired ones expire before rotating again")
)

// TimeError says that a token's time limit and the verifier's clock disagree. It wraps ErrExpired or ErrNotYet.
type TimeError struct {
	Kind  error     // ErrExpired or ErrNotYet
	Limit time.Time // the token's exp, or the nbf (or iat) that lies ahead
	Now   time.Time // the verifier's clock
}

func (e *TimeError) Unwrap() error { return e.Kind }

// By is how far the clock is beyond the limit (expired) or before it (not yet), always positive.
func (e *TimeError) By() time.Duration {
	d := e.Now.Sub(e.Limit)
	if d < 0 {
		d = -d
	}
	return d.Round(time.Second)
}

func (e *TimeError) Error() string {
	if errors.Is(e.Kind, ErrNotYet) {
		// A token is valid from the moment it is made, so nothing but clocks explains this.
		return fmt.Sprintf("the token is not valid for another %s: this clock is behind the clock of the usher that issued it, "+
			"by more than the %s allowed; set both by NTP", e.By(), Leeway)
	}
	return fmt.Sprintf("the token expired %s ago by this clock (up to %s is forgiven): renew it; if it was just issued, "+
		"this clock is ahead of usher's, and both should be set by NTP", e.By(), Leeway)
}

// PermissionError says that a key folder or file can be read by other users.
type PermissionError struct {
	Path string
	Mode uint32 // permission bits found
	Want uint32 // permission bits wanted
}

func (e *PermissionError) Error() string {
	return fmt.Sprintf("token: %s is open to other users (mode %04o): run: chmod %o %q", e.Path, e.Mode, e.Want, e.Path)
}

// FormatError says that stored keys cannot be read. It never carries what was stored.
type FormatError struct{ Problem string }

func (e *FormatError) Error() string { return "token: the stored keys cannot be used: " + e.Problem }

type kindError struct {
	text string
	kind error
}

func (e *kindError) Error() string { return e.text }
func (e *kindError) Unwrap() error { return e.kind }
