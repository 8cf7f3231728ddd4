package origins

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/token"
)

// usher is what an origin meets of it: keys over HTTP.
type usher struct {
	*token.Keys
	*httptest.Server
	fetches atomic.Int64
	leaked  atomic.Bool // a visitor's secrets came along with a fetch
	broken  atomic.Bool
}

func startUsher(t *testing.T) *usher {
	t.Helper()
	k, err := token.Open(t.TempDir() + "/keys")
	if err != nil {
		t.Fatal(err)
	}
	u := &usher{Keys: k}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.fetches.Add(1)
		if r.URL.Path != "/.well-known/jwks.json" || r.Method != http.MethodGet || r.Header.Get("Cookie") != "" || r.Header.Get("X-Usher-Token") != "" {
			u.leaked.Store(true)
		}
		if u.broken.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(u.JWKS())
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *usher) jwks() string { return u.URL + "/.well-known/jwks.json" }

// admit makes a token as usher does, issued at an offset from now.
func (u *usher) admit(t *testing.T, room string, at, life time.Duration) string {
	t.Helper()
	now := time.Now().Add(at)
	text, err := u.Sign(token.Admission{Issuer: u.URL, Room: room, TicketID: "ticket-1", IssuedAt: now, Expires: now.Add(life)})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// forge signs whatever it is given with usher's own key, so that the content alone can be wrong.
func (u *usher) forge(t *testing.T, head, body map[string]any, sign func(private ed25519.PrivateKey, input []byte) []byte) string {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(u.Export(), "usher-keys-1."))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Sign []struct {
			ID  string
			Key []byte
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	h := map[string]any{"alg": "EdDSA", "typ": token.Type, "kid": doc.Sign[0].ID}
	now := time.Now().Unix()
	b := map[string]any{"aud": "premiere", "sub": "ticket-1", "iat": now, "nbf": now, "exp": now + 300}
	for into, from := range map[*map[string]any]map[string]any{&h: head, &b: body} {
		for name, value := range from {
			if (*into)[name] = value; value == nil {
				delete(*into, name)
			}
		}
	}
	input := b64(h) + "." + b64(b)
	if sign == nil {
		sign = func(key ed25519.PrivateKey, input []byte) []byte { return ed25519.Sign(key, input) }
	}
	return input + "." + base64.RawURLEncoding.EncodeToString(sign(ed25519.NewKeyFromSeed(doc.Sign[0].Key), []byte(input)))
}

func b64(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

type answer struct {
	status int
	header http.Header
	body   map[string]any
}

func (a answer) code() string { s, _ := a.body["code"].(string); return s }

func ask(t *testing.T, url string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url+"/checkout", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // no redirect is followed
	if err != nil {
		t.Error(err)
		return answer{}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	a := answer{status: resp.StatusCode, header: resp.Header}
	_ = json.Unmarshal(text, &a.body) // a body that is not JSON has no code, and fails on that
	return a
}

func TestOrigins(t *testing.T) { // cases/room 14, 16
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			u, stranger := startUsher(t), startUsher(t)
			started := time.Now()
			url := p.start(t, "premiere", u.jwks())
			const header = "X-Usher-Token"
			good := u.admit(t, "premiere", 0, 5*time.Minute)
			hs256 := func(private ed25519.PrivateKey, input []byte) []byte {
				m := hmac.New(sha256.New, private.Public().(ed25519.PublicKey))
				m.Write(input)
				return m.Sum(nil)
			}
			none := func(ed25519.PrivateKey, []byte) []byte { return nil }
			other := func(key string, value any) map[string]any { return map[string]any{key: value} }

			for _, c := range []struct {
				name   string
				header []string
				status int
				code   string
			}{
				{"header", []string{header, good, "Cookie", "app=secret"}, 200, ""},
				{"bearer", []string{"Authorization", "Bearer " + good}, 200, ""},
				{"bearer in lower case", []string{"Authorization", "bearer " + good}, 200, ""},
				{"header before bearer", []string{header, good, "Authorization", "Bearer junk"}, 200, ""},
				{"audience as a list of one", []string{header, u.forge(t, nil, other("aud", []string{"premiere"}), nil)}, 200, ""},
				{"clock 30 s behind", []string{header, u.admit(t, "premiere", 30*time.Second, 5*time.Minute)}, 200, ""},
				{"clock 30 s ahead", []string{header, u.admit(t, "premiere", -5*time.Minute-30*time.Second, 5*time.Minute)}, 200, ""},

				{"nothing", nil, 401, "token_missing"},
				{"other scheme", []string{"Authorization", "Basic " + good}, 401, "token_missing"},
				{"usher's other headers alone", []string{"X-Usher-Ticket-Id", "ticket-1", "X-Usher-Room", "premiere"}, 401, "token_missing"},
				{"junk", []string{header, "junk"}, 401, "token_malformed"},
				{"two headers", []string{header, good, header, good}, 401, "token_malformed"},
				{"long", []string{header, good + strings.Repeat("A", 5000)}, 401, "token_malformed"},
				{"a ticket secret", []string{header, u.SealTicket(token.Ticket{Room: "premiere"})}, 401, "token_malformed"},
				{"clock 90 s behind", []string{header, u.admit(t, "premiere", 90*time.Second, 5*time.Minute)}, 401, "token_not_yet"},
				{"clock 90 s ahead", []string{header, u.admit(t, "premiere", -5*time.Minute-90*time.Second, 5*time.Minute)}, 401, "token_expired"},
				{"iat ahead alone", []string{header, u.forge(t, nil, other("iat", time.Now().Unix()+1000), nil)}, 401, "token_not_yet"},
				{"other room", []string{header, u.admit(t, "matinee", 0, time.Minute)}, 403, "wrong_room"},
				{"two audiences", []string{header, u.forge(t, nil, other("aud", []string{"premiere", "matinee"}), nil)}, 403, "wrong_room"},
				{"no audience", []string{header, u.forge(t, nil, other("aud", nil), nil)}, 403, "wrong_room"},
				{"alg none", []string{header, u.forge(t, other("alg", "none"), nil, none)}, 401, "wrong_algorithm"},
				{"HS256 with the public key", []string{header, u.forge(t, other("alg", "HS256"), nil, hs256)}, 401, "wrong_algorithm"},
				{"no signature", []string{header, u.forge(t, nil, nil, none)}, 401, "bad_signature"},
				{"HMAC called EdDSA", []string{header, u.forge(t, nil, nil, hs256)}, 401, "bad_signature"},
				{"content changed", []string{header, swap(good, stranger.admit(t, "premiere", 0, time.Hour))}, 401, "bad_signature"},
				{"typ JWT", []string{header, u.forge(t, other("typ", "JWT"), nil, nil)}, 401, "token_malformed"},
				{"no typ", []string{header, u.forge(t, other("typ", nil), nil, nil)}, 401, "token_malformed"},
				{"no exp", []string{header, u.forge(t, nil, other("exp", nil), nil)}, 401, "token_malformed"},
				{"no nbf", []string{header, u.forge(t, nil, other("nbf", nil), nil)}, 401, "token_malformed"},
				{"no sub", []string{header, u.forge(t, nil, other("sub", nil), nil)}, 401, "token_malformed"},
				{"exp a string", []string{header, u.forge(t, nil, other("exp", "soon"), nil)}, 401, "token_malformed"},
				{"another usher's", []string{header, stranger.admit(t, "premiere", 0, time.Minute)}, 401, "unknown_key"},
				{"no kid", []string{header, u.forge(t, other("kid", nil), nil, nil)}, 401, "unknown_key"},
				{"its own key", []string{header, u.forge(t, other("jwk", json.RawMessage(jwkOf(stranger))), nil, nil)}, 401, "token_malformed"},
			} {
				got := ask(t, url, c.header...)
				if got.status != c.status || got.code() != c.code {
					t.Errorf("%s: %d %q, want %d %q (%v)", c.name, got.status, got.code(), c.status, c.code, got.body)
					continue
				}
				if c.status == 200 {
					if got.body["ticket_id"] != "ticket-1" || got.body["header"] != "ticket-1" || got.body["room"] != "premiere" {
						t.Errorf("%s: the origin serves %v", c.name, got.body)
					}
					continue
				}
				if got.header.Get("Content-Type") != "application/problem+json" || got.header.Get("Cache-Control") != "no-store" ||
					got.header.Get("Location") != "" || got.body["detail"] == nil || got.body["status"] != float64(c.status) {
					t.Errorf("%s: not a whole problem document: %v %v", c.name, got.header, got.body)
				}
				if (c.status == 401) != strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Bearer") {
					t.Errorf("%s: WWW-Authenticate %q", c.name, got.header.Get("WWW-Authenticate"))
				}
			}
			late := ask(t, url, header, u.admit(t, "premiere", 90*time.Second, time.Minute))
			if d := fmt.Sprint(late.body["detail"]); !strings.Contains(d, "clocks") || (!strings.Contains(d, "90s") && !strings.Contains(d, "1m30s") && !strings.Contains(d, "89s") && !strings.Contains(d, "1m29s")) {
				t.Errorf("a clock that is off by 90 s: %q", d)
			}
			if got := ask(t, url, header, good, "X-Usher-Ticket-Id", "victim", "X-Usher-Room", "vip"); got.body["header"] != "ticket-1" {
				t.Errorf("a client may speak for usher: %v", got.body)
			}

			// Ten thousand unknown keys, from many at once.
			piece := strings.Split(good, ".")
			var wg sync.WaitGroup
			for worker := range 8 {
				wg.Go(func() {
					for i := range 1250 {
						head := b64(map[string]string{"alg": "EdDSA", "typ": token.Type, "kid": fmt.Sprintf("%d-%d", worker, i)})
						if got := ask(t, url, header, head+"."+piece[1]+"."+piece[2]); got.code() != "unknown_key" {
							t.Errorf("unknown key: %d %v", got.status, got.body)
							return
						}
					}
				})
			}
			wg.Wait()
			if n, most := u.fetches.Load(), 1+int64(time.Since(started)/time.Minute); n > most || n == 0 {
				t.Errorf("%d fetches in %v, want at most %d", n, time.Since(started).Round(time.Second), most)
			}
			if u.leaked.Load() {
				t.Error("a fetch was not a plain GET of the keys, or carried a visitor's secrets")
			}

			u.Close()
			if got := ask(t, url, header, good); got.status != 200 {
				t.Errorf("usher is away: %d %v", got.status, got.body)
			}
		})
	}
}

// swap puts the second token's content under the first one's signature.
func swap(a, b string) string {
	p, q := strings.Split(a, "."), strings.Split(b, ".")
	return p[0] + "." + q[1] + "." + p[2]
}

func jwkOf(u *usher) string {
	var doc struct{ Keys []json.RawMessage }
	if err := json.Unmarshal(u.JWKS(), &doc); err != nil {
		panic(err)
	}
	return string(doc.Keys[0])
}

func TestOriginsWithoutKeys(t *testing.T) {
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			u := startUsher(t)
			u.broken.Store(true)
			started := time.Now()
			url := p.start(t, "premiere", u.jwks())
			good := u.admit(t, "premiere", 0, 5*time.Minute)
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					got := ask(t, url, "X-Usher-Token", good)
					if got.status != http.StatusServiceUnavailable || got.code() != "keys_unavailable" || got.header.Get("Retry-After") == "" {
						t.Errorf("%d %v, Retry-After %q", got.status, got.body, got.header.Get("Retry-After"))
					}
				})
			}
			wg.Wait()
			if got := ask(t, url); got.code() != "token_missing" {
				t.Errorf("without a token: %v", got.body)
			}
			if n, most := u.fetches.Load(), 1+int64(time.Since(started)/time.Minute); n > most {
				t.Errorf("%d fetches, want at most %d", n, most)
			}
		})
	}
}

func TestOriginsKnowTheNextKeyInAdvance(t *testing.T) {
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			u := startUsher(t)
			var ahead atomic.Int64
			dir := t.TempDir() + "/keys"
			k, err := token.Open(dir, token.Clock(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }))
			if err != nil {
				t.Fatal(err)
			}
			u.Keys = k
			before := u.admit(t, "premiere", 0, 5*time.Minute)
			report, err := k.Rotate(time.Now())
			if err != nil {
				t.Fatal(err)
			}
			url := p.start(t, "premiere", u.jwks())
			if got := ask(t, url, "X-Usher-Token", before); got.status != 200 {
				t.Errorf("the old key: %v", got.body)
			}
			ahead.Store(int64(token.Lead + time.Second)) // the next key signs now
			after := u.admit(t, "premiere", 0, 5*time.Minute)
			if token.KeyID(after) != report.KeyID {
				t.Fatal("the next key does not sign")
			}
			u.Close()
			for name, text := range map[string]string{"new": after, "old": before} {
				if got := ask(t, url, "X-Usher-Token", text); got.status != 200 {
					t.Errorf("the %s key, usher being away: %v", name, got.body)
				}
			}
		})
	}
}
