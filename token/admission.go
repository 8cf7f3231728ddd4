package token

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Type is the typ header of an admission token. It keeps tokens that the same key might sign for another purpose
// from being taken for admissions.
const Type = "usher-admission+jwt"

// MaxTokenLen bounds what Verify reads, in bytes. Real tokens have about 400.
const MaxTokenLen = 4096

// Admission is what an admission token says.
type Admission struct {
	Issuer    string    // iss: the public address of the usher that let the visitor in
	Room      string    // aud
	TicketID  string    // sub: the ticket's public id
	IssuedAt  time.Time // iat, to the second
	NotBefore time.Time // nbf
	Expires   time.Time // exp
	JTI       string    // jti: names this token; a renewed one has another
}

// claims is the token's payload as usher writes it.
type claims struct {
	Issuer    string           `json:"iss,omitempty"`
	Subject   string           `json:"sub"`
	Audience  string           `json:"aud"`
	Expires   *jwt.NumericDate `json:"exp"`
	NotBefore *jwt.NumericDate `json:"nbf"`
	IssuedAt  *jwt.NumericDate `json:"iat"`
	ID        string           `json:"jti"`
}

type signKey struct {
	stored
	public ed25519.PublicKey
	signer jose.Signer
}

func newSigner(s stored) (*signKey, error) {
	private := ed25519.NewKeyFromSeed(s.Key)
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: private, KeyID: s.ID}},
		(&jose.SignerOptions{}).WithType(Type))
	if err != nil {
		return nil, err
	}
	return &signKey{stored: s, public: private.Public().(ed25519.PublicKey), signer: signer}, nil
}

// Sign makes the token for a. Room, TicketID and Expires must be set; IssuedAt defaults to now, NotBefore to
// IssuedAt and JTI to a random name. ErrTooLong when it would live longer than MaxAge. Costs about 30 µs.
func (k *Keys) Sign(a Admission) (string, error) {
	if a.IssuedAt.IsZero() {
		a.IssuedAt = k.clock()
	}
	if a.NotBefore.IsZero() {
		a.NotBefore = a.IssuedAt
	}
	if a.JTI == "" {
		a.JTI = FormatID(k.NewID())
	}
	switch {
	case !validRoom(a.Room):
		return "", errors.New("token: an admission needs a room of 1 to 64 characters")
	case a.TicketID == "":
		return "", errors.New("token: an admission needs a ticket id")
	case a.Expires.Sub(a.IssuedAt) > MaxAge:
		return "", ErrTooLong
	case a.Expires.Before(a.IssuedAt):
		return "", errors.New("token: an admission cannot expire before it is issued")
	}
	r := k.live.Load()
	key := r.sign[current(r.set.Sign, k.clock())]
	text, err := jwt.Signed(key.signer).Claims(claims{
		Issuer: a.Issuer, Subject: a.TicketID, Audience: a.Room, ID: a.JTI,
		Expires: jwt.NewNumericDate(a.Expires), NotBefore: jwt.NewNumericDate(a.NotBefore), IssuedAt: jwt.NewNumericDate(a.IssuedAt),
	}).Serialize()
	if err != nil {
		return "", errors.New("token: the admission could not be signed") // err may quote key material
	}
	return text, nil
}

// Verify checks a token against these keys, as PublicKeys.Verify does.
func (k *Keys) Verify(room, token string, now time.Time) (Admission, error) {
	r := k.live.Load()
	return verify(func(kid string) ed25519.PublicKey {
		for _, key := range r.sign {
			if key.ID == kid && !key.retiredBy(now) {
				return key.public
			}
		}
		return nil
	}, room, token, now)
}

// JWKS is the public half of the signing keys as a JSON Web Key Set (RFC 7517): the one in use, the next one
// from the moment it exists, and retired ones until the last token they signed has expired.
func (k *Keys) JWKS() []byte {
	now := k.clock()
	doc := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}}
	for _, key := range k.live.Load().sign {
		if !key.retiredBy(now) {
			doc.Keys = append(doc.Keys, jose.JSONWebKey{
				Key: key.public, KeyID: key.ID, Algorithm: string(jose.EdDSA), Use: "sig",
			})
		}
	}
	text, err := json.Marshal(doc)
	if err != nil {
		panic("token: public keys do not marshal") // Ed25519 keys of checked size: cannot happen
	}
	return text
}

// PublicKeys verifies admissions with nothing but a published key set. It never changes.
type PublicKeys struct{ byID map[string]ed25519.PublicKey }

// ParseJWKS reads a JSON Web Key Set. Keys that are not Ed25519 signing keys, or have no kid, are passed over; an
// error when none is left.
func ParseJWKS(doc []byte) (*PublicKeys, error) {
	var raw struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(doc, &raw); err != nil {
		return nil, fmt.Errorf("token: not a JSON Web Key Set: %w", err)
	}
	p := &PublicKeys{byID: map[string]ed25519.PublicKey{}}
	for _, one := range raw.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(one, &key) != nil || key.KeyID == "" || len(p.byID) == maxKeys {
			continue
		}
		if (key.Use != "" && key.Use != "sig") || (key.Algorithm != "" && key.Algorithm != string(jose.EdDSA)) {
			continue
		}
		if public, ok := key.Key.(ed25519.PublicKey); ok {
			p.byID[key.KeyID] = public
		}
	}
	if len(p.byID) == 0 {
		return nil, errors.New("token: the JSON Web Key Set holds no Ed25519 signing key")
	}
	return p, nil
}

// Has says whether the set holds a key named kid.
func (p *PublicKeys) Has(kid string) bool { return p.byID[kid] != nil }

// Len is the number of keys.
func (p *PublicKeys) Len() int { return len(p.byID) }

// Verify checks that token is an admission to room, valid at now with Leeway either way, and says what it says.
// The error wraps one of ErrMalformed, ErrAlgorithm, ErrUnknownKey, ErrSignature, ErrWrongRoom, ErrExpired and
// ErrNotYet (the last two as *TimeError), and never quotes the token.
func (p *PublicKeys) Verify(room, token string, now time.Time) (Admission, error) {
	return verify(func(kid string) ed25519.PublicKey { return p.byID[kid] }, room, token, now)
}

var edDSAOnly = []jose.SignatureAlgorithm{jose.EdDSA}

func verify(find func(kid string) ed25519.PublicKey, room, token string, now time.Time) (Admission, error) {
	if len(token) > MaxTokenLen {
		return Admission{}, fmt.Errorf("%w: it is longer than %d bytes", ErrMalformed, MaxTokenLen)
	}
	if strings.ContainsFunc(token, notCompact) { // the decoder would skip line breaks
		return Admission{}, fmt.Errorf("%w: it is not a signed JWT in compact form", ErrMalformed)
	}
	jws, err := jose.ParseSignedCompact(token, edDSAOnly)
	var alg *jose.ErrUnexpectedSignatureAlgorithm
	switch {
	case errors.As(err, &alg):
		return Admission{}, ErrAlgorithm
	case err != nil || len(jws.Signatures) != 1:
		return Admission{}, fmt.Errorf("%w: it is not a signed JWT in compact form", ErrMalformed)
	}
	// In compact form every header is protected, that is, under the signature.
	head := jws.Signatures[0].Protected
	if typ, _ := head.ExtraHeaders[jose.HeaderType].(string); typ != Type {
		return Admission{}, fmt.Errorf("%w: its typ is not %q", ErrMalformed, Type)
	}
	if head.JSONWebKey != nil {
		return Admission{}, fmt.Errorf("%w: it brings a key of its own", ErrMalformed)
	}
	key := find(head.KeyID)
	if key == nil {
		return Admission{}, ErrUnknownKey
	}
	payload, err := jws.Verify(key)
	if err != nil {
		return Admission{}, ErrSignature
	}
	return readClaims(payload, room, now)
}

func notCompact(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
}

// readClaims judges a payload whose signature is good.
func readClaims(payload []byte, room string, now time.Time) (Admission, error) {
	var c jwt.Claims
	if err := json.Unmarshal(payload, &c); err != nil || c.Subject == "" || c.Expiry == nil || c.NotBefore == nil || c.IssuedAt == nil {
		return Admission{}, fmt.Errorf("%w: it lacks sub, exp, nbf or iat", ErrMalformed)
	}
	// One audience exactly: a token for several rooms would be an admission nobody counted.
	if len(c.Audience) != 1 || c.Audience[0] != room || room == "" {
		return Admission{}, ErrWrongRoom
	}
	a := Admission{
		Issuer: c.Issuer, Room: room, TicketID: c.Subject, JTI: c.ID,
		IssuedAt: c.IssuedAt.Time().UTC(), NotBefore: c.NotBefore.Time().UTC(), Expires: c.Expiry.Time().UTC(),
	}
	start := a.NotBefore
	if a.IssuedAt.After(start) {
		start = a.IssuedAt
	}
	if now.Add(Leeway).Before(start) {
		return Admission{}, &TimeError{ErrNotYet, start, now}
	}
	if !now.Before(a.Expires.Add(Leeway)) {
		return Admission{}, &TimeError{ErrExpired, a.Expires, now}
	}
	return a, nil
}

// KeyID reads the name of the signing key from a token without verifying anything, "" when there is none: good for
// deciding whether to fetch keys, and for nothing else.
func KeyID(token string) string {
	if len(token) > MaxTokenLen {
		return ""
	}
	for i := 0; i < len(token); i++ {
		if token[i] != '.' {
			continue
		}
		head, err := base64.RawURLEncoding.DecodeString(token[:i])
		var h struct {
			KeyID string `json:"kid"`
		}
		if err != nil || json.Unmarshal(head, &h) != nil {
			return ""
		}
		return h.KeyID
	}
	return ""
}
