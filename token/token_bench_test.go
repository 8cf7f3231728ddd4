package token_test

import (
	"testing"
	"time"

	"github.com/ushergo/usher/token"
)

func benchKeys(b *testing.B) *token.Keys {
	b.Helper()
	k, err := token.Open(b.TempDir() + "/keys")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	return k
}

func BenchmarkOpenTicket(b *testing.B) {
	k := benchKeys(b)
	secret := k.SealTicket(token.Ticket{Room: "premiere", ID: k.NewID(), Seq: 1301, Issued: time.Now()})
	for b.Loop() {
		if _, err := k.OpenTicket("premiere", secret); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpenTicketForged(b *testing.B) {
	k := benchKeys(b)
	secret := k.SealTicket(token.Ticket{Room: "premiere", ID: k.NewID(), Seq: 1301, Issued: time.Now()})
	for b.Loop() {
		if _, err := k.OpenTicket("other", secret); err == nil {
			b.Fatal("accepted")
		}
	}
}

func BenchmarkSealTicket(b *testing.B) {
	k := benchKeys(b)
	t := token.Ticket{Room: "premiere", ID: k.NewID(), Seq: 1301, Issued: time.Now()}
	for b.Loop() {
		k.SealTicket(t)
	}
}

func BenchmarkRequestHash(b *testing.B) {
	k := benchKeys(b)
	for b.Loop() {
		k.RequestHash("premiere", "Zk3v9QxT0b7LrS1mWc5YdA")
	}
}

func BenchmarkNewID(b *testing.B) {
	k := benchKeys(b)
	for b.Loop() {
		k.NewID()
	}
}

func BenchmarkSign(b *testing.B) {
	k := benchKeys(b)
	now := time.Now()
	a := token.Admission{Issuer: "https://tickets.test", Room: "premiere", TicketID: token.FormatID(k.NewID()), IssuedAt: now, Expires: now.Add(5 * time.Minute)}
	for b.Loop() {
		if _, err := k.Sign(a); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	k := benchKeys(b)
	now := time.Now()
	text, err := k.Sign(token.Admission{Issuer: "https://tickets.test", Room: "premiere", TicketID: token.FormatID(k.NewID()), IssuedAt: now, Expires: now.Add(5 * time.Minute)})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := k.Verify("premiere", text, now); err != nil {
			b.Fatal(err)
		}
	}
}
