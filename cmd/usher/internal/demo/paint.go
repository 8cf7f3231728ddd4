package demo

import (
	"strings"
	"unicode"
)

type dress int

const (
	plain dress = iota
	dim
	title
	good
	warn
	bad
	link
)

// The sixteen colours alone, which every theme makes readable on its own ground.
var codes = [...]string{plain: "", dim: "2", title: "1", good: "1;32", warn: "1;33", bad: "1;31", link: "4;36"}

// Without colour, weight still tells things apart.
var codesBare = [...]string{plain: "", dim: "", title: "1", good: "1", warn: "1", bad: "7", link: "4"}

type span struct {
	text  string
	dress dress
}

// row is one line before it is cut. All text is of single-width characters.
type row []span

// text cuts the row to width and dresses it. Control characters, which an error
// text might hold, never reach the terminal.
func (r row) text(width int, look Look) string {
	var b strings.Builder
	for _, s := range r {
		if width <= 0 {
			break
		}
		runes := []rune(strings.Map(func(c rune) rune {
			if unicode.IsControl(c) {
				return ' '
			}
			if look.ASCII && c > 126 {
				return asciiFor(c)
			}
			return c
		}, s.text))
		runes = runes[:min(len(runes), width)]
		width -= len(runes)
		code := codesBare[s.dress]
		if look.Color {
			code = codes[s.dress]
		}
		if code == "" || len(runes) == 0 {
			b.WriteString(string(runes))
			continue
		}
		b.WriteString("\x1b[" + code + "m" + string(runes) + "\x1b[0m")
	}
	return b.String()
}

func asciiFor(c rune) rune {
	if c == '·' {
		return ','
	}
	return '?'
}

func pad(s string, width int) string {
	if n := width - len([]rune(s)); n > 0 {
		return s + strings.Repeat(" ", n)
	}
	return s
}

// Each digit is three columns of five squares; bit 2 is the left one.
var glyphs = map[rune][5]uint8{
	'0': {7, 5, 5, 5, 7}, '1': {2, 6, 2, 2, 7}, '2': {7, 1, 7, 4, 7}, '3': {7, 1, 3, 1, 7}, '4': {5, 5, 7, 1, 1},
	'5': {7, 4, 7, 1, 7}, '6': {7, 4, 7, 5, 7}, '7': {7, 1, 1, 2, 2}, '8': {7, 5, 7, 5, 7}, '9': {7, 5, 7, 1, 7},
	'/': {1, 1, 2, 4, 4},
}

// bigDigits writes a number three lines high, two squares to a character.
func bigDigits(s string) [3]string {
	var out [3]string
	for i, c := range s {
		g := glyphs[c]
		for line := range out {
			if i > 0 {
				out[line] += " "
			}
			upper, lower := g[2*line], uint8(0)
			if 2*line+1 < len(g) {
				lower = g[2*line+1]
			}
			for bit := 2; bit >= 0; bit-- {
				out[line] += [...]string{" ", "▀", "▄", "█"}[upper>>bit&1|lower>>bit&1<<1]
			}
		}
	}
	return out
}

// spark draws the last values, highest full, zero lowest.
func spark(values []int, width int, ascii bool) string {
	marks := []rune("▁▂▃▄▅▆▇█")
	if ascii {
		marks = []rune("_.-=+*%#")
	}
	if len(values) > width {
		values = values[len(values)-width:]
	}
	top := 1
	for _, v := range values {
		top = max(top, v)
	}
	var b strings.Builder
	for _, v := range values {
		b.WriteRune(marks[max(0, v)*(len(marks)-1)/top])
	}
	return b.String()
}
