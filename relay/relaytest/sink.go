package relaytest

import (
	"context"
	"fmt"
	"sync"

	"github.com/ushergo/usher/relay"
)

// Sink remembers what it is sent, and answers as it is told to.
type Sink struct {
	// Answer decides about an event; nil takes it. It is called with the number of times that the event was sent before.
	Answer func(e *relay.Event, before int) error
	// Block, when not nil, is read from before a Send goes on.
	Block chan struct{}
	Bound relay.Limits

	mu    sync.Mutex
	busy  map[string]bool // keys in a Send
	sent  map[string]int
	taken []relay.Event
	wrong []string
	news  chan struct{}
	fence map[string]uint64
}

// Send implements relay.Sink.
func (s *Sink) Send(ctx context.Context, b relay.Batch) []error {
	s.mu.Lock()
	if s.busy == nil {
		s.busy, s.sent, s.fence = map[string]bool{}, map[string]int{}, map[string]uint64{}
	}
	old := b.Fence != 0 && b.Fence < s.fence[b.Partition]
	s.fence[b.Partition] = max(s.fence[b.Partition], b.Fence)
	for _, e := range b.Events {
		if s.busy[e.Key] && !old && b.Fence != 0 {
			s.wrong = append(s.wrong, fmt.Sprintf("key %s is sent twice at once", e.Key))
		}
		s.busy[e.Key] = true
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		for _, e := range b.Events {
			delete(s.busy, e.Key)
		}
		s.mu.Unlock()
	}()
	if old {
		return relay.All(len(b.Events), relay.Errorf(relay.Fenced, "fence %d is over", b.Fence))
	}
	if s.Block != nil {
		select {
		case <-s.Block:
		case <-ctx.Done():
			return relay.All(len(b.Events), ctx.Err())
		}
	}
	errs := make([]error, len(b.Events))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range b.Events {
		e := &b.Events[i]
		before := s.sent[e.ID]
		s.sent[e.ID]++
		if s.Answer != nil {
			errs[i] = s.Answer(e, before)
		}
		if errs[i] == nil {
			s.taken = append(s.taken, *e)
		}
	}
	if s.news != nil {
		close(s.news)
		s.news = nil
	}
	return errs
}

// Limits implements relay.Sink.
func (s *Sink) Limits() relay.Limits { return s.Bound }

// Close implements relay.Sink.
func (s *Sink) Close() error { return nil }

// Taken is what was taken so far, in order.
func (s *Sink) Taken() []relay.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]relay.Event(nil), s.taken...)
}

// Sent is how often an event was sent.
func (s *Sink) Sent(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[id]
}

// Wrong lists what a relay must not do and did.
func (s *Sink) Wrong() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.wrong...)
}

// Audit says what is wrong with what a sink took, given the events in the order of the source: each at least once, and
// those of one key in order the first time that they were taken. Late ones are looked for and not held to the order.
func Audit(want []relay.Event, took []relay.Event) error {
	first := map[string]int{}
	for i, e := range took {
		if _, ok := first[e.ID]; !ok {
			first[e.ID] = i
		}
	}
	last := map[string]int{}
	for _, e := range want {
		at, ok := first[e.ID]
		if !ok {
			return fmt.Errorf("event %s (key %s) was never taken", e.ID, e.Key)
		}
		if took[at].Late {
			continue
		}
		if before, ok := last[e.Key]; ok && at < before {
			return fmt.Errorf("event %s of key %s was taken before an earlier one of that key, %s", e.ID, e.Key, took[before].ID)
		}
		last[e.Key] = at
	}
	return nil
}
