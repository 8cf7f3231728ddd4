// Package relaysink sends a keeper's messages to a sink of package relay: a webhook, a queue, a topic, a table.
//
// At least once, in the order of each connection. An event is named connection/seq, its key and its partition are the
// connection: receivers know by the name what they have, and sinks that check fences refuse a zombie's. One message of a
// connection is on its way at a time, those of different connections side by side.
package relaysink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/ushergo/usher/keeper"
	"github.com/ushergo/usher/relay"
)

// Name is the relay's in what sinks are given.
const Name = "keeper"

// Sink is a relay's sink. Safe for concurrent use.
type Sink struct {
	to    relay.Sink
	slots chan struct{}

	mu     sync.Mutex
	fences map[string]uint64 // the highest of each connection, as far as this process knows
}

var _ keeper.Sink = (*Sink)(nil)

// New sends to a sink, at most sideBySide messages at once; default 32. The sink is not closed.
func New(to relay.Sink, sideBySide int) *Sink {
	if sideBySide <= 0 {
		sideBySide = 32
	}
	return &Sink{to: to, slots: make(chan struct{}, sideBySide), fences: map[string]uint64{}}
}

// ID names a message for ever.
func ID(connection string, seq int64) string { return connection + "/" + strconv.FormatInt(seq, 10) }

// Store implements keeper.Sink.
func (s *Sink) Store(ctx context.Context, batches []keeper.Batch) ([]bool, error) {
	ok, errs := make([]bool, len(batches)), make([]error, len(batches))
	var wg sync.WaitGroup
	for i, b := range batches {
		if !s.known(b) {
			continue
		}
		if ok[i] = true; len(b.Messages) == 0 {
			continue
		}
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			errs[i] = context.Cause(ctx)
			continue
		}
		wg.Go(func() {
			defer func() { <-s.slots }()
			ok[i], errs[i] = s.send(ctx, b)
		})
	}
	wg.Wait()
	return ok, errors.Join(errs...)
}

// known notes a fence, and is false for one that is too low.
func (s *Sink) known(b keeper.Batch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Fence < s.fences[b.Connection] {
		return false
	}
	s.fences[b.Connection] = b.Fence
	return true
}

// send sends a batch's messages one after the other.
func (s *Sink) send(ctx context.Context, b keeper.Batch) (bool, error) {
	most := s.to.Limits().EventBytes
	for _, m := range b.Messages {
		if n := len(m.Data) + len(b.Connection); most > 0 && n > most {
			return false, fmt.Errorf("message %s has %d bytes with its key, and the sink takes %d; set max_message below it", ID(b.Connection, m.Seq), n, most)
		}
		errs := s.to.Send(ctx, relay.Batch{Relay: Name, Partition: b.Connection, Fence: b.Fence, Events: []relay.Event{{
			ID: ID(b.Connection, m.Seq), Key: b.Connection, Type: "message", At: m.At, Payload: m.Data, Position: relay.Position(strconv.FormatInt(m.Seq, 10)),
		}}})
		switch {
		case errs == nil:
		case len(errs) != 1:
			return false, fmt.Errorf("the sink answered for %d messages of 1", len(errs))
		case errs[0] == nil:
		case relay.ClassOf(errs[0]) == relay.Fenced:
			return false, nil
		default:
			return false, fmt.Errorf("message %s: %w", ID(b.Connection, m.Seq), errs[0])
		}
	}
	return true, nil
}
