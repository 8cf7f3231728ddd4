// Package browsertest drives the waiting page in a real Chromium, against a server that behaves as the API does and
// can be told to misbehave.
package browsertest

import (
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/ushergo/usher/internal/nodetest"
	"github.com/ushergo/usher/web/page"
)

// need skips where the browser's tooling is absent.
func need(t *testing.T) {
	t.Helper()
	nodetest.Need(t, true, "playwright-core", "axe-core")
}

// node runs a script whose every line of output is one check.
func node(t *testing.T, limit time.Duration, env []string, args ...string) {
	t.Helper()
	nodetest.Run(t, nodetest.Script{Args: args, Env: env, Limit: limit})
}

// TestEveryState lets axe-core judge every state at 360 and 1440 px, light and dark, in each language: no serious and no
// critical finding, and nothing that scrolls sideways (cases/room 27). USHER_SHOTS=folder takes pictures of all of them.
func TestEveryState(t *testing.T) {
	need(t)
	srv := httptest.NewServer(page.Preview(""))
	defer srv.Close()
	var names []string
	for _, s := range page.Samples(time.Now()) {
		names = append(names, s.Name)
	}
	list, err := json.Marshal(names)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"shots.mjs", srv.URL, os.Getenv("USHER_SHOTS")}
	if f := os.Getenv("USHER_SHOTS_ONLY"); f != "" {
		args = append(args, f)
	}
	node(t, 8*time.Minute, []string{"USHER_SAMPLES=" + string(list), "USHER_LANGS=en,ko,ja"}, args...)
}

// TestBrowser lets a visitor's day happen to the page: see scenarios.mjs, whose names say which case each one is.
func TestBrowser(t *testing.T) {
	need(t)
	ours, err := page.New("")
	if err != nil {
		t.Fatal(err)
	}
	custom, err := page.New("testdata/folder")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{pages: ours, custom: custom, rooms: map[string]*room{}}
	srv := httptest.NewUnstartedServer(f.handler())
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // dropped connections are meant
	srv.Start()
	defer func() { // streams end with their browser; if one does not, Close would wait for ever
		srv.CloseClientConnections()
		srv.Close()
	}()
	args := []string{"scenarios.mjs", srv.URL}
	if f := os.Getenv("USHER_SCENARIO"); f != "" {
		args = append(args, f)
	}
	node(t, 6*time.Minute, nil, args...)
}

// TestWordsTwin: the page's script words things as the server does.
func TestWordsTwin(t *testing.T) {
	need(t)
	node(t, 2*time.Minute, nil, "words.mjs")
}
