package token_test

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/token"
)

func admit(t testing.TB, k *token.Keys, a token.Admission) string {
	t.Helper()
	text, err := k.Sign(a)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func fiveMinutes(now time.Time) token.Admission {
	return token.Admission{Issuer: "https://tickets.test", Room: "premiere", TicketID: "abc", IssuedAt: now, Expires: now.Add(5 * time.Minute)}
}

func TestAdmissionRoundTrip(t *testing.T) {
	k := open(t, keyDir(t))
	now := time.Unix(1_790_000_000, 0).UTC()
	want := fiveMinutes(now)
	want.JTI, want.NotBefore = "one", now
	text := admit(t, k, want)
	if got, err := k.Verify("premiere", text, now); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	public, err := token.ParseJWKS(k.JWKS())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := public.Verify("premiere", text, now); err != nil || got != want {
		t.Errorf("by public keys: %+v, %v", got, err)
	}

	head, body := parts(t, text)
	if head["alg"] != "EdDSA" || head["typ"] != token.Type || head["kid"] != token.KeyID(text) || len(head) != 3 {
		t.Errorf("header %v", head)
	}
	for name, value := range map[string]any{
		"iss": "https://tickets.test", "aud": "premiere", "sub": "abc", "jti": "one",
		"iat": 1.79e9, "nbf": 1.79e9, "exp": 1.79e9 + 300,
	} {
		if body[name] != value {
			t.Errorf("%s is %v, want %v", name, body[name], value)
		}
	}

	a, b := admit(t, k, fiveMinutes(now)), admit(t, k, fiveMinutes(now))
	if a == b {
		t.Error("two tokens without a given jti are equal")
	}
}

func parts(t *testing.T, text string) (head, body map[string]any) {
	t.Helper()
	piece := strings.Split(text, ".")
	for i, into := range []*map[string]any{&head, &body} {
		raw, err := base64.RawURLEncoding.DecodeString(piece[i])
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, into); err != nil {
			t.Fatal(err)
		}
	}
	return head, body
}

func TestSignRefuses(t *testing.T) {
	k := open(t, keyDir(t))
	now := time.Now()
	for name, a := range map[string]token.Admission{
		"no room":      {TicketID: "x", Expires: now.Add(time.Minute)},
		"no ticket":    {Room: "r", Expires: now.Add(time.Minute)},
		"no end":       {Room: "r", TicketID: "x"},
		"end in past":  {Room: "r", TicketID: "x", IssuedAt: now, Expires: now.Add(-time.Second)},
		"long room id": {Room: strings.Repeat("r", 65), TicketID: "x", Expires: now.Add(time.Minute)},
	} {
		if _, err := k.Sign(a); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
	if _, err := k.Sign(token.Admission{Room: "r", TicketID: "x", IssuedAt: now, Expires: now.Add(token.MaxAge + time.Second)}); !errors.Is(err, token.ErrTooLong) {
		t.Errorf("too long: %v", err)
	}
}

func TestClocksThatDiffer(t *testing.T) { // cases/room 14
	k := open(t, keyDir(t))
	now := time.Unix(1_790_000_000, 0)
	fresh := admit(t, k, fiveMinutes(now))
	for _, c := range []struct {
		at   time.Time
		want error
		says string
	}{
		{now.Add(-30 * time.Second), nil, ""},
		{now.Add(-60 * time.Second), nil, ""},
		{now.Add(-61 * time.Second), token.ErrNotYet, "1m1s"},
		{now.Add(-90 * time.Second), token.ErrNotYet, "1m30s: this clock is behind"},
		{now.Add(5*time.Minute + 30*time.Second), nil, ""},
		{now.Add(5*time.Minute + 59*time.Second), nil, ""},
		{now.Add(5*time.Minute + 60*time.Second), token.ErrExpired, "1m0s ago"},
		{now.Add(5*time.Minute + 90*time.Second), token.ErrExpired, "1m30s ago"},
	} {
		_, err := k.Verify("premiere", fresh, c.at)
		if !errors.Is(err, c.want) {
			t.Errorf("at %+v: %v, want %v", c.at.Sub(now), err, c.want)
			continue
		}
		var te *token.TimeError
		if c.want != nil && (!errors.As(err, &te) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("at %+v: %q does not say %q", c.at.Sub(now), err, c.says)
		}
	}
}

// forge builds a compact JWT by hand, so that it may be wrong in any way.
type forge struct{ head, body string }

func (f forge) signedBy(sign func(input string) []byte) string {
	input := b64([]byte(f.head)) + "." + b64([]byte(f.body))
	return input + "." + b64(sign(input))
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// seedOf reads the signing seed out of the exported text: what a thief of the keys could do, a test may do.
func seedOf(t testing.TB, k *token.Keys) ed25519.PrivateKey {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(k.Export(), "usher-keys-1."))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Sign []struct{ Key []byte } }
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	return ed25519.NewKeyFromSeed(doc.Sign[0].Key)
}

func TestForgedAdmissions(t *testing.T) {
	k := open(t, keyDir(t))
	now := time.Unix(1_790_000_000, 0)
	good := admit(t, k, fiveMinutes(now))
	kid := token.KeyID(good)
	private := seedOf(t, k)
	public := private.Public().(ed25519.PublicKey)
	_, stranger, _ := ed25519.GenerateKey(nil)

	edDSA := func(key ed25519.PrivateKey) func(string) []byte {
		return func(in string) []byte { return ed25519.Sign(key, []byte(in)) }
	}
	hs256 := func(key []byte) func(string) []byte {
		return func(in string) []byte { m := hmac.New(sha256.New, key); m.Write([]byte(in)); return m.Sum(nil) }
	}
	none := func(string) []byte { return nil }
	ours := edDSA(private) // correctly signed, so that only the content can be the reason
	const body = `{"iss":"https://tickets.test","aud":"premiere","sub":"abc","jti":"1","iat":1790000000,"nbf":1790000000,"exp":1790000300}`
	head := func(alg string) string {
		return `{"alg":"` + alg + `","typ":"usher-admission+jwt","kid":"` + kid + `"}`
	}
	with := func(old, new string) string { return strings.Replace(body, old, new, 1) }

	if _, err := k.Verify("premiere", forge{head("EdDSA"), body}.signedBy(ours), now); err != nil {
		t.Fatalf("the forge itself is broken: %v", err)
	}
	for name, c := range map[string]struct {
		token string
		want  error
	}{
		"alg none":                 {forge{head("none"), body}.signedBy(none), token.ErrAlgorithm},
		"alg None, signed":         {forge{head("None"), body}.signedBy(ours), token.ErrAlgorithm},
		"no alg":                   {forge{`{"typ":"usher-admission+jwt","kid":"` + kid + `"}`, body}.signedBy(ours), token.ErrAlgorithm},
		"HS256 with public key":    {forge{head("HS256"), body}.signedBy(hs256(public)), token.ErrAlgorithm},
		"HS256 with JWKS":          {forge{head("HS256"), body}.signedBy(hs256(k.JWKS())), token.ErrAlgorithm},
		"ES256":                    {forge{head("ES256"), body}.signedBy(ours), token.ErrAlgorithm},
		"lower-case alg":           {forge{head("eddsa"), body}.signedBy(ours), token.ErrAlgorithm},
		"EdDSA without signature":  {forge{head("EdDSA"), body}.signedBy(none), token.ErrSignature},
		"signed by a stranger":     {forge{head("EdDSA"), body}.signedBy(edDSA(stranger)), token.ErrSignature},
		"HMAC under EdDSA":         {forge{head("EdDSA"), body}.signedBy(hs256(public)), token.ErrSignature},
		"payload swapped":          {swapPayload(good, with("abc", "thief")), token.ErrSignature},
		"unknown kid":              {forge{strings.Replace(head("EdDSA"), kid, "nobody", 1), body}.signedBy(edDSA(stranger)), token.ErrUnknownKey},
		"no kid":                   {forge{`{"alg":"EdDSA","typ":"usher-admission+jwt"}`, body}.signedBy(ours), token.ErrUnknownKey},
		"kid is a path":            {forge{strings.Replace(head("EdDSA"), kid, "../../etc/passwd", 1), body}.signedBy(ours), token.ErrUnknownKey},
		"typ JWT":                  {forge{strings.Replace(head("EdDSA"), token.Type, "JWT", 1), body}.signedBy(ours), token.ErrMalformed},
		"no typ":                   {forge{`{"alg":"EdDSA","kid":"` + kid + `"}`, body}.signedBy(ours), token.ErrMalformed},
		"typ twice":                {forge{strings.Replace(head("EdDSA"), `"typ"`, `"typ":"JWT","typ"`, 1), body}.signedBy(ours), token.ErrMalformed},
		"crit unknown":             {forge{strings.Replace(head("EdDSA"), `{`, `{"crit":["x"],"x":1,`, 1), body}.signedBy(ours), token.ErrSignature},
		"brings its own key":       {forge{strings.Replace(head("EdDSA"), `{`, `{"jwk":{"kty":"OKP","crv":"Ed25519","x":"`+b64(stranger.Public().(ed25519.PublicKey))+`"},`, 1), body}.signedBy(edDSA(stranger)), token.ErrMalformed},
		"another room":             {forge{head("EdDSA"), with("premiere", "matinee")}.signedBy(ours), token.ErrWrongRoom},
		"room in other case":       {forge{head("EdDSA"), with("premiere", "Premiere")}.signedBy(ours), token.ErrWrongRoom},
		"two audiences":            {forge{head("EdDSA"), with(`"premiere"`, `["premiere","matinee"]`)}.signedBy(ours), token.ErrWrongRoom},
		"same audience twice":      {forge{head("EdDSA"), with(`"premiere"`, `["premiere","premiere"]`)}.signedBy(ours), token.ErrWrongRoom},
		"no audience":              {forge{head("EdDSA"), with(`"aud":"premiere",`, ``)}.signedBy(ours), token.ErrWrongRoom},
		"empty audience list":      {forge{head("EdDSA"), with(`"premiere"`, `[]`)}.signedBy(ours), token.ErrWrongRoom},
		"audience a number":        {forge{head("EdDSA"), with(`"premiere"`, `7`)}.signedBy(ours), token.ErrMalformed},
		"audience nested":          {forge{head("EdDSA"), with(`"premiere"`, `[["premiere"]]`)}.signedBy(ours), token.ErrMalformed},
		"aud and AUD":              {forge{head("EdDSA"), with(`"aud":"premiere"`, `"AUD":"premiere"`)}.signedBy(ours), token.ErrWrongRoom},
		"no exp":                   {forge{head("EdDSA"), with(`,"exp":1790000300`, ``)}.signedBy(ours), token.ErrMalformed},
		"no nbf":                   {forge{head("EdDSA"), with(`"nbf":1790000000,`, ``)}.signedBy(ours), token.ErrMalformed},
		"no sub":                   {forge{head("EdDSA"), with(`"sub":"abc",`, ``)}.signedBy(ours), token.ErrMalformed},
		"exp a string":             {forge{head("EdDSA"), with(`1790000300`, `"1790000300"`)}.signedBy(ours), token.ErrMalformed},
		"iat in the far future":    {forge{head("EdDSA"), with(`"iat":1790000000`, `"iat":1890000000`)}.signedBy(ours), token.ErrNotYet},
		"exp twice":                {forge{head("EdDSA"), with(`"exp"`, `"exp":9999999999,"exp"`)}.signedBy(ours), token.ErrMalformed},
		"payload not JSON":         {forge{head("EdDSA"), "hello"}.signedBy(ours), token.ErrMalformed},
		"payload null":             {forge{head("EdDSA"), "null"}.signedBy(ours), token.ErrMalformed},
		"huge":                     {good + strings.Repeat("A", 1<<20), token.ErrMalformed},
		"empty":                    {"", token.ErrMalformed},
		"two parts":                {good[:strings.LastIndex(good, ".")], token.ErrMalformed},
		"four parts":               {good + ".AAAA", token.ErrMalformed},
		"JSON form":                {`{"payload":"` + b64([]byte(body)) + `","protected":"` + b64([]byte(head("EdDSA"))) + `","signature":"AAAA"}`, token.ErrMalformed},
		"leading space":            {" " + good, token.ErrMalformed},
		"trailing line break":      {good + "\n", token.ErrMalformed},
		"deep nesting":             {forge{head("EdDSA"), strings.Repeat("[", 2000)}.signedBy(ours), token.ErrMalformed},
		"header of another object": {forge{`[1]`, body}.signedBy(ours), token.ErrMalformed},
	} {
		_, err := k.Verify("premiere", c.token, now)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err != nil && len(c.token) > 40 && strings.Contains(err.Error(), c.token[10:40]) {
			t.Errorf("%s: the error quotes the token", name)
		}
	}
	if _, err := k.Verify("", good, now); !errors.Is(err, token.ErrWrongRoom) {
		t.Errorf("no room: %v", err)
	}
	one := forge{head("EdDSA"), with(`"premiere"`, `["premiere"]`)}.signedBy(ours)
	if _, err := k.Verify("premiere", one, now); err != nil {
		t.Errorf("a list with this room alone means the same: %v", err)
	}
}

func swapPayload(text, body string) string {
	p := strings.Split(text, ".")
	return p[0] + "." + b64([]byte(body)) + "." + p[2]
}

func TestParseJWKS(t *testing.T) {
	k := open(t, keyDir(t))
	good := string(k.JWKS())
	inner := strings.TrimSuffix(strings.TrimPrefix(good, `{"keys":[`), `]}`)
	for name, c := range map[string]struct {
		doc string
		ok  bool
	}{
		"ours":                         {good, true},
		"with foreign kinds":           {`{"keys":[{"kty":"XYZ"},{"kty":"oct","k":"AAAA","kid":"` + "a" + `"},` + inner + `]}`, true},
		"no keys":                      {`{"keys":[]}`, false},
		"not JSON":                     {`<html>`, false},
		"empty":                        {``, false},
		"no kid":                       {strings.Replace(good, `"kid"`, `"kidd"`, 1), false},
		"for encryption":               {strings.Replace(good, `"use":"sig"`, `"use":"enc"`, 1), false},
		"with another algorithm's alg": {strings.Replace(good, `"EdDSA"`, `"HS256"`, 1), false},
		"the zero point":               {`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"x","x":"` + strings.Repeat("A", 43) + `"}]}`, false},
	} {
		p, err := token.ParseJWKS([]byte(c.doc))
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if c.ok && p.Len() != 1 {
			t.Errorf("%s: %d keys", name, p.Len())
		}
	}
}
