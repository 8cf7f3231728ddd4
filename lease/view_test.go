package lease

import (
	"testing"
	"time"
)

// TestReadsThatOvertake: the answer to a read that began before another tells nothing more: it would bring back those who
// were not there yet, and so have a row of a new worker taken for nobody's.
func TestReadsThatOvertake(t *testing.T) {
	a, x := WorkerRow{Owner: Owner{"a", 1}}, WorkerRow{Owner: Owner{"x", 1}}
	v := newView("a", Options{}.withDefaults())
	v.step([]WorkerRow{a}, 0, time.Second)
	v.step([]WorkerRow{a, x}, 3*time.Second, 4*time.Second)
	if p := v.step([]WorkerRow{a}, 2*time.Second, 5*time.Second); p.changed || len(p.mark)+len(p.forget) > 0 {
		t.Errorf("an old read asks for something: %+v", p)
	}
	if !v.lives(x.Owner) {
		t.Error("who had joined is not among the living after the answer to an older read")
	}
}
