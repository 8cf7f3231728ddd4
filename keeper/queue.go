package keeper

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrFenced is the cause of a connection's end when its sink has seen a higher fence: somebody else owns it.
var ErrFenced = errors.New("keeper: the sink has seen a higher fence")

// queue has a connection's messages that are not stored yet. Safe for concurrent use.
//
//	idle ──put──> ready (in its lane's list) ──take──> under way ──stored──> idle, or ready again
//	                 ^── after a pause ── failed ──────────┘
type queue struct {
	id    string
	fence uint64
	lane  *lane
	o     *Options
	stats *stats
	moved func(seq int64) // the cursor; called in order
	lost  func(error)     // the sink has seen a higher fence

	mu       sync.Mutex
	list     []Message
	bytes    int
	under    int // of list, under way
	state    queueState
	claim    bool          // the fence is to be made known
	space    chan struct{} // closed when there may be room; nil: nobody waits
	empty    chan struct{} // closed when all is stored; nil: nobody waits
	pause    backoff
	err      error // the last failure; nil: none since the last success
	blocking int   // puts that wait for room
}

type queueState int

const (
	idle queueState = iota
	ready
	underway
	resting // after a failure
	over
)

func newQueue(id string, fence uint64, l *lane) *queue {
	return &queue{
		id: id, fence: fence, lane: l, o: l.o, stats: l.stats, moved: func(int64) {}, lost: func(error) {},
		pause: backoff{first: 200 * time.Millisecond, most: 5 * time.Second},
	}
}

// present tells the sink the fence before any message.
func (q *queue) present() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.claim = true
	q.push()
}

// push makes the queue ready if it is idle. Under mu.
func (q *queue) push() {
	if q.state == idle && (len(q.list) > 0 || q.claim) {
		q.state = ready
		q.lane.add(q)
	}
}

// put waits for room and takes in a message.
func (q *queue) put(ctx context.Context, m Message) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.list) > 0 && (len(q.list) >= q.o.Pending || q.bytes+len(m.Data) > q.o.PendingBytes) {
		if q.space == nil {
			q.space = make(chan struct{})
		}
		space := q.space
		q.blocking++
		q.mu.Unlock()
		var err error
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-space:
		}
		q.mu.Lock()
		q.blocking--
		if err != nil {
			return err
		}
	}
	if q.state == over {
		return ErrFenced
	}
	q.list = append(q.list, m)
	q.bytes += len(m.Data)
	q.push()
	return nil
}

// take gives the lane what is to be stored, at most most messages.
func (q *queue) take(most int) (Batch, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != ready {
		return Batch{}, false
	}
	q.state = underway
	q.under = min(most, len(q.list))
	return Batch{q.id, q.fence, q.list[:q.under:q.under]}, true
}

// stored moves over n messages.
func (q *queue) stored(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != underway {
		return
	}
	q.claim, q.err, q.state, q.under = false, nil, idle, 0
	q.pause.reset()
	if n > 0 {
		q.stats.stored.Add(int64(n))
		last := q.list[n-1].Seq
		for _, m := range q.list[:n] {
			q.bytes -= len(m.Data)
		}
		clear(q.list[:n])
		if q.list = q.list[n:]; len(q.list) == 0 {
			q.list = nil
		}
		q.moved(last)
	}
	q.push()
	q.tell()
}

// tell wakes whoever waits for room or for the end. Under mu.
func (q *queue) tell() {
	if q.space != nil {
		close(q.space)
		q.space = nil
	}
	if q.empty != nil && (len(q.list) == 0 || q.state == over) {
		close(q.empty)
		q.empty = nil
	}
}

// failed puts the queue back; alone: after a pause of its own.
func (q *queue) failed(err error, alone bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != underway {
		return
	}
	q.err, q.under = err, 0
	if !alone {
		q.state = ready
		q.lane.add(q)
		return
	}
	q.state = resting
	time.AfterFunc(q.pause.next(), func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.state == resting {
			q.state = idle
			q.push()
		}
	})
}

// fenced ends the queue: somebody else owns the connection.
func (q *queue) fenced() {
	q.end()
	q.lost(ErrFenced)
}

// drained waits until all is stored, at most for d.
func (q *queue) drained(d time.Duration) bool {
	q.mu.Lock()
	if len(q.list) == 0 || q.state == over {
		defer q.mu.Unlock()
		return len(q.list) == 0
	}
	if q.empty == nil {
		q.empty = make(chan struct{})
	}
	empty := q.empty
	q.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-empty:
	case <-t.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.list) == 0
}

// end drops what is not stored; what is under way may still be, and moves nothing.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == over {
		return
	}
	q.state = over
	q.tell()
}

// behind says how many messages wait, how long the oldest has, whether the socket is not read for them, and why.
func (q *queue) behind(now time.Time) (n int, lag time.Duration, blocked bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) > 0 {
		lag = max(now.Sub(q.list[0].At), 0)
	}
	return len(q.list), lag, q.blocking > 0, q.err
}
