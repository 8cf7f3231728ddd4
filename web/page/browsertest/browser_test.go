// Package browsertest drives the waiting page in a real Chromium, against a server that behaves as the API does and
// can be told to misbehave.
package browsertest

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/web/page"
)

// need skips, with the reason, where the browser's tooling is absent; under USHER_TEST_ALL=1 absence is a failure.
func need(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("browser tests are not short")
	}
	lack := func(what string) {
		t.Helper()
		if os.Getenv("USHER_TEST_ALL") == "1" {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	if _, err := exec.LookPath("node"); err != nil {
		lack("node is not installed")
	}
	if _, err := os.Stat(chromium()); err != nil {
		lack("chromium is not installed (apt-get install chromium fonts-noto-cjk), or name it in USHER_CHROMIUM")
	}
	if _, err := os.Stat("node_modules/playwright-core"); err != nil {
		lack("run npm ci in web/page/browsertest")
	}
}

func chromium() string {
	if c := os.Getenv("USHER_CHROMIUM"); c != "" {
		return c
	}
	return "/usr/bin/chromium"
}

// node runs a script whose every line of output is one check, and makes a subtest of each.
func node(t *testing.T, limit time.Duration, env []string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Env = append(cmd.Env, "USHER_CHROMIUM="+chromium())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n := 0
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r struct{ Name, Error, Note string }
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Errorf("%s: %q", args[0], lines.Text())
			continue
		}
		n++
		t.Run(r.Name, func(t *testing.T) {
			if r.Note != "" {
				t.Log(r.Note)
			}
			if r.Error != "" {
				t.Error(r.Error)
			}
		})
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%s: %v\n%s", args[0], err, stderr.String())
	}
	if n == 0 {
		t.Errorf("%s checked nothing", args[0])
	}
}

// TestEveryState takes a picture of every state at 360 and 1440 px, light and dark, in each language, and lets axe-core
// judge them: no serious and no critical finding (cases/room 27). USHER_SHOTS=folder keeps the pictures.
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
	out, langs := os.Getenv("USHER_SHOTS"), "en,ko,ja"
	if out == "" {
		if os.Getenv("USHER_TEST_ALL") != "1" {
			langs = "en" // the whole set takes minutes
		}
		out = filepath.Join(t.TempDir(), "shots")
	}
	args := []string{"shots.mjs", srv.URL, out}
	if f := os.Getenv("USHER_SHOTS_ONLY"); f != "" {
		args = append(args, f)
	}
	node(t, 15*time.Minute, []string{"USHER_SAMPLES=" + string(list), "USHER_LANGS=" + langs}, args...)
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
	defer srv.Close()
	args := []string{"scenarios.mjs", srv.URL}
	if f := os.Getenv("USHER_SCENARIO"); f != "" {
		args = append(args, f)
	}
	node(t, 10*time.Minute, nil, args...)
}

// TestWordsTwin: the page's script words things as the server does.
func TestWordsTwin(t *testing.T) {
	need(t)
	node(t, time.Minute, nil, "words.mjs")
}
