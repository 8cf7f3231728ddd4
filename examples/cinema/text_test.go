package cinema

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every text in both languages with the same verbs, every key that a template
// uses in the table, and no key that nobody uses.
func TestTexts(t *testing.T) {
	verbs := regexp.MustCompile(`%[a-z]`)
	for key, in := range texts {
		if in["en"] == "" || in["ko"] == "" || len(in) != 2 {
			t.Errorf("%s: %v", key, in)
		}
		if a, b := strings.Join(verbs.FindAllString(in["en"], -1), ""), strings.Join(verbs.FindAllString(in["ko"], -1), ""); a != b {
			t.Errorf("%s: verbs %s and %s", key, a, b)
		}
	}
	var all strings.Builder
	files, err := pageFiles.ReadDir("page")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := pageFiles.ReadFile("page/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	for _, m := range regexp.MustCompile(`\.T "([a-z.]+)"`).FindAllStringSubmatch(all.String(), -1) {
		if texts[m[1]] == nil {
			t.Errorf("a template uses %q, which is no text", m[1])
		}
	}
	for _, name := range []string{"handle.go", "render.go"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	for key := range texts {
		if !strings.Contains(all.String(), `"`+key+`"`) && !strings.HasPrefix(key, "title.") {
			t.Errorf("nobody uses %q", key)
		}
	}
}
