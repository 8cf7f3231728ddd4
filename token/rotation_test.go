package token_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ushergo/usher/token"
)

// wall is a clock that a test moves; each node may have its own.
type wall struct{ at time.Time }

func (w *wall) now() time.Time { return w.at }

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// issued is a proof that a visitor was given, to be shown again later.
type issued struct {
	by, admission, secret string
	at, expires           time.Time
}

// TestRotationCutsNobodyOff runs three nodes on one folder through several rotations. One reloads each minute, one
// is always two minutes late by its clock, and one never reloads until just before a new key signs. A verifier
// fetches the public keys each five minutes. Everything issued is shown to all of them until it expires.
func TestRotationCutsNobodyOff(t *testing.T) {
	dir := keyDir(t)
	clock, late := &wall{start}, &wall{start.Add(-2 * time.Minute)}
	nodes := map[string]*token.Keys{
		"rotating": open(t, dir, token.Clock(clock.now)),
		"late":     open(t, dir, token.Clock(late.now)),
		"lazy":     open(t, dir, token.Clock(clock.now)),
	}
	var public *token.PublicKeys
	var alive []issued
	signers := map[string]bool{}
	for minute := range 40 * 60 {
		now := start.Add(time.Duration(minute) * time.Minute)
		clock.at, late.at = now, now.Add(-2*time.Minute)
		if minute%(9*60) == 60 {
			if _, err := nodes["rotating"].Rotate(now); err != nil {
				t.Fatal(err)
			}
		}
		reload(t, nodes["late"])
		if minute%9 == 0 { // less than Lead apart
			reload(t, nodes["lazy"])
		}
		if minute%5 == 0 {
			var err error
			if public, err = token.ParseJWKS(nodes["rotating"].JWKS()); err != nil {
				t.Fatal(err)
			}
		}
		for name, k := range nodes {
			if minute%7 != 0 {
				continue
			}
			at := now
			if name == "late" {
				at = late.at
			}
			expires := at.Add(token.MaxAge)
			if minute%2 == 0 {
				expires = at.Add(5 * time.Minute)
			}
			text, err := k.Sign(token.Admission{Room: "premiere", TicketID: "x", IssuedAt: at, Expires: expires})
			if err != nil {
				t.Fatal(err)
			}
			signers[token.KeyID(text)] = true
			alive = append(alive, issued{name, text, k.SealTicket(token.Ticket{Room: "premiere", Issued: at}), now, expires})
		}
		if since := minute%(9*60) - 60; minute%40 != 0 && (since < 0 || since > 25 || since%5 != 0) {
			continue // look closely around each rotation, and now and then in between
		}
		alive = slices.DeleteFunc(alive, func(p issued) bool { return !now.Before(p.expires.Add(token.Leeway)) })
		for _, p := range alive {
			for name, k := range nodes {
				if _, err := k.OpenTicket("premiere", p.secret); err != nil {
					t.Fatalf("minute %d: node %s refuses the ticket that %s issued at %v: %v", minute, name, p.by, p.at, err)
				}
				if _, err := k.Verify("premiere", p.admission, now); err != nil {
					t.Fatalf("minute %d: node %s refuses the admission that %s issued at %v: %v", minute, name, p.by, p.at, err)
				}
			}
			if _, err := public.Verify("premiere", p.admission, now); err != nil {
				t.Fatalf("minute %d: the verifier refuses the admission that %s issued at %v: %v", minute, p.by, p.at, err)
			}
		}
		if len(alive) > 24 { // verifying costs; the oldest and the newest are what a rotation could cut off
			alive = slices.Delete(alive, 12, len(alive)-12)
		}
	}
	if len(signers) < 4 {
		t.Errorf("only %d keys ever signed; the rotations did not happen", len(signers))
	}
}

func reload(t *testing.T, k *token.Keys) {
	t.Helper()
	if err := k.Reload(); err != nil {
		t.Fatal(err)
	}
}

func TestRotationSchedule(t *testing.T) {
	clock := &wall{start}
	k := open(t, keyDir(t), token.Clock(clock.now))
	first := published(t, k)[0]
	report, err := k.Rotate(start)
	if err != nil {
		t.Fatal(err)
	}
	ends := start.Add(token.Lead + token.MaxAge + token.Leeway)
	if report.KeyID == first || !report.SignsAt.Equal(start.Add(token.Lead)) || len(report.Retired) != 1 ||
		report.Retired[0].KeyID != first || report.Retired[0].Until.Before(ends) {
		t.Fatalf("report %+v", report)
	}
	for _, step := range []struct {
		after     time.Duration
		signer    string
		published int
	}{
		{0, first, 2}, // published at once
		{token.Lead - time.Second, first, 2},
		{token.Lead, report.KeyID, 2},
		{token.Lead + token.MaxAge + token.Leeway, report.KeyID, 2}, // the last old token may just be alive
		{token.Lead + token.MaxAge + time.Hour, report.KeyID, 1},
	} {
		clock.at = start.Add(step.after)
		text, err := k.Sign(token.Admission{Room: "r", TicketID: "x", Expires: clock.at.Add(time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		if got := token.KeyID(text); got != step.signer {
			t.Errorf("after %v: signed by %s, want %s", step.after, got, step.signer)
		}
		if got := len(published(t, k)); got != step.published {
			t.Errorf("after %v: %d keys published, want %d", step.after, got, step.published)
		}
	}

	again, err := k.Rotate(clock.at)
	if err != nil || again.Already {
		t.Fatalf("second rotation: %+v, %v", again, err)
	}
	if repeat, err := k.Rotate(clock.at.Add(time.Minute)); err != nil || !repeat.Already || repeat.KeyID != again.KeyID {
		t.Errorf("a repeated call: %+v, %v", repeat, err)
	}
	states := map[string]int{}
	for _, info := range k.List() {
		states[info.Kind+" "+info.State]++
	}
	want := map[string]int{"sign current": 1, "sign next": 1, "seal retired": 1, "seal current": 1, "seal next": 1, "request current": 1}
	if len(states) != len(want) {
		t.Errorf("List: %v, want %v", states, want)
	}
	for kind, n := range want {
		if states[kind] != n {
			t.Errorf("List: %v, want %v", states, want)
		}
	}
}

func TestRetiredSealIsKeptForTicketAge(t *testing.T) {
	clock := &wall{start}
	k := open(t, keyDir(t), token.Clock(clock.now))
	hash := k.RequestHash("premiere", "abc")
	secret := k.SealTicket(token.Ticket{Room: "premiere"})
	if _, err := k.Rotate(start); err != nil {
		t.Fatal(err)
	}
	clock.at = start.Add(token.Lead + token.TicketAge - time.Second)
	if _, err := k.OpenTicket("premiere", secret); err != nil {
		t.Errorf("within TicketAge: %v", err)
	}
	clock.at = clock.at.Add(time.Second)
	if _, err := k.OpenTicket("premiere", secret); !errors.Is(err, token.ErrUnknownSeal) {
		t.Errorf("after TicketAge: %v, want ErrUnknownSeal", err)
	}
	if k.RequestHash("premiere", "abc") != hash {
		t.Error("a rotation changed the request hash: a repeated request would lose its place")
	}
}

func TestClockBeforeAllKeysStillSigns(t *testing.T) { // cases/room 15
	clock := &wall{start}
	dir := keyDir(t)
	k := open(t, dir, token.Clock(clock.now))
	if _, err := k.Rotate(start); err != nil {
		t.Fatal(err)
	}
	clock.at = start.Add(-time.Hour)
	text, err := k.Sign(token.Admission{Room: "r", TicketID: "x", Expires: clock.at.Add(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Verify("r", text, clock.at); err != nil {
		t.Error(err)
	}
	if _, err := k.OpenTicket("r", k.SealTicket(token.Ticket{Room: "r"})); err != nil {
		t.Error(err)
	}
}

func TestEndlessRotationIsBounded(t *testing.T) {
	k, err := token.OpenStore(t.Context(), &memoryStore{})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i := range 1000 {
		_, err := k.Rotate(now)
		if errors.Is(err, token.ErrTooManyKeys) {
			if len(k.Export()) > 96<<10 {
				t.Errorf("the text grew to %d bytes", len(k.Export()))
			}
			if _, err := k.Rotate(now.Add(token.TicketAge + time.Hour)); err != nil {
				t.Errorf("when old keys have expired: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatalf("rotation %d: %v", i, err)
		}
		now = now.Add(token.Lead)
	}
	t.Error("keys pile up without bound")
}

func published(t *testing.T, k *token.Keys) (kids []string) {
	t.Helper()
	var doc struct {
		Keys []struct{ Kid, Kty, Crv, Alg, Use, D string }
	}
	if err := json.Unmarshal(k.JWKS(), &doc); err != nil {
		t.Fatal(err)
	}
	for _, key := range doc.Keys {
		if key.Kty != "OKP" || key.Crv != "Ed25519" || key.Alg != "EdDSA" || key.Use != "sig" || key.D != "" {
			t.Errorf("published key %+v", key)
		}
		kids = append(kids, key.Kid)
	}
	return kids
}
