package token_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/token"
)

func TestTicketRoundTrip(t *testing.T) {
	k := open(t, keyDir(t))
	for _, want := range []token.Ticket{
		{Room: "premiere", ID: k.NewID(), Seq: 1, Issued: time.UnixMilli(1_790_000_000_123).UTC()},
		{Room: strings.Repeat("r", 64), ID: token.ID{}, Seq: 1<<64 - 1, Issued: time.UnixMilli(1<<48 - 1).UTC()},
		{Room: "a", ID: k.NewID(), Issued: time.UnixMilli(0).UTC()},
	} {
		secret := k.SealTicket(want)
		if len(secret) != token.SecretLen || len(secret) > 90 {
			t.Errorf("the secret has %d characters", len(secret))
		}
		if got, err := k.OpenTicket(want.Room, secret); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

func TestTicketIsRefusedWhenAnythingDiffers(t *testing.T) { // cases/room 16
	k, other := open(t, keyDir(t)), open(t, keyDir(t))
	id := k.NewID()
	secret := k.SealTicket(token.Ticket{Room: "premiere", ID: id, Seq: 1301, Issued: time.Now()})
	for name, try := range map[string]struct{ room, secret string }{
		"another room":         {"premier", secret},
		"longer room":          {"premieree", secret},
		"no room":              {"", secret},
		"room too long":        {strings.Repeat("r", 65), secret},
		"nothing":              {"premiere", ""},
		"the public id":        {"premiere", token.FormatID(id)},
		"cut":                  {"premiere", secret[:len(secret)-1]},
		"grown":                {"premiere", secret + "A"},
		"line break":           {"premiere", secret[:10] + "\n" + secret[10:]},
		"line break for char":  {"premiere", secret[:67] + "\n"},
		"line breaks for four": {"premiere", secret[:64] + "\r\n\r\n"},
		"padding":              {"premiere", secret[:66] + "=="},
		"huge":                 {"premiere", strings.Repeat("A", 1<<20)},
		"other alphabet":       {"premiere", "+/+/" + secret[4:]},
		"not text":             {"premiere", strings.Repeat("\x00", token.SecretLen)},
	} {
		if _, err := k.OpenTicket(try.room, try.secret); !errors.Is(err, token.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if _, err := other.OpenTicket("premiere", secret); !errors.Is(err, token.ErrUnknownSeal) || !errors.Is(err, token.ErrInvalid) {
		t.Errorf("under other keys: %v, want ErrUnknownSeal", err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(secret)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range len(raw) * 8 {
		raw[bit/8] ^= 1 << (bit % 8)
		if _, err := k.OpenTicket("premiere", base64.RawURLEncoding.EncodeToString(raw)); err == nil {
			t.Fatalf("a secret with bit %d turned is accepted", bit)
		}
		raw[bit/8] ^= 1 << (bit % 8)
	}
}

func TestTicketHotPathAllocatesNothing(t *testing.T) {
	k := open(t, keyDir(t))
	secret := k.SealTicket(token.Ticket{Room: "premiere", ID: k.NewID(), Seq: 1})
	forged := k.SealTicket(token.Ticket{Room: "other", ID: k.NewID(), Seq: 1})
	// AllocsPerRun is an average: a pool emptied by the collector in between must not fail the test.
	if n := testing.AllocsPerRun(1000, func() {
		_, _ = k.OpenTicket("premiere", secret)
		_, _ = k.OpenTicket("premiere", forged)
		k.RequestHash("premiere", "Zk3v9QxT0b7LrS1mWc5YdA")
	}); n >= 1 && !raceEnabled {
		t.Errorf("%v allocations", n)
	}
}

func TestRequestHash(t *testing.T) {
	k := open(t, keyDir(t))
	seen := map[[16]byte]string{}
	for _, in := range [][2]string{
		{"premiere", "abc"}, {"premier", "eabc"}, {"premierea", "bc"}, {"", "premiereabc"}, {"premiere", ""}, {"premiere", "abc\x00"},
		{"premiere", strings.Repeat("x", 256)}, {"premiere", strings.Repeat("x", 257)}, {"premiere", strings.Repeat("x", 1<<16)},
		{strings.Repeat("r", 65), "abc"}, {strings.Repeat("r", 64), "rabc"},
	} {
		h := k.RequestHash(in[0], in[1])
		if prev, ok := seen[h]; ok {
			t.Errorf("%.20q and %.20q have one hash", prev, in)
		}
		seen[h] = in[0] + "|" + in[1]
		if k.RequestHash(in[0], in[1]) != h {
			t.Errorf("%.20q: not the same twice", in)
		}
	}
	if k.RequestHash("premiere", "abc") == open(t, keyDir(t)).RequestHash("premiere", "abc") {
		t.Error("other keys give the same hash")
	}
}

func TestIDText(t *testing.T) {
	k := open(t, keyDir(t))
	for _, id := range []token.ID{{}, k.NewID(), {0xff, 15: 0xff}} {
		text := token.FormatID(id)
		if len(text) != token.IDLen || strings.Trim(text, "abcdefghijklmnopqrstuvwxyz234567") != "" {
			t.Errorf("text form %q", text)
		}
		if got, err := token.ParseID(text); err != nil || got != id {
			t.Errorf("ParseID(%q) = %v, %v", text, got, err)
		}
		for _, bad := range []string{
			strings.ToUpper(text[:25]) + text[25:] + "=", "ABC", text[:25], text + "a", text[:25] + "1", text[:25] + "\n", "",
			text[:25] + string("bdf"[len(text)%3]), // spare bits set: the same id in another spelling
		} {
			if _, err := token.ParseID(bad); err == nil {
				t.Errorf("ParseID(%q) is accepted", bad)
			}
		}
	}
	if a, b := k.NewID(), k.NewID(); a == b {
		t.Error("two ids are equal")
	}
}
