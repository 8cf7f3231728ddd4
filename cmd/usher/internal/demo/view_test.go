package demo

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ushergo/usher/internal/crowd"
)

func sample() State {
	at := time.Date(2026, 3, 1, 20, 15, 0, 0, time.UTC)
	s := State{Elapsed: 83 * time.Second, Room: "premiere", Look: "http://127.0.0.1:8080/premiere", Site: "http://127.0.0.1:41231",
		Admin: "http://127.0.0.1:8081", TokenFile: "usher-demo-1/admin-token",
		Counts: Counts{State: "open", Waiting: 283, Active: 20, Limit: 20, Entered: 402, Admitted: 119, Claimed: 115, Left: 96, Abandoned: 4, NoShow: 2},
		Rate:   236, ETA: 72 * time.Second, Booked: 91, SeatsLeft: 269}
	for i := range 100 {
		s.History = append(s.History, i*3)
	}
	for i := range 30 {
		s.Events = append(s.Events, Line{At: at, Text: fmt.Sprintf("#%d patient booked seat F%d", 100+i, i)})
	}
	s.Crowd.ByTemper[crowd.Refresher].Here = 36
	s.Crowd.Requests = 8123
	return s
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;?]*[a-zA-Z]")

func TestViewFitsEveryWindow(t *testing.T) {
	s := sample()
	s.Trouble = "the admin API: " + strings.Repeat("long ", 40) + "\x1b[2J\n"
	s.Notes = []string{"port 8080 is taken, so this uses 8081"}
	for _, look := range []Look{{}, {Color: true}, {ASCII: true}} {
		for width := 1; width <= 220; width += 7 {
			for height := 1; height <= 60; height += 3 {
				lines := Render(s, width, height, look)
				if len(lines) > height {
					t.Fatalf("%d×%d: %d lines", width, height, len(lines))
				}
				for _, l := range lines {
					bare := escapes.ReplaceAllString(l, "")
					if n := utf8.RuneCountInString(bare); n > width {
						t.Fatalf("%d×%d: %d columns: %q", width, height, n, bare)
					}
					if strings.ContainsAny(bare, "\x1b\r\n\t") {
						t.Fatalf("control characters reach the terminal: %q", l)
					}
					if look.ASCII && len(bare) != utf8.RuneCountInString(bare) {
						t.Fatalf("not ASCII: %q", bare)
					}
					if !look.Color && regexp.MustCompile("\x1b\\[[0-9;]*3[0-9]m").MatchString(l) {
						t.Fatalf("colour without colour: %q", l)
					}
				}
			}
		}
	}
}

func TestViewShowsWhatMatters(t *testing.T) {
	big := strings.Join(Render(sample(), 100, 40, Look{}), "\n")
	for _, want := range []string{"WAITING", "INSIDE", "ADMITTED", "SEATS SOLD", "http://127.0.0.1:8080/premiere", "http://127.0.0.1:41231",
		"http://127.0.0.1:8081/ ", "admin-token", "236", "70 s", "36 refresher", "no place lost", "2 no-shows", "4 vanished", "#129 patient"} {
		if !strings.Contains(escapes.ReplaceAllString(big, ""), want) {
			t.Errorf("no %q in\n%s", want, big)
		}
	}
	// The usual window cuts nothing.
	s := sample()
	s.TokenFile = "/tmp/usher-demo-1234567890/admin-token"
	s.Notes = []string{"port 8080 is taken, so this uses 8082 (or choose by --admin-listen)"}
	s.Counts.Entered, s.Counts.Claimed, s.Counts.Left, s.Counts.Abandoned, s.Crowd.Requests = 14020, 11520, 9670, 1234, 812345
	cut, whole := Render(s, 80, 24, Look{}), Render(s, 300, 24, Look{})
	strip := func(lines []string) string {
		text := strings.NewReplacer("·", "").Replace(escapes.ReplaceAllString(strings.Join(lines, " "), ""))
		return strings.Join(strings.Fields(regexp.MustCompile(`[▁▂▃▄▅▆▇█░]|\d\d:\d\d:\d\d.*`).ReplaceAllString(text, "")), " ")
	}
	if strip(cut) != strip(whole) {
		t.Errorf("cut at 80×24:\n%s\n%s", strip(cut), strip(whole))
	}
	for _, l := range cut {
		if bare := strings.TrimRight(escapes.ReplaceAllString(l, ""), " "); strings.HasSuffix(bare, "·") {
			t.Errorf("a separator without what it separates: %q", bare)
		}
	}
	// A low window keeps the figures and the address, and drops the rest.
	low := escapes.ReplaceAllString(strings.Join(Render(sample(), 80, 12, Look{}), "\n"), "")
	if !strings.Contains(low, "WAITING") || !strings.Contains(low, "8080/premiere") || strings.Contains(low, "refresher") {
		t.Errorf("twelve lines:\n%s", low)
	}
	// A narrow one writes the figures in small.
	narrow := escapes.ReplaceAllString(strings.Join(Render(sample(), 44, 30, Look{}), "\n"), "")
	if !strings.Contains(narrow, "waiting 283") {
		t.Errorf("44 columns:\n%s", narrow)
	}
	bad := sample()
	bad.Crowd.Violation.LostPlace = 2
	if out := strings.Join(Render(bad, 100, 40, Look{}), "\n"); !strings.Contains(out, "2 violations") || strings.Contains(out, "no place lost") {
		t.Errorf("a violation is hidden:\n%s", out)
	}
}

func TestBigDigits(t *testing.T) {
	got := bigDigits("205/7")
	want := [3]string{
		"▀▀█ █▀█ █▀▀   █ ▀▀█",
		"█▀▀ █ █ ▀▀█ ▄▀   ▄▀",
		"▀▀▀ ▀▀▀ ▀▀▀ ▀    ▀ ",
	}
	for i := range got {
		if utf8.RuneCountInString(got[i]) != 19 {
			t.Errorf("line %d is %d wide", i, utf8.RuneCountInString(got[i]))
		}
	}
	if got != want {
		t.Errorf("\n%s\nwant\n%s", strings.Join(got[:], "\n"), strings.Join(want[:], "\n"))
	}
}

func TestPlainLineIsOneLine(t *testing.T) {
	want := "01:23  waiting 283  inside 20/20  entered 402  admitted 119  left 96  abandoned 4  no-shows 2  sold 91  rate 236/min  eta 70 s  violations 0"
	if got := PlainLine(sample()); got != want {
		t.Errorf("\n%s\n%s", got, want)
	}
}

func TestScreenRedrawsOnlyWhatChanged(t *testing.T) {
	var out bytes.Buffer
	width, height := 100, 30
	s := newScreen(&out, func() (int, int) { return width, height }, Look{})
	st := sample()
	show := func() string {
		t.Helper()
		out.Reset()
		if err := s.Show(st); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if first := show(); !strings.HasPrefix(first, "\x1b[2J") {
		t.Errorf("the first frame does not clear: %.40q", first)
	}
	if again := show(); again != "" {
		t.Errorf("an unchanged state was drawn: %q", again)
	}
	st.Elapsed += time.Second
	if next := show(); strings.Count(next, "\x1b[2K") != 1 || strings.Contains(next, "\x1b[2J") || !strings.Contains(next, "01:24") {
		t.Errorf("a second later: %q", next)
	}
	width, height = 60, 10
	if resized := show(); !strings.HasPrefix(resized, "\x1b[2J") {
		t.Errorf("resized: %.40q", resized)
	}
	out.Reset()
	s.Close()
	if got := out.String(); !strings.Contains(got, "\x1b[?25h") || !strings.Contains(got, "\x1b[?1049l") {
		t.Errorf("the terminal is not given back: %q", got)
	}
}

func TestLookFor(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want Look
	}{
		{map[string]string{"LANG": "ko_KR.UTF-8"}, Look{Color: true}},
		{map[string]string{"LANG": "en_US.UTF-8", "NO_COLOR": "1"}, Look{}},
		{map[string]string{"LANG": "en_US.UTF-8", "LC_ALL": "C"}, Look{Color: true, ASCII: true}},
		{map[string]string{"LANG": "ko_KR.eucKR"}, Look{Color: true, ASCII: true}},
		{map[string]string{"LC_ALL": "C.utf8"}, Look{Color: true}},
		{map[string]string{}, Look{Color: true}},
	} {
		if got := LookFor(func(k string) string { return c.env[k] }); got != c.want {
			t.Errorf("%v: %+v", c.env, got)
		}
	}
}

func TestMeter(t *testing.T) {
	var m meter
	if m.rate() >= 0 || m.eta() >= 0 {
		t.Error("a rate without a basis")
	}
	m.add(0, 0)
	for range 10 {
		m.add(0, 1000) // the house fills
	}
	if m.rate() >= 0 {
		t.Errorf("a rate of %v before there is a line", m.rate())
	}
	for i := range 1000 {
		m.add(280, i*4)
	}
	if m.rate() != 240 || m.eta() != 70*time.Second || len(m.waiting) != keepSeconds {
		t.Errorf("rate %v, eta %v, %d kept", m.rate(), m.eta(), len(m.waiting))
	}
	for range rateWindow + 1 {
		m.add(280, 4000)
	}
	if m.rate() != 0 || m.eta() >= 0 {
		t.Errorf("nobody admitted: rate %v, eta %v", m.rate(), m.eta())
	}
}
