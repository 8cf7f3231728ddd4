package adminapi_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ushergo/usher/cmd/usher/internal/adminapi"
	"github.com/ushergo/usher/config"
)

const secret = "the-admin-token-of-a-test"

func client(t *testing.T, base string) *adminapi.Client {
	t.Helper()
	c, err := adminapi.New(base, config.NewSecret(secret), "USHER_ADMIN_TOKEN")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestErrorsSayWhatToDo(t *testing.T) {
	problem := func(status int, body string) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(status)
			io.WriteString(w, body)
		}))
	}
	for _, tc := range []struct {
		status     int
		body, want string
	}{
		{401, `{"code":"unauthorized"}`, "the admin token was refused; it came from USHER_ADMIN_TOKEN"},
		{404, `{"code":"room_not_found","detail":"there is no room x"}`, "there is no room x (room_not_found); usher rooms list shows those there are"},
		{404, `404 page not found`, "is no admin listener of usher; give its address with --admin"},
		{409, `{"code":"conflict","title":"Conflict"}`, "Conflict (conflict)"},
		{200, `<html>hello</html>`, "not what an admin listener of usher answers; is --admin right?"},
		{500, ``, "the server answered 500"},
	} {
		srv := problem(tc.status, tc.body)
		_, err := client(t, srv.URL).Room(context.Background(), "x")
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%d: got %v, want %q", tc.status, err, tc.want)
		}
		if strings.Contains(fmt.Sprint(err), secret) {
			t.Errorf("%d: the token is in the error", tc.status)
		}
		srv.Close()
	}
}

// The visitors' listener is known by its answers, and does not get the token again.
func TestVisitorsListener(t *testing.T) {
	for _, answer := range []struct {
		status int
		body   string
	}{{401, `{"code":"ticket_missing","detail":"no ticket: enter first"}`}, {404, `{"code":"not_found","detail":"the API lives under /v1/"}`}} {
		asked := 0
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked++
			w.WriteHeader(answer.status)
			io.WriteString(w, answer.body)
		}))
		c := client(t, srv.URL)
		for range 3 {
			if _, err := c.Rooms(context.Background()); err == nil || !strings.Contains(err.Error(), srv.URL+" is the visitors' listener") || !strings.Contains(err.Error(), "--admin") {
				t.Errorf("%d: %v", answer.status, err)
			}
		}
		if asked != 1 {
			t.Errorf("%d: asked %d times", answer.status, asked)
		}
		srv.Close()
	}
}

func TestNobodyThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	_, err = client(t, addr).Rooms(context.Background())
	if err == nil || !strings.Contains(err.Error(), "no usher answers at http://"+addr) || !strings.Contains(err.Error(), "--admin") {
		t.Errorf("got %v", err)
	}
}

func TestTokenFollowsNoRedirect(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the redirect was followed, with %q", r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	srv := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	defer srv.Close()
	if _, err := client(t, srv.URL).Rooms(context.Background()); err == nil {
		t.Error("no error")
	}
}

// Somebody else changes the room between our reading and writing.
func TestPatchIsRepeatedOverAnothersChange(t *testing.T) {
	revision, conflicts := 7, 2
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+secret {
			t.Error("no token")
		}
		if r.Method == http.MethodPatch {
			if conflicts > 0 {
				conflicts--
				revision++
			}
			if r.Header.Get("If-Match") != fmt.Sprintf("%q", fmt.Sprint(revision)) {
				w.WriteHeader(http.StatusPreconditionFailed)
				return
			}
			revision++
		}
		w.Header().Set("ETag", fmt.Sprintf("%q", fmt.Sprint(revision)))
		fmt.Fprintf(w, `{"config":{"id":"a","capacity":{"active":8}},"revision":%d,"limit":null}`, revision)
	}))
	defer srv.Close()
	r, err := client(t, srv.URL).Patch(context.Background(), "a", map[string]any{"capacity": map[string]any{"active": 8}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Revision != 10 || r.Config.Capacity.Active != 8 || r.Limit != nil {
		t.Errorf("got %+v", r)
	}
}

func TestBaseForms(t *testing.T) {
	for _, good := range []string{"127.0.0.1:8081", "http://127.0.0.1:8081/", "https://usher.internal"} {
		if _, err := adminapi.New(good, config.Secret{}, ""); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"ftp://x", "http://", "::"} {
		if _, err := adminapi.New(bad, config.Secret{}, ""); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
