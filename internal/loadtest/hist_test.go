package loadtest

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHistogramQuantilesAreWithinOnePercent(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var h histogram
	var all []time.Duration
	for range 50_000 {
		d := time.Duration(rng.ExpFloat64() * float64(20*time.Millisecond))
		h.add(d)
		all = append(all, d)
	}
	slices.Sort(all)
	for _, q := range []float64{0.01, 0.5, 0.95, 0.99, 0.999, 1} {
		want := all[max(int(q*float64(len(all)))-1, 0)]
		got := h.quantile(q)
		if diff := (got - want).Abs(); diff > want/100+time.Microsecond {
			t.Errorf("quantile %v: got %v, want %v", q, got, want)
		}
	}
	if h.max != all[len(all)-1] {
		t.Errorf("max %v, want %v", h.max, all[len(all)-1])
	}
}

func TestHistogramBucketsCoverEveryDuration(t *testing.T) {
	for _, d := range []time.Duration{-1, 0, 1, 127 * time.Microsecond, 128 * time.Microsecond, 255 * time.Microsecond,
		256 * time.Microsecond, time.Second, time.Hour, 19 * time.Hour, 1000 * time.Hour} {
		i := histIndex(d)
		if i < 0 || i >= histBuckets {
			t.Fatalf("%v lands in bucket %d", d, i)
		}
		if d > 0 && d < 19*time.Hour {
			if v := histValue(i); (v - d).Abs() > d/100+time.Microsecond {
				t.Errorf("%v comes back as %v", d, v)
			}
		}
	}
	var h histogram
	if h.quantile(0.5) != 0 || h.mean() != 0 {
		t.Error("an empty histogram has a quantile")
	}
}

func TestTimelineStaysBounded(t *testing.T) {
	var tl timeline
	for s := range 5000 {
		tl.add(time.Duration(s)*time.Second, time.Millisecond)
	}
	if len(tl.slots) > timelineSlots {
		t.Fatalf("%d slots", len(tl.slots))
	}
	var n uint64
	for i := range tl.slots {
		n += tl.slots[i].count
	}
	if n != 5000 {
		t.Fatalf("%d of 5000 kept", n)
	}
}
