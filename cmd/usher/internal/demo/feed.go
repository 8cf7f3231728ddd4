package demo

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ushergo/usher/internal/crowd"
)

// feed keeps the last events. It is safe for concurrent use, and an io.Writer
// for a log, each line of which becomes an event.
type feed struct {
	mu    sync.Mutex
	lines []Line
}

func (f *feed) add(l Line) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lines = last(append(f.lines, l), keepEvents)
}

func (f *feed) list() []Line {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Line(nil), f.lines...)
}

func (f *feed) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		f.add(Line{At: time.Now(), Text: strings.TrimSpace(string(line)), Bad: true})
	}
	return len(p), nil
}

// crowd turns what a visitor did into a line, if it is worth one: arrivals and
// admissions are figures, not news.
func (f *feed) crowd(e crowd.Event) {
	var text string
	bad := false
	switch e.Kind {
	case crowd.Arrived, crowd.Admitted:
		return
	case crowd.Bought:
		text = "booked seat " + e.Text
	case crowd.LookedOn:
		text = "looked around and left"
	case crowd.SoldOut:
		text = "found everything sold out"
	case crowd.Left:
		text = "gave up and said so"
	case crowd.Vanished:
		text = "closed the tab without a word"
	case crowd.Missed:
		text = "was called and did not come"
	case crowd.Overslept:
		text = "slept too long and lost the place"
	default:
		text, bad = fmt.Sprintf("%s: %s", e.Kind, e.Text), true
	}
	who := e.Temper.String()
	if e.Seq > 0 {
		who = fmt.Sprintf("#%-5d %-10s", e.Seq, who)
	}
	f.add(Line{At: e.At, Text: who + " " + text, Bad: bad})
}
