package token

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"sync"
	"time"
)

// Ticket is what a ticket secret proves.
type Ticket struct {
	Room   string
	ID     ID
	Seq    uint64    // the order of issue in the room, from 1
	Issued time.Time // to the millisecond, in UTC
}

// A secret is 51 bytes, 68 characters of base64url (a multiple of 3 and 4: no spare bits, so one spelling only):
//
//	version 1 | key id 4 | ticket id 16 | seq 8 | issued, ms 6 | HMAC-SHA-256, first 16
//
// The MAC covers the room's name and all bytes before it.
const (
	secretVersion = 1
	headLen       = 1 + 4 + 16 + 8 + 6
	macLen        = 16
	// SecretLen is the length of a ticket secret in characters.
	SecretLen = (headLen + macLen) / 3 * 4
	maxRoom   = 64  // longest room id
	maxHashed = 256 // longest request id hashed without allocating
)

// macKey is a MAC key with its hashers. Setting an HMAC up costs more than using it, so they are kept and reset.
type macKey struct {
	stored
	id   [4]byte
	pool sync.Pool
}

type hasher struct {
	h   hash.Hash
	buf [2 + maxRoom + maxHashed]byte // here, and not on the stack, because hash.Hash is an interface
	sum [sha256.Size]byte
}

func newMAC(s stored) *macKey {
	m := &macKey{stored: s}
	id, err := base64.RawURLEncoding.DecodeString(s.ID)
	if err != nil || len(id) != len(m.id) {
		panic("token: unchecked key id") // parseSet has compared it with the key
	}
	copy(m.id[:], id)
	key := s.Key
	m.pool.New = func() any { return &hasher{h: hmac.New(sha256.New, key)} }
	return m
}

// What is hashed begins with a purpose and the room's length, so that no two inputs look alike.
const (
	purposeTicket  = 't'
	purposeRequest = 'r'
)

// mac is the head of the HMAC of purpose, room and data.
func (m *macKey) mac(purpose byte, room string, data []byte) (out [macLen]byte) {
	x := m.pool.Get().(*hasher)
	x.h.Reset()
	b := append(x.buf[:0], purpose, byte(len(room)))
	b = append(b, room...)
	b = append(b, data...)
	x.h.Write(b)
	copy(out[:], x.h.Sum(x.sum[:0]))
	m.pool.Put(x)
	return out
}

// SealTicket makes the secret that proves t: SecretLen characters, safe in cookies and headers. t.Room must be a
// room id (1 to 64 characters) and t.Issued between 1970 and the year 10889.
func (k *Keys) SealTicket(t Ticket) string {
	r := k.live.Load()
	key := r.seal[0]
	if len(r.seal) > 1 {
		key = r.seal[current(r.set.Seal, k.clock())]
	}
	var raw [headLen + macLen]byte
	raw[0] = secretVersion
	copy(raw[1:5], key.id[:])
	copy(raw[5:21], t.ID[:])
	binary.BigEndian.PutUint64(raw[21:29], t.Seq)
	putUint48(raw[29:35], uint64(max(t.Issued.UnixMilli(), 0)))
	if !validRoom(t.Room) {
		panic("token: SealTicket: a room id has 1 to 64 characters")
	}
	mac := key.mac(purposeTicket, t.Room, raw[:headLen])
	copy(raw[headLen:], mac[:])
	var text [SecretLen]byte
	base64.RawURLEncoding.Encode(text[:], raw[:])
	return string(text[:])
}

// OpenTicket checks that secret proves a ticket of room and says which. It asks no store and takes the same time
// whichever byte is wrong. The error is ErrInvalid, or ErrUnknownSeal which wraps it. Whether the ticket is still
// alive is for the room to say.
func (k *Keys) OpenTicket(room, secret string) (Ticket, error) {
	if len(secret) != SecretLen || !validRoom(room) {
		return Ticket{}, ErrInvalid
	}
	var text [SecretLen]byte
	copy(text[:], secret)
	var raw [headLen + macLen]byte
	// The decoder skips line breaks; the length check turns those away.
	if n, err := base64.RawURLEncoding.Decode(raw[:], text[:]); err != nil || n != len(raw) || raw[0] != secretVersion {
		return Ticket{}, ErrInvalid
	}
	key := k.sealKey([4]byte(raw[1:5]))
	if key == nil {
		return Ticket{}, ErrUnknownSeal
	}
	mac := key.mac(purposeTicket, room, raw[:headLen])
	if subtle.ConstantTimeCompare(mac[:], raw[headLen:]) != 1 {
		return Ticket{}, ErrInvalid
	}
	return Ticket{
		Room:   room,
		ID:     ID(raw[5:21]),
		Seq:    binary.BigEndian.Uint64(raw[21:29]),
		Issued: time.UnixMilli(int64(uint48(raw[29:35]))).UTC(),
	}, nil
}

// sealKey finds the key by its public name; nil when unknown or kept long enough. A key that is not used yet is
// accepted: another node's clock may be ahead.
func (k *Keys) sealKey(id [4]byte) *macKey {
	for _, key := range k.live.Load().seal {
		if key.id == id {
			if key.Until != 0 && key.retiredBy(k.clock()) {
				return nil
			}
			return key
		}
	}
	return nil
}

// RequestHash is what may be stored and compared of a request id, which is itself a secret. It is the same for
// ever, on all nodes that share keys, whatever was rotated.
func (k *Keys) RequestHash(room, requestID string) [16]byte {
	key := k.live.Load().request
	var data [maxHashed]byte
	if len(room) > maxRoom || len(requestID) > maxHashed {
		// Longer than anything the API lets through: any fixed-size digest will do.
		sum := sha256.Sum256(append(append([]byte(room), 0), requestID...))
		return key.mac(purposeRequest, "", sum[:])
	}
	return key.mac(purposeRequest, room, data[:copy(data[:], requestID)])
}

func validRoom(room string) bool { return room != "" && len(room) <= maxRoom }

func putUint48(b []byte, v uint64) {
	binary.BigEndian.PutUint16(b, uint16(v>>32))
	binary.BigEndian.PutUint32(b[2:], uint32(v))
}

func uint48(b []byte) uint64 {
	return uint64(binary.BigEndian.Uint16(b))<<32 | uint64(binary.BigEndian.Uint32(b[2:]))
}
