package loadtest

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// schedule hands out visitors when they are due. One goroutine takes (next), any may put.
type schedule struct {
	mu   sync.Mutex
	due  dueHeap
	wake chan struct{} // an earlier one came
}

func newSchedule(visitors []visitor) *schedule {
	s := &schedule{wake: make(chan struct{}, 1), due: make(dueHeap, 0, len(visitors))}
	for i := range visitors { // sorted by arrival, which makes a heap
		s.due = append(s.due, &visitors[i])
	}
	heap.Init(&s.due)
	return s
}

func (s *schedule) put(v *visitor) {
	s.mu.Lock()
	heap.Push(&s.due, v)
	first := s.due[0] == v
	s.mu.Unlock()
	if first {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// early is how long before its time an act may be handed out. Timers of the Go runtime are up to a millisecond late on
// an idle machine; without this, that would be most of the latency we measure.
const early = time.Millisecond

// next waits until a visitor is due; nil when ctx ended.
func (s *schedule) next(ctx context.Context) *visitor {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		v, wait := s.take()
		if v != nil {
			return v
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-s.wake:
		case <-ctx.Done():
		}
	}
	return nil
}

func (s *schedule) take() (*visitor, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.due) == 0 {
		return nil, time.Minute
	}
	if wait := time.Until(s.due[0].due); wait > early {
		return nil, wait - early
	}
	return heap.Pop(&s.due).(*visitor), 0
}

type dueHeap []*visitor

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(*visitor)) }
func (h *dueHeap) Pop() any {
	old := *h
	v := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return v
}
