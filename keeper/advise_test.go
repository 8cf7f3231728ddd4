package keeper

import (
	"testing"
	"time"
)

func TestAdvice(t *testing.T) {
	var a advisor
	for _, c := range []struct {
		at                   time.Duration
		workers, connections int
		want                 int
	}{
		{0, 3, 2000, 3},
		{time.Minute, 3, 2101, 3},               // a fourth is needed
		{2 * time.Minute, 3, 2000, 3},           // not for long
		{3 * time.Minute, 3, 2101, 3},           //
		{4 * time.Minute, 3, 2900, 3},           //
		{5 * time.Minute, 3, 2900, 5},           // for two minutes
		{6 * time.Minute, 5, 2900, 5},           // they came
		{7 * time.Minute, 5, 100, 5},            // hardly any are left
		{21 * time.Minute, 5, 1500, 5},          // three
		{21*time.Minute + 1, 5, 100, 5},         //
		{22 * time.Minute, 5, 100, 3},           // for 15 minutes, in which three were needed once
		{23 * time.Minute, 3, 0, 3},             // still too many; it began before
		{40 * time.Minute, 1, 0, 1},             // never none
		{41 * time.Minute, 0, 5, 0},             // nobody lives
		{43*time.Minute + time.Second, 0, 5, 1}, //
	} {
		if got := a.advise(c.at, c.workers, c.connections, 700); got.Recommended != c.want {
			t.Fatalf("at %v: %+v, want %d", c.at, got, c.want)
		}
	}
}

func TestTold(t *testing.T) {
	k := &Keeper{stats: &stats{}, conns: map[string]*conn{}}
	if told, ok := ReadTold(k.info()); !ok || told != (Told{}) {
		t.Errorf("%q: %v %v", k.info(), told, ok)
	}
	want := Told{Open: 11, Blocked: 1, Pending: 3, LagMS: 250, PerSecond: 12.5}
	if told, ok := ReadTold("open=11,blocked=1,pending=3,lag_ms=250,per_second=12.50"); !ok || told != want {
		t.Errorf("%v %v", told, ok)
	}
	for _, other := range []string{"", "x", "open=1"} {
		if _, ok := ReadTold(other); ok {
			t.Errorf("%q is read", other)
		}
	}
}
