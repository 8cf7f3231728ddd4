package token

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// How long keys wait, work and are remembered. They are constants, not settings: two processes on the same keys
// that disagreed about them would cut visitors off.
const (
	// Lead is how long a new key is published before it is used.
	Lead = 10 * time.Minute
	// Leeway is how far clocks may differ between who signs and who verifies.
	Leeway = 60 * time.Second
	// MaxAge is the longest an admission token may live, from iat to exp.
	MaxAge = 24 * time.Hour
	// TicketAge is how long a ticket sealed by a retired key is still accepted, counted from the key's retirement.
	TicketAge = 30 * 24 * time.Hour

	// retireMargin covers a node that goes on signing with a key for a while after it retired, its clock being late.
	retireMargin = 5 * time.Minute
	maxKeys      = 128 // of a kind; bounds the published document and the text in an environment variable
	maxText      = 96 << 10
	layout       = 1
	textPrefix   = "usher-keys-1."
)

// set is a key set as it is stored: plain values, never changed once made.
type set struct {
	Layout  int      `json:"layout"`
	Sign    []stored `json:"sign"`    // oldest first
	Seal    []stored `json:"seal"`    // oldest first
	Request stored   `json:"request"` // never rotates
}

// stored is one key. From is when it is first used and Until when it is last accepted (0: not retired), both in
// unix seconds.
type stored struct {
	ID    string `json:"id"`
	Key   []byte `json:"key"` // Ed25519 seed or MAC key, 32 bytes
	From  int64  `json:"from"`
	Until int64  `json:"until,omitempty"`
}

func (s stored) retiredBy(now time.Time) bool { return s.Until != 0 && now.Unix() >= s.Until }

// current picks the key in use at now: the newest that may be used already. With a clock before them all, the
// oldest: a wrong clock must not stop anybody.
func current(keys []stored, now time.Time) int {
	for i := len(keys) - 1; i > 0; i-- {
		if keys[i].From <= now.Unix() {
			return i
		}
	}
	return 0
}

// newSet makes the first keys, used at once.
func newSet(random func() []byte, now time.Time) *set {
	return &set{
		Layout:  layout,
		Sign:    []stored{newSignKey(random(), now)},
		Seal:    []stored{newMACKey(random(), now)},
		Request: newMACKey(random(), now),
	}
}

func newSignKey(seed []byte, from time.Time) stored {
	return stored{ID: signKeyID(seed), Key: seed, From: from.Unix()}
}

func newMACKey(key []byte, from time.Time) stored {
	return stored{ID: macKeyID(key), Key: key, From: from.Unix()}
}

// signKeyID is the head of the hash of the public key: enough never to collide, short in every token.
func signKeyID(seed []byte) string {
	sum := sha256.Sum256(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// macKeyID reveals four bytes of a hash of a 256-bit random key, which helps nobody to guess it.
func macKeyID(key []byte) string {
	sum := sha256.Sum256(append([]byte("usher mac key id\x00"), key...))
	return base64.RawURLEncoding.EncodeToString(sum[:4])
}

// rotate gives the set after a rotation at now. When one is still under way it changes nothing, so that a
// repeated call is harmless.
func (s *set) rotate(random func() []byte, now time.Time) (*set, RotateReport, error) {
	if last := s.Sign[len(s.Sign)-1]; last.From > now.Unix() && len(s.Sign) > 1 {
		return s, s.report(true), nil
	}
	from := now.Add(Lead + time.Second - 1).Truncate(time.Second) // times are kept in seconds: never less than Lead
	next := &set{Layout: layout, Request: s.Request}
	next.Sign = append(retire(s.Sign, now, from.Add(MaxAge+Leeway+retireMargin)), newSignKey(random(), from))
	next.Seal = append(retire(s.Seal, now, from.Add(TicketAge)), newMACKey(random(), from))
	if len(next.Sign) > maxKeys || len(next.Seal) > maxKeys {
		return nil, RotateReport{}, ErrTooManyKeys
	}
	return next, next.report(false), nil
}

// retire drops what nobody can need any more and marks the rest.
func retire(keys []stored, now, until time.Time) []stored {
	var kept []stored
	for _, k := range keys {
		if k.retiredBy(now) {
			continue
		}
		if k.Until == 0 {
			k.Until = until.Unix()
		}
		kept = append(kept, k)
	}
	return kept
}

// RotateReport says what a rotation did.
type RotateReport struct {
	KeyID   string       `json:"key_id"`   // the new signing key
	SignsAt time.Time    `json:"signs_at"` // when it takes over; until then it is only published
	Retired []RetiredKey `json:"retired"`
	// Already is true when a rotation was under way and this call changed nothing.
	Already bool `json:"already"`
}

// RetiredKey is a signing key that makes no new tokens after SignsAt, and when its last ones stop being accepted.
type RetiredKey struct {
	KeyID string    `json:"key_id"`
	Until time.Time `json:"accepted_until"`
}

func (s *set) report(already bool) RotateReport {
	last := len(s.Sign) - 1
	r := RotateReport{
		KeyID: s.Sign[last].ID, SignsAt: time.Unix(s.Sign[last].From, 0).UTC(),
		Retired: []RetiredKey{}, Already: already,
	}
	for _, k := range s.Sign[:last] {
		r.Retired = append(r.Retired, RetiredKey{k.ID, time.Unix(k.Until, 0).UTC()})
	}
	return r
}

// text is the portable form: one line without spaces, safe in files, environment variables and YAML.
func (s *set) text() string {
	doc, err := json.Marshal(s)
	if err != nil {
		panic("token: key set does not marshal") // plain values only: cannot happen; never print err, it may quote keys
	}
	return textPrefix + base64.RawURLEncoding.EncodeToString(doc)
}

// parseSet reads the portable form. Its errors quote nothing of the text.
func parseSet(text string) (*set, error) {
	text = strings.TrimSpace(text)
	bad := func(problem string, args ...any) (*set, error) {
		return nil, &FormatError{fmt.Sprintf(problem, args...)}
	}
	switch {
	case text == "":
		return bad("there is no text")
	case len(text) > maxText:
		return bad("the text is longer than %d bytes", maxText)
	case !strings.HasPrefix(text, textPrefix):
		if strings.HasPrefix(text, "usher-keys-") {
			return bad("they were written in another layout by another version of usher; start that version, or make new keys elsewhere")
		}
		return bad("the text does not begin with %q; give the whole line that `usher keys export` printed", textPrefix)
	}
	doc, err := base64.RawURLEncoding.Strict().DecodeString(text[len(textPrefix):])
	if err != nil {
		return bad("the text is damaged or was cut short")
	}
	var s set
	d := json.NewDecoder(bytes.NewReader(doc))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil || d.More() {
		return bad("the text is damaged or was cut short")
	}
	if s.Layout != layout {
		return bad("layout %d is of another version of usher", s.Layout)
	}
	if len(s.Sign) == 0 || len(s.Seal) == 0 || len(s.Sign) > maxKeys || len(s.Seal) > maxKeys {
		return bad("a key is missing")
	}
	for _, k := range s.Sign {
		if len(k.Key) != ed25519.SeedSize || k.ID != signKeyID(k.Key) {
			return bad("a signing key does not match its name; one letter changed is enough: copy the text again")
		}
	}
	for _, k := range append(s.Seal[:len(s.Seal):len(s.Seal)], s.Request) {
		if len(k.Key) != 32 || k.ID != macKeyID(k.Key) {
			return bad("a sealing key does not match its name; one letter changed is enough: copy the text again")
		}
	}
	return &s, nil
}
