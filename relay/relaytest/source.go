package relaytest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ushergo/usher/relay"
)

// Source is a source in memory, of partitions that can be split and merged, with a floor that can be raised. Positions are
// numbers from 1.
type Source struct {
	mu    sync.Mutex
	parts map[string]*part
	news  chan struct{}
	fail  error
	opens int
}

type part struct {
	parents []string
	events  []relay.Event
	floor   int // events before it are gone
	closed  bool
	hidden  bool // not listed any more
}

// NewSource makes a source with partitions.
func NewSource(partitions ...string) *Source {
	s := &Source{parts: map[string]*part{}, news: make(chan struct{})}
	for _, p := range partitions {
		s.parts[p] = &part{}
	}
	return s
}

func (s *Source) changed(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.news)
	s.news = make(chan struct{})
}

// Put adds an event of a key to a partition and returns its ID.
func (s *Source) Put(partition, key string) (id string) {
	s.changed(func() {
		p := s.parts[partition]
		if p.closed {
			panic("relaytest: " + partition + " is closed")
		}
		n := len(p.events) + 1
		id = fmt.Sprintf("%s/1.%d", partition, n)
		p.events = append(p.events, relay.Event{
			ID: id, Key: key, Type: "admitted", At: time.Now(), Payload: []byte(fmt.Sprintf(`{"n":%d}`, n)), Position: relay.Position(strconv.Itoa(n)),
		})
	})
	return id
}

// Replace closes partitions and opens others after them: a split, or a merge.
func (s *Source) Replace(old []string, with ...string) {
	s.changed(func() {
		for _, o := range old {
			s.parts[o].closed = true
		}
		for _, w := range with {
			s.parts[w] = &part{parents: old}
		}
	})
}

// Hide takes a partition off the list; it can still be read.
func (s *Source) Hide(partition string) { s.changed(func() { s.parts[partition].hidden = true }) }

// Trim forgets all but the last n events of a partition.
func (s *Source) Trim(partition string, n int) {
	s.changed(func() { s.parts[partition].floor = len(s.parts[partition].events) - n })
}

// Fail makes every call fail until it is called with nil.
func (s *Source) Fail(err error) { s.changed(func() { s.fail = err }) }

// Opens is how often a reader was opened.
func (s *Source) Opens() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opens
}

// Partitions implements relay.Source.
func (s *Source) Partitions(context.Context) ([]relay.Partition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []relay.Partition
	for name, p := range s.parts {
		if !p.hidden {
			list = append(list, relay.Partition{Name: name, Parents: p.parents})
		}
	}
	return list, s.fail
}

// Close implements relay.Source.
func (s *Source) Close() error { return nil }

// Open implements relay.Source.
func (s *Source) Open(_ context.Context, partition string, from relay.Start) (relay.Reader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opens++
	if s.fail != nil {
		return nil, s.fail
	}
	p := s.parts[partition]
	if p == nil {
		return nil, fmt.Errorf("relaytest: there is no partition %s", partition)
	}
	r := &reader{s: s, name: partition, part: p}
	if from.After != "" {
		r.at, _ = strconv.Atoi(string(from.After))
	} else if !from.At.IsZero() {
		r.at = slices.IndexFunc(p.events, func(e relay.Event) bool { return !e.At.Before(from.At) })
		if r.at < 0 {
			r.at = len(p.events)
		}
	} else {
		r.at = p.floor
	}
	return r, nil
}

type reader struct {
	s    *Source
	name string
	part *part
	at   int
}

// Read implements relay.Reader.
func (r *reader) Read(ctx context.Context, max int) ([]relay.Event, error) {
	for {
		r.s.mu.Lock()
		events, news, err := r.take(max)
		r.s.mu.Unlock()
		if err != nil || len(events) > 0 {
			return events, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-news:
		}
	}
}

func (r *reader) take(max int) ([]relay.Event, chan struct{}, error) {
	p := r.part
	switch {
	case r.s.fail != nil:
		return nil, nil, r.s.fail
	case r.at < p.floor:
		gap := &relay.GapError{
			Partition: r.name, From: relay.Position(strconv.Itoa(r.at)), To: relay.Position(strconv.Itoa(p.floor)),
			Lost: int64(p.floor - r.at), Cause: "trimmed",
		}
		r.at = p.floor
		return nil, nil, gap
	case r.at < len(p.events):
		rest := p.events[r.at:]
		events := slices.Clone(rest[:min(len(rest), max)])
		r.at += len(events)
		return events, nil, nil
	case p.closed:
		return nil, nil, relay.ErrEnd
	}
	return nil, r.s.news, nil
}

// Position implements relay.Placed.
func (r *reader) Position() relay.Position {
	if r.at == 0 {
		return ""
	}
	return relay.Position(strconv.Itoa(r.at))
}

// Close implements relay.Reader.
func (r *reader) Close() error { return nil }
