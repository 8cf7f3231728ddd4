package admission_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/admission"
	"github.com/ushergo/usher/token"
)

// usher is as much of the real one as an origin ever meets: keys, and their public half over HTTP.
type usher struct {
	*token.Keys
	fetches atomic.Int64
	answer  atomic.Pointer[http.HandlerFunc] // instead of the keys, when set
	clock   func() time.Time
}

func newUsher(t testing.TB, clock func() time.Time) *usher {
	t.Helper()
	k, err := token.Open(t.TempDir()+"/keys", token.Clock(clock))
	if err != nil {
		t.Fatal(err)
	}
	return &usher{Keys: k, clock: clock}
}

func (u *usher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.fetches.Add(1)
	w.Header().Set("Date", u.clock().UTC().Format(http.TimeFormat))
	if f := u.answer.Load(); f != nil {
		(*f)(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/jwk-set+json")
	_, _ = w.Write(u.JWKS())
}

func (u *usher) reply(f http.HandlerFunc) { u.answer.Store(&f) }

// RoundTrip makes the usher a transport: no network, so that tests can run on a bubble's clock.
func (u *usher) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	done := make(chan struct{})
	go func() { defer close(done); u.ServeHTTP(rec, r) }()
	select {
	case <-done:
		resp := rec.Result()
		resp.Request = r
		return resp, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func (u *usher) admit(t testing.TB, room string, life time.Duration) string {
	t.Helper()
	text, err := u.Sign(token.Admission{Issuer: "https://tickets.test", Room: room, TicketID: "ticket-1", Expires: u.clock().Add(life)})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

const jwksURL = "http://usher.test/.well-known/jwks.json"

// origin is a protected handler that says whom it met.
func origin(t testing.TB, u *usher, opts ...admission.Option) http.Handler {
	t.Helper()
	opts = append([]admission.Option{admission.Client(&http.Client{Transport: u}), admission.Logger(slog.New(slog.DiscardHandler))}, opts...)
	return admission.Require("premiere", jwksURL, opts...)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, ok := admission.FromContext(r.Context())
		if !ok {
			t.Error("no admission in the context")
		}
		_ = json.NewEncoder(w).Encode([]string{a.TicketID, a.Room, r.Header.Get("X-Usher-Ticket-Id"), r.Header.Get("X-Usher-Room")})
	}))
}

func ask(h http.Handler, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/checkout", nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

type problem struct {
	Type, Title, Code, Detail string
	Status                    int
}

func refused(t testing.TB, w *httptest.ResponseRecorder) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("%d %q: %v", w.Code, w.Body, err)
	}
	if w.Header().Get("Content-Type") != "application/problem+json" || w.Header().Get("Cache-Control") != "no-store" ||
		p.Status != w.Code || p.Title == "" || p.Detail == "" {
		t.Errorf("not a whole problem document: %v %+v", w.Header(), p)
	}
	if (w.Code == http.StatusUnauthorized) != (w.Header().Get("WWW-Authenticate") != "") {
		t.Errorf("%d with WWW-Authenticate %q", w.Code, w.Header().Get("WWW-Authenticate"))
	}
	return p
}

func TestWhereTheTokenIsFound(t *testing.T) {
	u := newUsher(t, time.Now)
	good, other := u.admit(t, "premiere", time.Minute), u.admit(t, "matinee", time.Minute)
	plain, cookie := origin(t, u), origin(t, u, admission.Cookie("admission"))
	for name, c := range map[string]struct {
		h      http.Handler
		header []string
		code   string // "" for let in
	}{
		"header":                     {plain, []string{"X-Usher-Token", good}, ""},
		"header in any case":         {plain, []string{"x-usher-token", good}, ""},
		"bearer":                     {plain, []string{"Authorization", "Bearer " + good}, ""},
		"bearer in any case":         {plain, []string{"Authorization", "bearer  " + good}, ""},
		"header before bearer":       {plain, []string{"X-Usher-Token", good, "Authorization", "Bearer " + other}, ""},
		"empty header, then bearer":  {plain, []string{"X-Usher-Token", "", "Authorization", "Bearer " + good}, ""},
		"cookie":                     {cookie, []string{"Cookie", "a=b; admission=" + good}, ""},
		"cookie before bearer":       {cookie, []string{"Cookie", "admission=" + good, "Authorization", "Bearer app-token"}, ""},
		"cookie not asked for":       {plain, []string{"Cookie", "admission=" + good}, "token_missing"},
		"nothing":                    {plain, nil, "token_missing"},
		"other scheme":               {plain, []string{"Authorization", "Basic " + good}, "token_missing"},
		"bearer without token":       {plain, []string{"Authorization", "Bearer "}, "token_missing"},
		"two headers":                {plain, []string{"X-Usher-Token", good, "X-Usher-Token", good}, "token_malformed"},
		"two tokens in one header":   {plain, []string{"X-Usher-Token", good + ", " + good}, "token_malformed"},
		"a bearer token of the app":  {plain, []string{"Authorization", "Bearer app-token"}, "token_malformed"},
		"wrong room":                 {plain, []string{"X-Usher-Token", other}, "wrong_room"},
		"a ticket secret":            {plain, []string{"X-Usher-Token", u.SealTicket(token.Ticket{Room: "premiere"})}, "token_malformed"},
		"huge":                       {plain, []string{"X-Usher-Token", good + strings.Repeat("A", 1<<20)}, "token_malformed"},
		"only the headers of usher":  {plain, []string{"X-Usher-Room", "premiere", "X-Usher-Ticket-Id", "ticket-1"}, "token_missing"},
		"issuer as wished":           {origin(t, u, admission.Issuer("https://tickets.test")), []string{"X-Usher-Token", good}, ""},
		"another issuer":             {origin(t, u, admission.Issuer("https://tickets.test/")), []string{"X-Usher-Token", good}, "wrong_issuer"},
		"issuer checked after truth": {origin(t, u, admission.Issuer("x")), []string{"X-Usher-Token", other}, "wrong_room"},
	} {
		w := ask(c.h, c.header...)
		if c.code == "" {
			if w.Code != http.StatusOK {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
			continue
		}
		if p := refused(t, w); p.Code != c.code {
			t.Errorf("%s: %s, want %s", name, p.Code, c.code)
		}
		if strings.Contains(w.Body.String(), good[20:60]) {
			t.Errorf("%s: the answer quotes the token", name)
		}
	}
}

func TestStatusOfEachCode(t *testing.T) {
	want := map[admission.Code]int{
		admission.TokenMissing: 401, admission.TokenMalformed: 401, admission.WrongAlgorithm: 401, admission.UnknownKey: 401,
		admission.BadSignature: 401, admission.TokenExpired: 401, admission.TokenNotYet: 401, admission.WrongIssuer: 401,
		admission.WrongRoom: 403, admission.KeysUnavailable: 503,
	}
	for code, status := range want {
		w := httptest.NewRecorder()
		(&admission.Refusal{Code: code, Detail: "why"}).ServeHTTP(w, nil)
		if w.Code != status {
			t.Errorf("%s is %d, want %d", code, w.Code, status)
		}
		if p := refused(t, w); p.Code != string(code) {
			t.Errorf("%s says %s", code, p.Code)
		}
	}
}

func TestForgeriesAreNamed(t *testing.T) {
	u := newUsher(t, time.Now)
	h := origin(t, u)
	good := u.admit(t, "premiere", time.Minute)
	piece := strings.Split(good, ".")
	flip := map[bool]string{true: "B", false: "A"}[piece[2][3] == 'A']
	for name, c := range map[string]struct{ text, code string }{
		"alg none":          {"eyJhbGciOiJub25lIiwidHlwIjoidXNoZXItYWRtaXNzaW9uK2p3dCJ9." + piece[1] + ".", "wrong_algorithm"},
		"HS256":             {"eyJhbGciOiJIUzI1NiIsInR5cCI6InVzaGVyLWFkbWlzc2lvbitqd3QifQ." + piece[1] + "." + piece[2], "wrong_algorithm"},
		"signature changed": {piece[0] + "." + piece[1] + "." + piece[2][:3] + flip + piece[2][4:], "bad_signature"},
		"other usher":       {newUsher(t, time.Now).admit(t, "premiere", time.Minute), "unknown_key"},
		"junk":              {"junk", "token_malformed"},
		"junk with dots":    {"a.b.c", "token_malformed"},
	} {
		if p := refused(t, ask(h, "X-Usher-Token", c.text)); p.Code != c.code {
			t.Errorf("%s: %s, want %s", name, p.Code, c.code)
		}
	}
}

func TestClientCannotSpeakForUsher(t *testing.T) { // cases/room 16
	u := newUsher(t, time.Now)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Usher-Token", u.admit(t, "premiere", time.Minute))
	r.Header["X-Usher-Ticket-Id"] = []string{"victim", "ticket-1"}
	r.Header.Set("X-Usher-Room", "vip")
	w := httptest.NewRecorder()
	origin(t, u).ServeHTTP(w, r)
	if got := strings.TrimSpace(w.Body.String()); got != `["ticket-1","premiere","ticket-1","premiere"]` {
		t.Errorf("the handler sees %s", got)
	}
	if r.Header.Get("X-Usher-Room") != "vip" {
		t.Error("the caller's request was changed")
	}
}

func TestRefuseOption(t *testing.T) {
	u := newUsher(t, time.Now)
	h := origin(t, u, admission.Refuse(func(w http.ResponseWriter, r *http.Request, why *admission.Refusal) {
		if why.Code == admission.TokenMissing {
			http.Redirect(w, r, "https://tickets.test/wait/premiere", http.StatusSeeOther)
			return
		}
		why.ServeHTTP(w, r)
	}))
	if w := ask(h); w.Code != http.StatusSeeOther {
		t.Errorf("%d, want the redirect", w.Code)
	}
	if p := refused(t, ask(h, "X-Usher-Token", "junk")); p.Code != "token_malformed" {
		t.Errorf("%+v", p)
	}
}

func TestVerifyWithoutHTTP(t *testing.T) {
	u := newUsher(t, time.Now)
	v, err := admission.New("premiere", jwksURL, admission.Client(&http.Client{Transport: u}))
	if err != nil {
		t.Fatal(err)
	}
	if a, err := v.Verify(t.Context(), u.admit(t, "premiere", time.Minute)); err != nil || a.TicketID != "ticket-1" {
		t.Errorf("%+v, %v", a, err)
	}
	_, err = v.Verify(t.Context(), u.admit(t, "matinee", time.Minute))
	var why *admission.Refusal
	if !errors.As(err, &why) || why.Code != admission.WrongRoom || !errors.Is(err, token.ErrWrongRoom) {
		t.Errorf("%v", err)
	}
}

func TestRequirePanicsOnAMistakeInTheProgram(t *testing.T) {
	for _, c := range [][2]string{
		{"", jwksURL}, {strings.Repeat("r", 65), jwksURL}, {"r", ""}, {"r", "usher:8080/jwks"}, {"r", "/jwks.json"}, {"r", "ftp://x/jwks"}, {"r", "http://"}, {"r", "http://a b/"},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Require(%.10q, %q) did not panic", c[0], c[1])
				}
			}()
			admission.Require(c[0], c[1])
		}()
	}
}

// TestOverTheNetwork runs the default client against a real listener, in parallel.
func TestOverTheNetwork(t *testing.T) {
	u := newUsher(t, time.Now)
	server := httptest.NewServer(u)
	defer server.Close()
	var log bytes.Buffer
	h := admission.Require("premiere", server.URL, admission.Logger(slog.New(slog.NewTextHandler(&log, nil))))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "in") }))
	good := u.admit(t, "premiere", time.Minute)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if w := ask(h, "X-Usher-Token", good); w.Code != http.StatusOK {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
	wg.Wait()
	if n := u.fetches.Load(); n != 1 {
		t.Errorf("%d fetches, want 1", n)
	}
	if log.Len() > 0 {
		t.Errorf("logged %s", &log)
	}
}
