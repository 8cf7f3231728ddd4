package demo

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestGuestsAreThoseTheCrowdDoesNotKnow(t *testing.T) {
	g, now := newGuests(), time.Date(2026, 3, 1, 20, 0, 0, 0, time.UTC)
	g.ours("early") // spoke before the log told
	g.event("entered", "early", "", 1, now)
	g.event("entered", "late", "", 2, now)
	g.event("entered", "human", "", 3, now)
	if lines, here := g.arrivals(now.Add(time.Second)); lines != nil || here != "" {
		t.Errorf("too sure, too soon: %v %q", lines, here)
	}
	g.ours("late")
	lines, here := g.arrivals(now.Add(guestAfter))
	if len(lines) != 1 || !strings.Contains(lines[0], "#3") || here != "#3 waiting" {
		t.Errorf("%v %q", lines, here)
	}
	if lines, _ = g.arrivals(now.Add(guestAfter)); lines != nil {
		t.Errorf("told twice: %v", lines)
	}
	if text := g.event("admitted", "human", "", 3, now); !strings.Contains(text, "turn") {
		t.Errorf("admitted: %q", text)
	}
	if text := g.event("claimed", "human", "", 3, now); !strings.Contains(text, "inside") {
		t.Errorf("claimed: %q", text)
	}
	if text := g.event("admitted", "early", "", 1, now); text != "" {
		t.Errorf("the crowd's own: %q", text)
	}
	if text := g.event("left", "human", "left", 3, now); !strings.Contains(text, "gone") {
		t.Errorf("left: %q", text)
	}
	g.event("left", "early", "left", 1, now)
	g.event("abandoned", "late", "abandoned", 2, now)
	if _, here = g.arrivals(now.Add(time.Hour)); here != "" || len(g.known) != 0 {
		t.Errorf("still here: %q, %d known", here, len(g.known))
	}
}

func TestGuestsForgetWhatNeverComes(t *testing.T) {
	g, now := newGuests(), time.Date(2026, 3, 1, 20, 0, 0, 0, time.UTC)
	for i := range 1000 {
		g.ours(fmt.Sprint(i))
	}
	g.arrivals(now)
	g.arrivals(now.Add(2 * time.Minute))
	if len(g.known) != 0 {
		t.Errorf("%d tickets kept for ever", len(g.known))
	}
}
