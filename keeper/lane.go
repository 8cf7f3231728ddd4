package keeper

import (
	"context"
	"errors"
	"sync"
	"time"
)

// lane carries the messages of some connections to the sink, several connections' in one call. After a failure the calls
// are halved, so that a connection whose message the sink never takes is soon alone, and holds up itself only.
type lane struct {
	o     *Options
	stats *stats

	wake chan struct{}

	mu    sync.Mutex
	ready []*queue // have messages, none under way
}

func newLane(o *Options, st *stats) *lane {
	return &lane{o: o, stats: st, wake: make(chan struct{}, 1)}
}

func (l *lane) add(q *queue) {
	l.mu.Lock()
	l.ready = append(l.ready, q)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// gather takes up to most queues, and Batch messages of them. A queue's lock is never asked for with the lane's held.
func (l *lane) gather(most int) (qs []*queue, batches []Batch) {
	for n := 0; len(qs) < most && n < l.o.Batch; {
		l.mu.Lock()
		if len(l.ready) == 0 {
			l.mu.Unlock()
			break
		}
		q := l.ready[0]
		l.ready[0], l.ready = nil, l.ready[1:]
		l.mu.Unlock()
		if b, ok := q.take(l.o.Batch - n); ok {
			qs, batches = append(qs, q), append(batches, b)
			n += max(len(b.Messages), 1)
		}
	}
	return qs, batches
}

// run stores until ctx ends.
func (l *lane) run(ctx context.Context) {
	const most = 256
	together := most
	pause := backoff{first: 100 * time.Millisecond, most: 5 * time.Second}
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		if !sleep(ctx, l.o.Linger) {
			return
		}
		for ctx.Err() == nil {
			qs, batches := l.gather(together)
			if len(qs) == 0 {
				break
			}
			if err := l.store(ctx, qs, batches); err == nil {
				together = min(2*together, most)
				pause.reset()
				continue
			}
			// Alone and failed: the queue pauses by itself. In company: tried again soon, in halves.
			if together = max(len(qs)/2, 1); len(qs) == 1 {
				sleep(ctx, min(pause.next(), time.Second))
			} else {
				sleep(ctx, l.o.Linger)
			}
		}
	}
}

var errShort = errors.New("the sink gave fewer answers than there were batches")

func (l *lane) store(ctx context.Context, qs []*queue, batches []Batch) error {
	call, cancel := context.WithTimeout(ctx, l.o.StoreTimeout)
	defer cancel()
	began := time.Now()
	ok, err := l.o.Sink.Store(call, batches)
	if err == nil && len(ok) != len(batches) {
		err = errShort
	}
	l.stats.called(time.Since(began), err)
	if err != nil && ctx.Err() == nil {
		l.o.Logger.Warn("messages were not stored; they are kept and tried again", "connection", batches[0].Connection, "connections", len(batches), "err", err)
	}
	for i, q := range qs {
		switch {
		case err != nil:
			q.failed(err, len(qs) == 1)
		case ok[i]:
			q.stored(len(batches[i].Messages))
		default:
			q.fenced()
		}
	}
	return err
}

// sleep waits for d; false: ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
