package web

import (
	"testing"
	"time"

	"github.com/ushergo/usher/room"
)

func TestLinger(t *testing.T) {
	var l linger
	start := time.Unix(1_700_000_000, 0)
	a, b := room.ID{1}, room.ID{2}
	l.add(a, start)
	l.add(b, start.Add(20*time.Second))
	for _, tc := range []struct {
		after time.Duration
		a, b  bool
	}{{0, true, true}, {29 * time.Second, true, true}, {45 * time.Second, true, true}, {61 * time.Second, false, false}, {time.Hour, false, false}} {
		if got := l.has(a, start.Add(tc.after)); got != tc.a {
			t.Errorf("a after %v: %v", tc.after, got)
		}
		if got := l.has(b, start.Add(tc.after)); got != tc.b {
			t.Errorf("b after %v: %v", tc.after, got)
		}
	}
	for i := range maxLinger + 10 {
		l.add(room.ID{3, byte(i), byte(i >> 8), byte(i >> 16)}, start.Add(2*time.Hour))
	}
	if len(l.now) > maxLinger {
		t.Errorf("%d are remembered", len(l.now))
	}
}
