package token

import (
	"encoding/base32"
	"errors"
)

// ID is a ticket's public id: 128 random bits.
type ID = [16]byte

// IDLen is the length of an id's text form.
const IDLen = 26

var errID = errors.New("token: a ticket id is 26 characters of a-z and 2-7")

var idText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// FormatID gives the text form of id: 26 characters of lowercase base32 (a-z, 2-7) without padding.
func FormatID(id ID) string {
	var text [IDLen]byte
	idText.Encode(text[:], id[:])
	return string(text[:])
}

// ParseID reads the text form and nothing else: upper case, padding and other spellings of the same bits are
// refused, so that equal ids have equal texts.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != IDLen {
		return id, errID
	}
	var text [IDLen]byte
	copy(text[:], s)
	if n, err := idText.Decode(id[:], text[:]); err != nil || n != len(id) {
		return ID{}, errID
	}
	var again [IDLen]byte
	idText.Encode(again[:], id[:])
	if again != text {
		return ID{}, errID
	}
	return id, nil
}
