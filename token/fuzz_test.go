package token_test

import (
	"testing"
	"time"

	"github.com/ushergo/usher/token"
)

func FuzzOpenTicket(f *testing.F) {
	k := open(f, keyDir(f))
	f.Add("premiere", k.SealTicket(token.Ticket{Room: "premiere", ID: k.NewID(), Seq: 1301}))
	f.Add("premiere", "")
	f.Fuzz(func(t *testing.T, room, secret string) {
		got, err := k.OpenTicket(room, secret)
		if err != nil {
			return
		}
		// Whatever is accepted is exactly what we would have made.
		if again := k.SealTicket(got); again != secret || got.Room != room {
			t.Errorf("%q is accepted for %q, but we never made it", secret, room)
		}
	})
}

func FuzzVerify(f *testing.F) {
	k := open(f, keyDir(f))
	now := time.Unix(1_790_000_000, 0)
	good, err := k.Sign(fiveMinutes(now))
	if err != nil {
		f.Fatal(err)
	}
	want, err := k.Verify("premiere", good, now)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("premiere", good)
	f.Add("premiere", "e30.e30.")
	f.Add("premiere", forge{`{"alg":"none"}`, `{}`}.signedBy(func(string) []byte { return nil }))
	f.Fuzz(func(t *testing.T, room, text string) {
		token.KeyID(text)
		a, err := k.Verify(room, text, now)
		if err == nil && a != want { // the signature's spare bits may be spelled otherwise; what it says may not
			t.Errorf("accepted %q for %q", text, room)
		}
	})
}

func FuzzText(f *testing.F) {
	f.Add(open(f, keyDir(f)).Export())
	f.Add("usher-keys-1.e30")
	f.Fuzz(func(t *testing.T, text string) {
		if k, err := token.FromEnv(text); err == nil {
			if _, err := k.OpenTicket("r", k.SealTicket(token.Ticket{Room: "r"})); err != nil {
				t.Error(err)
			}
			k.JWKS()
			k.List()
		}
		if text, _, err := token.RotateText(text, time.Unix(1_790_000_000, 0)); err == nil {
			if _, err := token.FromEnv(text); err != nil {
				t.Error(err)
			}
		}
	})
}
