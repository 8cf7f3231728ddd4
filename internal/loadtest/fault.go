package loadtest

import (
	"fmt"
	"sync"
)

// faultKind is one of the things that must never happen (perhapsLost aside, which the end of a run turns into
// lostPlace or into nothing).
type faultKind uint8

const (
	noFault faultKind = iota
	orderInversion
	doubleAdmission
	limitOverrun
	lostPlace
	unlogged
	setBack
	perhapsLost
	faultKinds
)

const keptExamples = 10 // of each kind, in words

// faults counts, and keeps the first few of each kind in words. Safe for concurrent use.
type faults struct {
	mu       sync.Mutex
	count    [faultKinds]int64
	examples [faultKinds][]string
}

func (f *faults) add(k faultKind, format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count[k]++
	if len(f.examples[k]) < keptExamples {
		f.examples[k] = append(f.examples[k], fmt.Sprintf(format, args...))
	}
}

func (f *faults) merge(o *faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k := range f.count {
		f.count[k] += o.count[k]
		f.examples[k] = append(f.examples[k], o.examples[k]...)
		f.examples[k] = f.examples[k][:min(len(f.examples[k]), keptExamples)]
	}
}

func (f *faults) total() (n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k := orderInversion; k <= setBack; k++ {
		n += f.count[k]
	}
	return n
}
