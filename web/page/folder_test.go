package page_test

import (
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ushergo/usher/web/page"
)

func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFolder(t *testing.T) {
	p, err := page.New("browsertest/testdata/folder")
	if err != nil {
		t.Fatal(err)
	}
	s := render(t, p, page.State{Room: "x", Lang: "de", View: page.View{State: page.Waiting, Place: ptr(int64(3))}})
	for _, want := range []string{`<html lang="de">`, "Sie stehen in der Schlange", "You will not lose your place", "--usher-accent: #b00020", "data:image/svg&#43;xml;base64,"} {
		if !strings.Contains(s, want) {
			t.Errorf("lacks %q", want)
		}
	}
	s = render(t, p, page.State{Room: "x", Lang: "en", View: page.View{State: page.Waiting}})
	if !strings.Contains(s, "<title>In line · Kino Premiere</title>") || !strings.Contains(s, "Please take a seat") {
		t.Error("texts were not laid over ours")
	}
}

// Every mistake names the file, the line where there is one, and the mend.
func TestFolderMistakes(t *testing.T) {
	whole := `{{template "usher/head" .}}{{template "usher/card" .}}{{template "usher/script" .}}`
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"unknown text":       {map[string]string{"text.json": "{\n \"en\": {\n  \"waiting.headline\": \"x\"\n }\n}"}, []string{"text.json: line 3", "waiting.headline", "known are", "waiting.heading"}},
		"unknown text alone": {map[string]string{"text.json": `{"en": {"foo": "x"}}`}, []string{"text.json: line 1", "known are", "leave.button"}},
		"broken JSON":        {map[string]string{"text.json": "{\n\"en\": {\n\"room_name\": \"x\",\n}\n}"}, []string{"text.json: line 4"}},
		"wrong kind":         {map[string]string{"text.json": "{\n\"en\": {\"room_name\": 7}}"}, []string{"text.json: line 2", "a number where a text belongs"}},
		"not nested":         {map[string]string{"text.json": `{"room_name": "x"}`}, []string{"text.json: line 1", `{"en": {`}},
		"two objects":        {map[string]string{"text.json": "{}\n{}"}, []string{"text.json: line 2", "one object"}},
		"language":           {map[string]string{"text.json": `{"english": {}}`}, []string{"english", "language tag"}},
		"placeholder":        {map[string]string{"text.json": `{"en": {"waiting.title": "{position} there"}}`}, []string{"line 1", "{position}", "{place}", "{name}"}},
		"template syntax":    {map[string]string{"page.html": "<html>\n{{if .Place}}\n</html>"}, []string{"page.html: line 3", "docs/page.md"}},
		"template field":     {map[string]string{"page.html": whole + "\n\n{{.Plaze}}"}, []string{"page.html: line 3", "Plaze"}},
		"template function":  {map[string]string{"page.html": whole + "\n{{env \"HOME\"}}"}, []string{"page.html: line 2", "env"}},
		"no script":          {map[string]string{"page.html": `<b data-usher="place">{{.Place}}</b>`}, []string{"usher/script"}},
		"no place":           {map[string]string{"page.html": `{{template "usher/script" .}}`}, []string{`data-usher="place"`}},
		"style end":          {map[string]string{"style.css": "a{}\n</STYLE><script>"}, []string{"style.css: line 2"}},
		"remote style":       {map[string]string{"style.css": "a{}\nb{background: URL( 'https://cdn.test/x.png')}"}, []string{"style.css: line 2", "data:"}},
		"import":             {map[string]string{"style.css": "@import 'x.css';"}, []string{"style.css: line 1"}},
		"logo kind":          {map[string]string{"logo.png": "<svg></svg>"}, []string{"logo.png", "no png image"}},
		"logo size":          {map[string]string{"logo.svg": "<svg>" + strings.Repeat(" ", 300<<10)}, []string{"logo.svg", "256 KiB"}},
		"two logos":          {map[string]string{"logo.svg": "<svg></svg>", "logo.png": "\x89PNG\r\n\x1a\n"}, []string{"logo.svg", "keep one"}},
		"unknown file":       {map[string]string{"styles.css": ""}, []string{"styles.css", "style.css"}},
		"huge file":          {map[string]string{"style.css": strings.Repeat("a", 2<<20)}, []string{"style.css", "1024 KiB"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := page.New(folder(t, c.files))
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
		})
	}
	if _, err := page.New(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "page.dir") {
		t.Errorf("a folder that is not there: %v", err)
	}
	if _, err := page.New(folder(t, map[string]string{"README.md": "x", ".DS_Store": "x", "style.css~": "x"})); err != nil {
		t.Errorf("what an editor leaves behind: %v", err)
	}
}

// All mistakes are told at once, one error each.
func TestFolderTellsAllMistakes(t *testing.T) {
	_, err := page.New(folder(t, map[string]string{
		"text.json": "{\n\"en\": {\"foo\": \"x\",\n\"waiting.title\": \"{position}\"},\n\"english\": {}\n}",
		"style.css": "@import 'x.css';\nb{background: url(//cdn.test/x.png)}",
		"page.html": `{{template "usher/script" .}}{{.Plaze}}`,
		"logo.png":  "<svg></svg>",
		"notes.txt": "",
	}))
	faults := page.Faults(err)
	want := []string{"logo.png: ", "notes.txt: not known", "style.css: line 1", "style.css: line 2", "text.json: line 2", "text.json: line 3", "text.json: line 4", "Plaze"}
	if len(faults) != len(want) {
		t.Fatalf("%d faults, want %d:\n%v", len(faults), len(want), err)
	}
	for i, w := range want {
		if !strings.Contains(faults[i].Error(), w) {
			t.Errorf("fault %d: %v; want %q", i, faults[i], w)
		}
	}
}

// A preview survives a mistake, shows it, and shows the page again once it is mended.
func TestPreviewFollowsTheFolder(t *testing.T) {
	dir := folder(t, map[string]string{"text.json": `{"en": {"nonsense": ""}}`})
	h := page.Preview(dir)
	get := func(path string) string {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Body.String()
	}
	before := get("/-/version")
	if s := get("/waiting"); !strings.Contains(s, "text.json: line 1") {
		t.Error("the mistake is not shown")
	}
	if err := os.WriteFile(filepath.Join(dir, "text.json"), []byte(`{"en": {"waiting.heading": "Mended"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := get("/waiting"); !strings.Contains(s, "Mended") {
		t.Error("the mended page is not shown")
	}
	if get("/-/version") == before {
		t.Error("the version stood still")
	}
}

func TestNewRejectsNothingOfOurs(t *testing.T) {
	p := ours(t)
	if got := p.Languages(); len(got) != 3 {
		t.Errorf("%v", got)
	}
	var b bytes.Buffer
	if err := p.Render(&b, page.State{}); err != nil || b.Len() == 0 {
		t.Error("a state with nothing in it must still give a page", err)
	}
}
