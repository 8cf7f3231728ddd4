package admission_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ushergo/usher/admission"
	"github.com/ushergo/usher/token"
)

// In these tests the clock is a bubble's: time passes only when everybody waits, and at once.

func TestUnknownKeysCauseOneFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsher(t, time.Now)
		h := origin(t, u)
		if w := ask(h, "X-Usher-Token", u.admit(t, "premiere", time.Hour)); w.Code != http.StatusOK {
			t.Fatal(w.Body)
		}
		time.Sleep(2 * time.Minute)
		before := u.fetches.Load()
		stranger := newUsher(t, time.Now)
		piece := strings.Split(stranger.admit(t, "premiere", time.Hour), ".")
		var wg sync.WaitGroup
		for worker := range 50 {
			wg.Go(func() {
				for i := range 200 {
					head := b64(fmt.Sprintf(`{"alg":"EdDSA","typ":"usher-admission+jwt","kid":"%d-%d"}`, worker, i))
					if w := ask(h, "X-Usher-Token", head+"."+piece[1]+"."+piece[2]); w.Code != http.StatusUnauthorized {
						t.Errorf("%d %s", w.Code, w.Body)
					}
				}
			})
		}
		wg.Wait()
		if n := u.fetches.Load() - before; n != 1 {
			t.Errorf("10,000 unknown keys caused %d fetches, want 1", n)
		}
		junk := u.fetches.Load()
		time.Sleep(2 * time.Minute)
		for range 100 {
			ask(h, "X-Usher-Token", "junk")
			ask(h, "X-Usher-Token", "e30.e30.e30")
			ask(h)
		}
		synctest.Wait()
		if n := u.fetches.Load() - junk; n != 0 {
			t.Errorf("junk without a key's name caused %d fetches", n)
		}
	})
}

func TestAtMostOneFetchAMinute(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"usher well":     nil,
		"usher failing":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"usher silent":   func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"usher confused": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u, stranger := newUsher(t, time.Now), newUsher(t, time.Now)
				if answer != nil {
					u.reply(answer)
				}
				var mu sync.Mutex
				var starts []time.Time
				inner := http.RoundTripper(u)
				h := origin(t, u, admission.Client(&http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
					mu.Lock()
					starts = append(starts, time.Now())
					mu.Unlock()
					return inner.RoundTrip(r)
				})}))
				good, bad := u.admit(t, "premiere", 3*time.Hour), stranger.admit(t, "premiere", 3*time.Hour)
				for range 3600 / 7 * 2 {
					ask(h, "X-Usher-Token", good)
					ask(h, "X-Usher-Token", bad)
					time.Sleep(7 * time.Second)
				}
				synctest.Wait()
				if len(starts) < 2 {
					t.Fatalf("%d fetches in two hours", len(starts))
				}
				for i := 1; i < len(starts); i++ {
					if gap := starts[i].Sub(starts[i-1]); gap < time.Minute {
						t.Fatalf("two fetches within %v", gap)
					}
				}
			})
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRotationCutsNobodyOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsher(t, time.Now)
		// One origin has traffic every ten seconds, one hardly any.
		busy, quiet := origin(t, u), origin(t, u)
		type proof struct {
			text string
			ends time.Time
		}
		var proofs []proof
		signers := map[string]bool{}
		start := time.Now()
		rotations := 0
		for time.Since(start) < 3*time.Hour {
			if time.Since(start) > time.Duration(rotations)*45*time.Minute+10*time.Minute {
				if _, err := u.Rotate(time.Now()); err != nil {
					t.Fatal(err)
				}
				rotations++
			}
			text := u.admit(t, "premiere", 20*time.Minute)
			signers[token.KeyID(text)] = true
			proofs = append(proofs, proof{text, time.Now().Add(20 * time.Minute)})
			if time.Until(proofs[0].ends) < 0 {
				proofs = proofs[1:]
			}
			for _, p := range []proof{proofs[0], proofs[len(proofs)/2], proofs[len(proofs)-1]} {
				if w := ask(busy, "X-Usher-Token", p.text); w.Code != http.StatusOK {
					t.Fatalf("after %v: %s", time.Since(start), w.Body)
				}
			}
			if len(proofs)%31 == 0 {
				if w := ask(quiet, "X-Usher-Token", text); w.Code != http.StatusOK {
					t.Fatalf("quiet origin after %v: %s", time.Since(start), w.Body)
				}
			}
			time.Sleep(10 * time.Second)
		}
		if len(signers) != rotations+1 || rotations < 3 {
			t.Errorf("%d rotations, but %d keys signed", rotations, len(signers))
		}
		if n := u.fetches.Load(); n > 2*180 {
			t.Errorf("%d fetches by two origins in three hours", n)
		}
	})
}

func TestEmergencyKeyIsFetchedWhenMet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, next := newUsher(t, time.Now), newUsher(t, time.Now)
		h := origin(t, u)
		ask(h, "X-Usher-Token", u.admit(t, "premiere", time.Minute))
		time.Sleep(61 * time.Second)
		u.reply(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(next.JWKS()) })
		if w := ask(h, "X-Usher-Token", next.admit(t, "premiere", time.Minute)); w.Code != http.StatusOK {
			t.Errorf("keys replaced at once: %s", w.Body)
		}
		if p := refused(t, ask(h, "X-Usher-Token", u.admit(t, "premiere", time.Minute))); p.Code != "unknown_key" {
			t.Errorf("the removed key: %s", p.Code)
		}
	})
}

func TestUsherAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsher(t, time.Now)
		var log bytes.Buffer
		h := origin(t, u, admission.Logger(slog.New(slog.NewTextHandler(&log, nil))))
		good := u.admit(t, "premiere", 10*time.Hour)
		away := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }

		u.reply(away)
		w := ask(h, "X-Usher-Token", good)
		if p := refused(t, w); p.Code != "keys_unavailable" || w.Header().Get("Retry-After") != "60" {
			t.Errorf("no keys yet: %+v, Retry-After %q", p, w.Header().Get("Retry-After"))
		}
		if strings.Contains(w.Body.String(), "usher.test") {
			t.Error("the visitor is told the inner address")
		}
		if !strings.Contains(log.String(), "503") || !strings.Contains(log.String(), "usher.test") {
			t.Errorf("the log does not say what failed: %s", &log)
		}
		time.Sleep(30 * time.Second)
		if w = ask(h, "X-Usher-Token", good); w.Header().Get("Retry-After") != "30" {
			t.Errorf("Retry-After %q, want 30", w.Header().Get("Retry-After"))
		}

		u.answer.Store(nil)
		time.Sleep(30 * time.Second)
		if w := ask(h, "X-Usher-Token", good); w.Code != http.StatusOK {
			t.Fatalf("usher is back: %s", w.Body)
		}

		u.reply(away)
		stranger := newUsher(t, time.Now)
		for range 60 {
			time.Sleep(7 * time.Minute)
			if w := ask(h, "X-Usher-Token", good); w.Code != http.StatusOK {
				t.Fatalf("usher away again, keys at hand: %s", w.Body)
			}
			synctest.Wait()
		}
		// It may have been signed by a key made meanwhile: unknown is not no.
		if p := refused(t, ask(h, "X-Usher-Token", stranger.admit(t, "premiere", time.Minute))); p.Code != "keys_unavailable" {
			t.Errorf("an unknown key while usher is away: %s", p.Code)
		}
	})
}

func TestAnswersThatAreNotKeys(t *testing.T) {
	good := newUsher(t, time.Now)
	for name, answer := range map[string]http.HandlerFunc{
		"page":      func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>sign in</html>") },
		"empty":     func(http.ResponseWriter, *http.Request) {},
		"empty set": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"keys":[]}`) },
		"not found": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404); _, _ = w.Write(good.JWKS()) },
		"elsewhere": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://evil.test/jwks", http.StatusFound)
		},
		"other port": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://usher.test:81/", http.StatusFound)
		},
		"to a scheme": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		},
		"in a circle": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.String(), http.StatusFound) },
		"too long": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(append(bytes.TrimSuffix(good.JWKS(), []byte("}")), `,"x":"`+strings.Repeat("A", 1<<20)+`"}`...))
		},
		"never": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newUsher(t, time.Now)
				var mu sync.Mutex
				var hosts []string
				u.reply(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					hosts = append(hosts, r.URL.Host)
					mu.Unlock()
					answer(w, r)
				})
				h := origin(t, u)
				start := time.Now()
				if p := refused(t, ask(h, "X-Usher-Token", u.admit(t, "premiere", time.Minute))); p.Code != "keys_unavailable" {
					t.Errorf("%+v", p)
				}
				if waited := time.Since(start); waited > 5*time.Second {
					t.Errorf("the visitor waited %v", waited)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, host := range hosts {
					if host != "usher.test" {
						t.Errorf("keys were asked of %s", host)
					}
				}
				if len(hosts) > 4 {
					t.Errorf("%d requests for one fetch", len(hosts))
				}
			})
		})
	}
}

func TestRedirectOnTheSameHost(t *testing.T) {
	u := newUsher(t, time.Now)
	h := origin(t, u)
	u.reply(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/moved" {
			http.Redirect(w, r, "/moved", http.StatusFound)
			return
		}
		_, _ = w.Write(u.JWKS())
	})
	if w := ask(h, "X-Usher-Token", u.admit(t, "premiere", time.Minute)); w.Code != http.StatusOK {
		t.Errorf("%s", w.Body)
	}
}

func TestVisitorWhoLeavesDoesNotStopTheFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsher(t, time.Now)
		u.reply(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(2 * time.Second)
			_, _ = w.Write(u.JWKS())
		})
		h := origin(t, u)
		good := u.admit(t, "premiere", time.Minute)
		left := make(chan struct{})
		go func() {
			defer close(left)
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			ctx, cancel := contextWithTimeout(t, time.Second)
			defer cancel()
			r.Header.Set("X-Usher-Token", good)
			h.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
		}()
		time.Sleep(500 * time.Millisecond)
		if w := ask(h, "X-Usher-Token", good); w.Code != http.StatusOK {
			t.Errorf("who waited: %s", w.Body)
		}
		<-left
		if n := u.fetches.Load(); n != 1 {
			t.Errorf("%d fetches, want 1", n)
		}
	})
}
