package token_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ushergo/usher/token"
)

func TestKeysAreNeverPrinted(t *testing.T) { // cases/room 16
	k := open(t, keyDir(t))
	secrets := secretsOf(t, k)
	type server struct {
		Keys   *token.Keys
		hidden *token.Keys
	}
	s := server{Keys: k, hidden: k}

	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T %v"} {
		args := []any{k}
		if verb == "%T %v" {
			args = []any{k, k}
		}
		fmt.Fprintf(&out, verb+"\n", args...)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		fmt.Fprintf(&out, verb+"\n", s)
		fmt.Fprintf(&out, verb+"\n", &s)
		fmt.Fprintf(&out, verb+"\n", []*token.Keys{k})
		fmt.Fprintf(&out, verb+"\n", map[string]any{"k": k})
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		log := slog.New(h)
		log.Info("start", "keys", k, "server", s, "group", slog.GroupValue(slog.Any("keys", k)))
		log.With("keys", k).Info(k.String(), "go", k.GoString())
	}
	doc, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(doc)

	text := out.String()
	for _, secret := range secrets {
		if strings.Contains(strings.ToLower(text), strings.ToLower(secret)) {
			t.Fatalf("a key was printed")
		}
	}
	if !strings.Contains(text, "[redacted]") {
		t.Error("nothing says [redacted]")
	}
}

// secretsOf gives each key in the spellings in which printing could show it.
func secretsOf(t *testing.T, k *token.Keys) []string {
	t.Helper()
	doc, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(k.Export(), "usher-keys-1."))
	if err != nil {
		t.Fatal(err)
	}
	type key struct{ Key []byte }
	var set struct {
		Sign, Seal []key
		Request    key
	}
	if err := json.Unmarshal(doc, &set); err != nil {
		t.Fatal(err)
	}
	secrets := []string{k.Export()[20:60]}
	for _, s := range append(append(set.Sign, set.Seal...), set.Request) {
		if len(s.Key) != 32 {
			t.Fatal("the test does not see the keys")
		}
		secrets = append(secrets,
			hex.EncodeToString(s.Key),
			base64.StdEncoding.EncodeToString(s.Key),
			base64.RawURLEncoding.EncodeToString(s.Key),
			strings.Trim(fmt.Sprint(s.Key[:8]), "[]"),
			string(s.Key))
	}
	return secrets
}
