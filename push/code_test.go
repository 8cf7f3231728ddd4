package push_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ushergo/usher/push"
)

// The table of close codes in docs/push.md says what the code does: every code once, and whether to come back.
func TestDocumentedCodes(t *testing.T) {
	doc, err := os.ReadFile("../docs/push.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(doc), "### Close codes")
	if !ok {
		t.Fatal("docs/push.md has no close codes")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	said := map[push.Code]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([0-9, ]+) \|[^|]*\|([^|]*)\|$`).FindAllStringSubmatch(table, -1) {
		for _, text := range strings.Split(row[1], ",") {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				t.Fatal(err)
			}
			said[push.Code(n)] = strings.TrimSpace(row[2])
		}
	}
	for n := range push.Code(5000) {
		text, there := said[n]
		if known := n.String() != "closed"; known != there {
			t.Errorf("%d (%s): in the docs %v, in the code %v", n, n, there, known)
		}
		if there && (n >= 4500) != (text == "no") {
			t.Errorf("%d: come back? The docs say %q", n, text)
		}
	}
}
