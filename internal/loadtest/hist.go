package loadtest

import (
	"math/bits"
	"time"
)

// histogram counts durations in log-linear buckets: one microsecond wide up to 128 µs, then 64 buckets to each
// doubling, so that a quantile is within 1 % of the truth and the memory (8 KB) does not depend on how much is
// counted. Above 19 hours everything lands in the last bucket. The zero value is ready; it is not safe for
// concurrent use.
type histogram struct {
	count  uint64
	sum    time.Duration
	max    time.Duration
	bucket [histBuckets]uint32
}

const (
	histLinear  = 128
	histPerStep = 64
	histSteps   = 29
	histBuckets = histLinear + histSteps*histPerStep
)

func histIndex(d time.Duration) int {
	us := uint64(max(d, 0)) / uint64(time.Microsecond)
	if us < histLinear {
		return int(us)
	}
	step := bits.Len64(us) - 7 // 1 for 128..255
	i := histLinear + (step-1)*histPerStep + int(us>>step) - histPerStep
	return min(i, histBuckets-1)
}

// histValue is the middle of bucket i.
func histValue(i int) time.Duration {
	if i < histLinear {
		return time.Duration(i)*time.Microsecond + time.Microsecond/2
	}
	step := (i-histLinear)/histPerStep + 1
	low := uint64(histPerStep+(i-histLinear)%histPerStep) << step
	return time.Duration(low)*time.Microsecond + time.Duration(uint64(1)<<step)*time.Microsecond/2
}

func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.count++
	h.sum += d
	h.max = max(h.max, d)
	h.bucket[histIndex(d)]++
}

func (h *histogram) merge(o *histogram) {
	h.count += o.count
	h.sum += o.sum
	h.max = max(h.max, o.max)
	for i, n := range o.bucket {
		h.bucket[i] += n
	}
}

// quantile is the duration that a share q of the counted ones do not exceed; 0 when nothing was counted.
func (h *histogram) quantile(q float64) time.Duration {
	if h.count == 0 {
		return 0
	}
	rank := uint64(q*float64(h.count) + 0.5)
	rank = min(max(rank, 1), h.count)
	var seen uint64
	for i, n := range h.bucket {
		if seen += uint64(n); seen >= rank {
			return min(histValue(i), h.max)
		}
	}
	return h.max
}

func (h *histogram) mean() time.Duration {
	if h.count == 0 {
		return 0
	}
	return h.sum / time.Duration(h.count)
}

// timelineSlots bounds a timeline: when it is full, neighbours are merged and each slot covers twice the time.
const timelineSlots = 240

// timeline keeps one histogram for every slot of time since the start of a run, whatever the run's length, in
// bounded memory. The zero value has slots of one second.
type timeline struct {
	width time.Duration
	slots []histogram
}

func (t *timeline) add(since, d time.Duration) {
	if t.width == 0 {
		t.width = time.Second
	}
	for since/t.width >= timelineSlots {
		t.widen()
	}
	i := int(max(since, 0) / t.width)
	for len(t.slots) <= i {
		t.slots = append(t.slots, histogram{})
	}
	t.slots[i].add(d)
}

func (t *timeline) widen() {
	half := make([]histogram, 0, timelineSlots)
	for i := range t.slots {
		if i%2 == 0 {
			half = append(half, t.slots[i])
		} else {
			half[i/2].merge(&t.slots[i])
		}
	}
	t.slots = half
	t.width *= 2
}
