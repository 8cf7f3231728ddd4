package page

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDocs: docs/page.md tells of every text, colour and state that there is.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../../docs/page.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	p, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range sorted(p.texts["en"]) {
		row := "| `" + key + "` | " + p.texts["en"][key]
		if key == "room_name" {
			row = "| `room_name` |"
		}
		if !strings.Contains(doc, row) {
			t.Errorf("lacks: %s", row)
		}
	}
	css, err := assets.ReadFile("assets/style.css")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range regexp.MustCompile(`--usher-[a-z0-9-]+`).FindAllString(string(css), -1) {
		if !strings.Contains(doc, "`"+v+"`") {
			t.Errorf("lacks the colour %s", v)
		}
	}
	for _, s := range States() {
		if !strings.Contains(doc, "`"+s+"`") {
			t.Errorf("lacks the state %s", s)
		}
	}
}
