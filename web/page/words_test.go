package page

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"
)

// The same table is read by browsertest/words.mjs for words.js, the twin in the page.
func TestWords(t *testing.T) {
	p, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("testdata/words.json")
	if err != nil {
		t.Fatal(err)
	}
	var table []struct {
		Say, Lang, Want string
		Args            []int
	}
	if err := json.Unmarshal(b, &table); err != nil {
		t.Fatal(err)
	}
	for _, c := range table {
		words, got := p.texts[c.Lang], ""
		switch c.Say {
		case "eta":
			got = words.eta(c.Args[0], c.Args[1])
		case "number":
			got = number(int64(c.Args[0]))
		case "countdown":
			got = words.countdown(time.Duration(c.Args[0]) * time.Second)
		}
		if got != c.Want {
			t.Errorf("%s %s %v: %q, want %q", c.Say, c.Lang, c.Args, got, c.Want)
		}
	}
}

func TestDurationWords(t *testing.T) {
	p, _ := New("")
	for d, want := range map[time.Duration]string{
		0: "a few minutes", 30 * time.Second: "30 seconds", time.Minute: "one minute", 90 * time.Second: "90 seconds",
		5 * time.Minute: "5 minutes", time.Hour: "one hour", 90 * time.Minute: "90 minutes", 2 * time.Hour: "2 hours",
	} {
		if got := p.texts["en"].duration(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

// TestLanguagesAgree: every language has every text, and none speaks of something that the others do not fill in.
func TestLanguagesAgree(t *testing.T) {
	p, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	placeholders := regexp.MustCompile(`\{[a-z_]+\}`)
	for key, english := range p.texts["en"] {
		want := placeholders.FindAllString(english, -1)
		slices.Sort(want)
		for _, lang := range p.langs {
			s, ok := p.texts[lang][key]
			if !ok || s == "" && key != "room_name" {
				t.Errorf("%s lacks %q", lang, key)
				continue
			}
			got := placeholders.FindAllString(s, -1)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s %q: %v, English has %v", lang, key, got, want)
			}
		}
	}
	for _, lang := range p.langs {
		for key := range p.texts[lang] {
			if _, ok := p.texts["en"][key]; !ok {
				t.Errorf("%s has %q, which English has not", lang, key)
			}
		}
	}
}
