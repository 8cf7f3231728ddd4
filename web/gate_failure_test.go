package web_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/web"
)

// breakdowns are ways in which the engine fails.
var breakdowns = map[string]func(*site){
	"refuses": func(s *site) { s.store.spoil(func(*room.Command) error { return room.ErrUnavailable }, nil) },
	"unsure":  func(s *site) { s.store.spoil(nil, func(*room.Command) error { return room.ErrUnknown }) },
	"does not answer": func(s *site) {
		s.store.mu.Lock()
		s.store.stuck = true
		s.store.mu.Unlock()
	},
}

func (s *site) repair() {
	s.store.spoil(nil, nil)
	s.store.mu.Lock()
	s.store.stuck = false
	s.store.mu.Unlock()
}

func TestEngineFails(t *testing.T) {
	for kind, fail := range breakdowns {
		for _, mode := range []string{"closed", "admitted", "open"} {
			t.Run(kind+"/"+mode, func(t *testing.T) {
				var got seen
				c := behind("premiere", 1, newOrigin(t, got.shop))
				c.OnEngineFailure = mode
				c.Session.Idle = room.Duration(4 * time.Second) // of which a quarter passes without asking the engine
				s := build(t, func(o *web.Options) { o.EngineTimeout = 50 * time.Millisecond }, c)
				alice, bob, eve := s.browser(), s.browser(), s.browser()
				isOK(t, alice.open("/"))
				isPage(t, bob.open("/"), 202, "")
				if pass := alice.cookie("usher-premiere.pass"); (pass != "") != (mode == "admitted") {
					t.Fatalf("pass %q", pass)
				}
				if bob.cookie("usher-premiere.pass") != "" {
					t.Fatal("one who waits has a pass")
				}
				fail(s)
				inside, waiting, stranger := alice.open("/"), bob.open("/"), eve.open("/")
				api, sub := bob.fetch("GET", "/api"), s.do("GET", "/style.css", "", "Sec-Fetch-Mode", "no-cors")
				switch mode {
				case "open":
					for _, r := range []reply{inside, waiting, stranger, api, sub} {
						isOK(t, r)
					}
					if in := got.last(t); in.Header.Get("X-Usher-Token") != "" || in.Header.Get("X-Usher-Room") != "premiere" {
						t.Errorf("%v", in.Header)
					}
				case "admitted":
					isOK(t, inside)
					isPage(t, waiting, 503, `"state":"unavailable"`)
					isPage(t, stranger, 503, `"state":"unavailable"`)
					api.is(t, 503, "engine_unavailable")
					sub.is(t, 401, "ticket_missing")
					// A pass is of its ticket and of its room, and of nobody who made one up.
					forged := "usher-premiere.pass=" + alice.cookie("usher-premiere.pass")
					s.do("GET", "/", "", "Cookie", "usher-premiere="+bob.cookie("usher-premiere")+"; "+forged).is(t, 503, "engine_unavailable")
					s.do("GET", "/", "", "Cookie", "usher-premiere="+bob.cookie("usher-premiere")+"; usher-premiere.pass=x.y.z").is(t, 503, "engine_unavailable")
				default:
					// Within a quarter of the idle time nobody asks the engine, so she may still be let through.
					eventually(t, "the admitted are refused", func() bool {
						inside = alice.open("/")
						return inside.status != 200
					})
					isPage(t, inside, 503, `"state":"unavailable"`)
					isPage(t, waiting, 503, `"state":"unavailable"`)
					api.is(t, 503, "engine_unavailable")
					sub.is(t, 401, "ticket_missing")
					if api.header.Get("Retry-After") == "" || inside.header.Get("Retry-After") == "" {
						t.Error("no Retry-After")
					}
				}
				if !strings.Contains(s.log.String(), "the engine does not answer") {
					t.Error("nothing in the log")
				}
				s.repair()
				if mode != "open" {
					eventually(t, "the room works again", func() bool { return bob.open("/").status == 202 || bob.open("/").status == 200 })
				}
			})
		}
	}
}

// The pass is renewed with the admission, and goes with it.
func TestPassFollowsTheSession(t *testing.T) {
	var got seen
	c := behind("premiere", 1, newOrigin(t, got.shop))
	c.OnEngineFailure = "admitted"
	s := build(t, nil, c)
	alice := s.browser()
	r := alice.open("/")
	k := r.cookie("usher-premiere.pass")
	if k == nil || !k.HttpOnly || k.SameSite != http.SameSiteLaxMode || k.Path != "/" || k.MaxAge < 300 || k.MaxAge > 400 {
		t.Fatalf("%+v", k)
	}
	if r := alice.open("/"); len(r.header["Set-Cookie"]) != 0 {
		t.Errorf("set again: %v", r.header["Set-Cookie"])
	}
	if strings.Contains(got.last(t).Header.Get("Cookie"), "pass") {
		t.Error("the origin saw the pass as a cookie")
	}
	s.do("GET", "/", "", "Cookie", "usher-premiere="+alice.cookie("usher-premiere")+"; usher-premiere.pass=old")
	alice.open("/thanks")
	if alice.cookie("usher-premiere.pass") != "" {
		t.Error("the pass outlived the session")
	}
}

// One failed call is one refusal: the next one works. cases/room 21
func TestOneFailedCallIsOneRefusal(t *testing.T) {
	var got seen
	s := build(t, nil, behind("premiere", 1, newOrigin(t, got.shop)))
	alice, bob := s.browser(), s.browser()
	alice.open("/")
	bob.open("/")
	once := true
	s.store.spoil(func(*room.Command) error {
		if once {
			once = false
			return room.ErrUnavailable
		}
		return nil
	}, nil)
	isPage(t, bob.open("/"), 503, "")
	isPage(t, bob.open("/"), 202, "")
	isOK(t, alice.open("/"))
}

// Whether an enter whose answer was lost gave a ticket or not, she is not let in twice, and nothing breaks.
func TestLostAnswerToAnEnter(t *testing.T) {
	var got seen
	s := build(t, nil, behind("premiere", 3, newOrigin(t, got.shop)))
	lose := true
	s.store.spoil(nil, func(cmd *room.Command) error {
		if lose && cmd.Op == room.OpClaim {
			lose = false
			return room.ErrUnknown
		}
		return nil
	})
	alice := s.browser()
	isPage(t, alice.open("/"), 503, "")
	if alice.cookie("usher-premiere") == "" {
		t.Fatal("the ticket she was given is lost")
	}
	isOK(t, alice.open("/"))
	if sum := s.summary("premiere"); sum.LastSeq != 1 || sum.Active != 1 {
		t.Errorf("%+v", sum)
	}
}

// An engine that hangs becomes a clear answer of the API, too: nobody waits for a disk without an end.
func TestAPIWhileTheEngineHangs(t *testing.T) {
	s := build(t, func(o *web.Options) { o.EngineTimeout = 50 * time.Millisecond }, config("premiere", 1))
	_, ticket := s.enter("premiere")
	s.store.mu.Lock()
	s.store.stuck = true
	s.store.mu.Unlock()
	for _, path := range []string{"POST enter", "GET status", "POST presence", "POST claim", "POST renew", "POST leave", "GET events", "GET check"} {
		method, name, _ := strings.Cut(path, " ")
		r := s.do(method, "/v1/rooms/premiere/"+name, "", "Authorization", "Bearer "+ticket)
		r.is(t, 503, "engine_unavailable")
		if r.header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", path)
		}
	}
}
