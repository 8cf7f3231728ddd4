package demo

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Screen shows frames on a terminal, in its alternate screen, with the cursor
// hidden. It is not safe for concurrent use.
type Screen struct {
	w             io.Writer
	size          func() (width, height int)
	look          Look
	shown         []string
	width, height int
}

// IsTerminal tells whether f is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// NewScreen takes over a terminal; Close gives it back. It returns nil, false
// where f is no terminal, or one that cannot place its cursor.
func NewScreen(f *os.File, getenv func(string) string) (*Screen, bool) {
	if !IsTerminal(f) || getenv("TERM") == "dumb" {
		return nil, false
	}
	s := newScreen(f, func() (int, int) {
		w, h, err := term.GetSize(int(f.Fd()))
		if err != nil || w <= 0 || h <= 0 {
			return 80, 24
		}
		return w, h
	}, LookFor(getenv))
	return s, true
}

// LookFor reads NO_COLOR and the locale.
func LookFor(getenv func(string) string) Look {
	locale := getenv("LC_ALL")
	if locale == "" {
		locale = getenv("LC_CTYPE")
	}
	if locale == "" {
		locale = getenv("LANG")
	}
	locale = strings.ToLower(locale)
	// Without any locale (as in a bare container) terminals speak UTF-8 today; one
	// that is set to something else means it.
	return Look{Color: getenv("NO_COLOR") == "", ASCII: locale == "c" || locale == "posix" ||
		(locale != "" && strings.Contains(locale, ".") && !strings.Contains(locale, "utf"))}
}

func newScreen(w io.Writer, size func() (int, int), look Look) *Screen {
	s := &Screen{w: w, size: size, look: look}
	io.WriteString(w, "\x1b[?1049h\x1b[?25l\x1b[2J")
	return s
}

// Show draws the state: only lines that changed, in one write, so that nothing
// flickers. It asks for the size each time, so that a resized window is filled.
func (s *Screen) Show(st State) error {
	width, height := s.size()
	var b strings.Builder
	if width != s.width || height != s.height {
		s.width, s.height, s.shown = width, height, nil
		b.WriteString("\x1b[2J")
	}
	lines := Render(st, width, height, s.look)
	for i := range max(len(lines), len(s.shown)) {
		now, was := "", ""
		if i < len(lines) {
			now = lines[i]
		}
		if i < len(s.shown) {
			was = s.shown[i]
		}
		if now != was {
			fmt.Fprintf(&b, "\x1b[%d;1H\x1b[2K%s", i+1, now)
		}
	}
	s.shown = lines
	if b.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(s.w, b.String())
	return err
}

// Close gives the terminal back as it was.
func (s *Screen) Close() error {
	_, err := io.WriteString(s.w, "\x1b[0m\x1b[?25h\x1b[?1049l")
	return err
}
