package cinema

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"time"
)

// page is what the templates see.
type page struct {
	Lang     string
	CSS      template.CSS
	Inside   int
	Films    []film
	Film     film
	Showings []showing
	Hidden   int
	Showing  showing
	Rows     []hallRow
	Seat     string
	Notice   string
	Minutes  int
	Bookings []booking
	Title    string
}

type hallRow struct {
	Letter string
	Seats  []hallSeat
}

type hallSeat struct {
	ID     string
	Number int
	Gone   bool
	Mine   bool
}

func hall(gone map[string]bool, mine string) []hallRow {
	rows := make([]hallRow, hallRows)
	for i := range rows {
		letter := string(rune('A' + i))
		seats := make([]hallSeat, hallCols)
		for n := range seats {
			id := letter + strconv.Itoa(n+1)
			seats[n] = hallSeat{ID: id, Number: n + 1, Gone: gone[id], Mine: id == mine}
		}
		rows[i] = hallRow{letter, seats}
	}
	return rows
}

// T gives a text in the page's language; args fill its verbs.
func (p page) T(key string, args ...any) string {
	t := texts[key][p.Lang]
	if len(args) > 0 {
		return fmt.Sprintf(t, args...)
	}
	return t
}

// Name and Line are the film's own words in the page's language.
func (p page) Name(f film) string {
	if p.Lang == "ko" {
		return f.TitleKo
	}
	return f.TitleEn
}

func (p page) Line(f film) string {
	if p.Lang == "ko" {
		return f.LineKo
	}
	return f.LineEn
}

func (p page) Age(f film) string {
	if f.Age == 0 {
		return p.T("age.all")
	}
	return p.T("age.from", f.Age)
}

func (p page) Day(t time.Time) string {
	if p.Lang == "ko" {
		return fmt.Sprintf("%d월 %d일 (%s)", t.Month(), t.Day(), []string{"일", "월", "화", "수", "목", "금", "토"}[t.Weekday()])
	}
	return t.Format("Mon 2 Jan")
}

func (p page) Clock(t time.Time) string { return t.Format("15:04") }

// Won writes a price with thousands apart: ₩15,000.
func (p page) Won(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return "₩" + s
}

// With pairs a booking with the page, for a template that needs both.
func (p page) With(b booking) struct {
	P page
	B booking
} {
	return struct {
		P page
		B booking
	}{p, b}
}

// Full is how full a showing is, in twelfths, for its bar.
func (p page) Full(sh showing) int { return min(12, (sh.Gone*12+hallSize-1)/hallSize) }

// render writes a page in one piece: a template that fails leaves no half page.
func (s *Site) render(w http.ResponseWriter, v who, code int, name string, p page) error {
	p.Lang, p.CSS, p.Inside = v.lang, s.css, s.countInside(s.opt.Now())
	p.Title = p.T("title." + name)
	if p.Film.Slug != "" {
		p.Title = p.Name(p.Film) + " · " + p.Title
	}
	var b bytes.Buffer
	if err := s.tmpl.ExecuteTemplate(&b, name, p); err != nil {
		return fmt.Errorf("cinema: page %s: %w", name, err)
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Language", v.lang)
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(code)
	w.Write(b.Bytes())
	return nil
}

// fail writes the error page; a page that cannot be made becomes a plain line.
func (s *Site) fail(w http.ResponseWriter, _ *http.Request, v who, code int, notice string) {
	if err := s.render(w, v, code, "sorry", page{Notice: notice}); err != nil {
		s.opt.Log.Error("cinema: error page failed", "err", err)
		http.Error(w, http.StatusText(code), code)
	}
}
