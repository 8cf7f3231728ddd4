package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// usher runs a command line in this process.
func usher(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// quiet takes the variables away that a developer's shell may have set.
func quiet(t *testing.T) {
	t.Helper()
	for _, v := range []string{"USHER_ADMIN_TOKEN", "USHER_ADMIN_URL", "USHER_SERVICE_TOKENS", "USHER_KEYS"} {
		t.Setenv(v, "")
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Every command teaches: it says what it is for and shows how it is written.
func TestEveryHelpHasExamples(t *testing.T) {
	for _, args := range [][]string{
		{}, {"serve"}, {"demo"}, {"bench"}, {"validate"}, {"version"},
		{"rooms"}, {"rooms", "list"}, {"rooms", "show"}, {"rooms", "set"}, {"rooms", "watch"}, {"rooms", "pause"}, {"rooms", "open"}, {"rooms", "close"},
		{"keys"}, {"keys", "list"}, {"keys", "rotate"}, {"keys", "export"}, {"page"}, {"page", "preview"}, {"redis"}, {"redis", "check"}, {"redis", "clean"},
	} {
		code, out, _ := usher(append(args, "--help")...)
		name := "usher " + strings.Join(args, " ")
		if code != 0 || !strings.Contains(out, "Examples:") || !strings.Contains(out, strings.TrimSpace(name)) {
			t.Errorf("%s --help: %d\n%s", name, code, out)
		}
	}
}

func TestMistakesOnTheCommandLine(t *testing.T) {
	quiet(t)
	t.Setenv("USHER_ADMIN_TOKEN", "")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"srve"}, `unknown command "usher srve"; did you mean "serve"?`},
		{[]string{"rooms", "pauze"}, `did you mean "pause"?`},
		{[]string{"serve"}, "what should usher stand in front of? Give --origin and --active, or --config with a file"},
		{[]string{"serve", "--active", "5"}, "--origin is missing"},
		{[]string{"serve", "--origin", "http://x"}, "--active is missing"},
		{[]string{"serve", "--config", "x.yaml", "--active", "5"}, "--active and --config together"},
		{[]string{"serve", "--acttive", "5"}, "unknown flag: --acttive"},
		{[]string{"rooms", "pause"}, "usher rooms pause needs the id of a room"},
		{[]string{"rooms", "set", "a", "actve=5"}, `actve: unknown key; did you mean "active"?`},
		{[]string{"rooms", "set", "a", "foo=1"}, "foo: unknown key; there are origin, active, "},
		{[]string{"validate"}, "needs the path of a configuration file"},
		{[]string{"relay", "--from", "usher://127.0.0.1:1/a", "--to", "-"}, "its admin token is missing; set USHER_ADMIN_TOKEN"},
	} {
		code, _, stderr := usher(tc.args...)
		if code != 2 || !strings.Contains(stderr, tc.want) || !strings.Contains(stderr, "--help") {
			t.Errorf("usher %s: %d %s", strings.Join(tc.args, " "), code, stderr)
		}
	}
	if code, _, stderr := usher("serve", "--origin", "localhost:9000", "--active", "5", "--log-format", "text"); code != 1 || !strings.Contains(stderr, "has no scheme; write http://localhost:9000") {
		t.Errorf("%d %s", code, stderr)
	}
	// In a JSON log the last words are JSON too.
	if code, _, stderr := usher("serve", "--origin", "localhost:9000", "--active", "5"); code != 1 || !jsonLines(stderr) ||
		!strings.Contains(stderr, `"key":"--origin"`) || !strings.Contains(stderr, `"mend":"write http://localhost:9000"`) {
		t.Errorf("%d %s", code, stderr)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen", "127.0.0.1:28080", "--admin-listen", "127.0.0.1:28080"}, "--admin-listen: "},
		{[]string{"--listen", "8080"}, "--listen: "},
		{[]string{"--rate", "-5"}, "--rate: "},
		{[]string{"--room", "A B"}, "--room: "},
		{[]string{"--url", "x"}, "--url: "},
	} {
		code, _, stderr := usher(append([]string{"serve", "--log-format", "text", "--origin", "http://127.0.0.1:9", "--active", "5"}, tc.args...)...)
		if code != 1 || !strings.Contains(stderr, tc.want) || strings.Contains(stderr, "rooms[0]") || strings.Contains(stderr, ".listen") {
			t.Errorf("%v: %d %s", tc.args, code, stderr)
		}
	}
	broken := write(t, "broken.yaml", "rooms:\n\t- id: a\n")
	if code, _, stderr := usher("serve", "--config", broken); code != 1 || !jsonLines(stderr) ||
		!strings.Contains(stderr, broken+`:2:1"`) || strings.Contains(stderr, `"key"`) {
		t.Errorf("%d %s", code, stderr)
	}
	if code, _, stderr := usher("serve", "--config", "/nowhere/usher.yaml"); code != 1 || !jsonLines(stderr) || !strings.Contains(stderr, "there is no file /nowhere/usher.yaml") {
		t.Errorf("%d %s", code, stderr)
	}
	if code, _, stderr := usher("serve", "--config", "/nowhere/usher.yaml", "--log-format", "text"); code != 1 || !strings.Contains(stderr, "there is no file /nowhere/usher.yaml") {
		t.Errorf("%d %s", code, stderr)
	}
}

// jsonLines reports whether text is lines of JSON and nothing else.
func jsonLines(text string) bool {
	for line := range strings.Lines(text) {
		if !json.Valid([]byte(line)) {
			return false
		}
	}
	return text != ""
}

func TestValidate(t *testing.T) {
	quiet(t)
	good := write(t, "usher.yaml", "rooms:\n- {id: a, capacity: {active: 5}}\n")
	if code, out, _ := usher("validate", good); code != 0 || !strings.Contains(out, "good, 1 room") {
		t.Errorf("%d %s", code, out)
	}
	bad := write(t, "bad.yaml", "rooms:\n- {id: a, capacity: {actve: 5}}\nnode: {drain: soon}\n")
	code, out, errs := usher("validate", bad)
	if code != 1 || out != "" || !strings.Contains(errs, bad+":2:22: rooms[0].capacity.actve: unknown key; did you mean \"active\"?") || !strings.Contains(errs, "2 errors") {
		t.Errorf("%d %s%s", code, out, errs)
	}
	pages := t.TempDir()
	if err := os.WriteFile(filepath.Join(pages, "page.html"), []byte("{{.Nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	paged := write(t, "paged.yaml", fmt.Sprintf("rooms:\n- {id: a, capacity: {active: 5}, page: {dir: %s}}\n", pages))
	if code, _, errs := usher("validate", paged); code != 1 || !strings.Contains(errs, paged+":2:46: rooms[0].page.dir: ") || !strings.Contains(errs, "usher page preview "+pages) {
		t.Errorf("a broken page: %d %s", code, errs)
	}
	if err := os.WriteFile(filepath.Join(pages, "notes.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := usher("validate", paged); code != 1 || !strings.Contains(errs, "notes.txt: not known") || !strings.Contains(errs, ": 2 errors") {
		t.Errorf("a page with two mistakes: %d %s", code, errs)
	}
	empty := write(t, "empty.yaml", "")
	if code, out, errs := usher("validate", empty); code != 0 || !strings.Contains(out, "0 rooms, 1 warning") || !strings.Contains(errs, "names no room") {
		t.Errorf("an empty file: %d %s%s", code, out, errs)
	}
	code, out, _ = usher("validate", "--schema")
	var schema map[string]any
	if err := json.Unmarshal([]byte(out), &schema); code != 0 || err != nil || schema["title"] != "usher configuration" {
		t.Errorf("%d %v", code, err)
	}
}

func TestVersion(t *testing.T) {
	if code, out, _ := usher("version"); code != 0 || !strings.HasPrefix(out, "usher ") || !strings.Contains(out, "go1.") {
		t.Errorf("%d %s", code, out)
	}
}

const testToken = "token-of-the-command-line-test"

// fakeAdmin answers as the admin API does, for one room.
func fakeAdmin(t *testing.T) *httptest.Server {
	t.Helper()
	room := map[string]any{
		"config":   map[string]any{"id": "premiere", "capacity": map[string]any{"active": 600}, "session": map[string]any{"idle": "5m"}},
		"revision": 3, "state": "open", "message": "", "active": 300, "waiting": 12000, "limit": 600, "admitted_total": 4711, "rate_per_minute": 120.4,
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /admin/v1/rooms", func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"rooms": []any{room}})
	})
	mux.HandleFunc("GET /admin/v1/rooms/premiere", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"3"`)
		json.NewEncoder(w).Encode(room)
	})
	mux.HandleFunc("PATCH /admin/v1/rooms/premiere", func(w http.ResponseWriter, r *http.Request) {
		var patch map[string]map[string]any
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
			t.Error(err)
		}
		room["config"].(map[string]any)["capacity"] = patch["capacity"]
		room["limit"] = patch["capacity"]["active"]
		room["revision"] = 4
		json.NewEncoder(w).Encode(room)
	})
	mux.HandleFunc("POST /admin/v1/rooms/premiere/state", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var s struct{ State, Message string }
		if err := json.Unmarshal(body, &s); err != nil {
			t.Error(err)
		}
		room["state"], room["message"] = s.State, s.Message
		json.NewEncoder(w).Encode(room)
	})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+testToken {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv
}

func TestRoomsCommands(t *testing.T) {
	quiet(t)
	srv := fakeAdmin(t)
	t.Setenv("USHER_ADMIN_TOKEN", testToken)
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"list"}, []string{"ROOM", "premiere", "open", "300", "600", "12000", "4711", "120"}},
		{[]string{"list", "--json"}, []string{`"admitted_total": 4711`}},
		{[]string{"show", "premiere"}, []string{"active    300 of 600", "settings now, written as in the file:", "id: premiere", "capacity:"}},
		{[]string{"pause", "premiere", "--message", "back soon"}, []string{"premiere is paused"}},
		{[]string{"list"}, []string{"paused", "back soon"}},
		{[]string{"set", "premiere", "active=800"}, []string{"premiere: active=800, revision 4. 300 active of 800, 12000 waiting."}},
		{[]string{"open", "premiere"}, []string{"premiere is open"}},
	} {
		code, out, errs := usher(append(append([]string{"rooms"}, tc.args...), "--admin", srv.URL)...)
		if code != 0 {
			t.Fatalf("rooms %v: %d %s", tc.args, code, errs)
		}
		for _, w := range tc.want {
			if !strings.Contains(out, w) {
				t.Errorf("rooms %v: no %q in\n%s", tc.args, w, out)
			}
		}
	}
	if code, _, errs := usher("rooms", "show", "nosuch", "--admin", srv.URL); code != 1 || !strings.Contains(errs, "is no admin listener") {
		t.Errorf("%d %s", code, errs)
	}
}

// The token is found where it is said to be, in this order: --token-file,
// environment, file, data folder; and the error says where it came from.
func TestWhereTheTokenComesFrom(t *testing.T) {
	quiet(t)
	srv := fakeAdmin(t)
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "admin.token"), []byte(testToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := func(args ...string) (int, string) {
		code, _, errs := usher(append([]string{"rooms", "list", "--admin", srv.URL}, args...)...)
		return code, errs
	}
	if code, errs := list("--data", data); code != 0 {
		t.Errorf("data folder: %s", errs)
	}
	if code, errs := list("--data", t.TempDir()); code != 1 || !strings.Contains(errs, "the admin API asks for a token; set USHER_ADMIN_TOKEN") {
		t.Errorf("no token: %d %s", code, errs)
	}
	wrong := write(t, "wrong", "another-token-that-is-wrong")
	if code, errs := list("--data", data, "--token-file", wrong); code != 1 || !strings.Contains(errs, "was refused; it came from "+wrong) {
		t.Errorf("token file: %d %s", code, errs)
	}
	t.Setenv("USHER_ADMIN_TOKEN", "wrong-token-in-the-environment")
	code, errs := list("--data", data)
	if code != 1 || !strings.Contains(errs, "it came from USHER_ADMIN_TOKEN") || strings.Contains(errs, "wrong-token") {
		t.Errorf("environment: %d %s", code, errs)
	}
	t.Setenv("USHER_ADMIN_TOKEN", "")
	file := write(t, "usher.yaml", fmt.Sprintf("admin: {listen: '%s', token: %s}\n", strings.TrimPrefix(srv.URL, "http://"), testToken))
	if code, _, errs := usher("rooms", "list", "--config", file); code != 0 {
		t.Errorf("configuration file: %s", errs)
	}
}

func TestWatchWritesLines(t *testing.T) {
	quiet(t)
	srv := fakeAdmin(t)
	t.Setenv("USHER_ADMIN_TOKEN", testToken)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pr, pw := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"rooms", "watch", "--json", "--every", "100ms", "--admin", srv.URL}, pw, io.Discard)
		pw.Close()
	}()
	dec := json.NewDecoder(pr)
	for range 3 {
		var line struct {
			Rooms []struct{ Waiting int }
		}
		if err := dec.Decode(&line); err != nil || len(line.Rooms) != 1 || line.Rooms[0].Waiting != 12000 {
			t.Fatalf("%v %+v", err, line)
		}
	}
	cancel()
	go io.Copy(io.Discard, pr)
	if code := <-done; code != 0 {
		t.Errorf("exit %d", code)
	}
}

func TestKeysCommands(t *testing.T) {
	quiet(t)
	data := t.TempDir()
	if code, _, errs := usher("keys", "list", "--data", data); code != 1 || !strings.Contains(errs, "there are no keys in") {
		t.Errorf("%d %s", code, errs)
	}
	if err := os.Mkdir(filepath.Join(data, "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	code, out, errs := usher("keys", "list", "--data", data)
	if code != 0 || !strings.Contains(out, "sign") || !strings.Contains(out, "current") {
		t.Fatalf("%d %s%s", code, out, errs)
	}
	code, out, errs = usher("keys", "rotate", "--data", data)
	if code != 0 || !strings.Contains(out, "published now, signs from") {
		t.Fatalf("%d %s%s", code, out, errs)
	}
	code, text, errs := usher("keys", "export", "--data", data)
	if code != 0 || len(text) < 50 {
		t.Fatalf("%d %s", code, errs)
	}
	code, out, errs = usher("keys", "export", "--public", "--data", data)
	if code != 0 || !strings.Contains(out, `"keys"`) || strings.Contains(out, `"d"`) {
		t.Errorf("%d %s%s", code, out, errs)
	}
	t.Setenv("USHER_KEYS", strings.TrimSpace(text))
	code, next, errs := usher("keys", "rotate")
	if code != 0 || next == "" || !strings.Contains(errs, "signs from") {
		t.Errorf("%d %q %s", code, next, errs)
	}
}
