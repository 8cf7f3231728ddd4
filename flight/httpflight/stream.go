package httpflight

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// stream is one response of the origin: its header, and its body as it arrives. One writer, any number of readers, each
// at her own place. Up to limit bytes it keeps the whole body, so that who comes late reads from its start; beyond it
// only keeps what some reader has still to read, and the writer waits for the slowest, though not for ever.
type stream struct {
	code   int
	header http.Header // not changed once the stream is told

	limit  int64
	mem    *memory
	slow   time.Duration
	cancel context.CancelCauseFunc // of the origin's request

	mu       sync.Mutex
	blocks   [][]byte // from base on
	base     int64    // bytes that were dropped
	end      int64    // bytes that have come
	done     bool
	err      error // why it ended before its end
	trailer  http.Header
	readers  map[*reader]struct{}
	arrived  chan struct{} // closed and renewed when something comes
	read     chan struct{} // closed and renewed when a reader has gone on or away
	sliding  bool          // it has grown beyond the limit
	sole     bool          // it is for one reader
	held     int64         // of mem
	attached int           // how many have begun to read
	expected int           // how many will, at least: what they want is kept until then
	lonely   *time.Timer
}

type reader struct {
	s    *stream
	pos  int64
	cut  bool
	gone chan struct{} // closed with the reader
	over bool          // gone is closed
}

var (
	errNoReaders = errors.New("httpflight: every client has gone")
	errTooSlow   = errors.New("httpflight: the client reads too slowly")
)

// memory is what all streams of a core hold together.
type memory struct {
	held atomic.Int64
	most int64
}

func newStream(limit int64, mem *memory, slow time.Duration) *stream {
	return &stream{limit: limit, mem: mem, slow: slow, readers: map[*reader]struct{}{}, arrived: make(chan struct{}), read: make(chan struct{}), expected: math.MaxInt}
}

// attach begins to read from the start. It answers nil if the start has been dropped.
func (s *stream) attach() *reader {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.base > 0 || s.sole && s.attached > 0 {
		return nil
	}
	s.attached++
	s.went()
	r := &reader{s: s, gone: make(chan struct{})}
	s.readers[r] = struct{}{}
	return r
}

// forOne says that one client alone will read it.
func (s *stream) forOne() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sole = true
	s.limit = min(s.limit, window)
}

// await says how many have been told of the stream, and will attach if they are still there.
func (s *stream) await(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expected = n
	if s.sole {
		s.expected = 1
	}
	s.went()
	s.unwanted() // her who was quick
}

// window is what is held of a body that one client reads: enough to keep both sides busy.
const window, leanWindow = 128 << 10, 32 << 10

// close ends the reading, also one that waits.
func (r *reader) close() {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.over {
		return
	}
	r.over = true
	close(r.gone)
	delete(s.readers, r)
	s.went()
	s.release()
	s.unwanted()
}

// unwanted cancels the origin's request when nobody reads and nobody can come any more. Under the lock.
func (s *stream) unwanted() {
	if !s.done && len(s.readers) == 0 && s.attached >= s.expected && (s.sole || s.base > 0) {
		s.cancel(errNoReaders)
	}
}

// release takes what an ended stream holds off the books when nobody reads it any more. Under the lock.
func (s *stream) release() {
	if s.done && len(s.readers) == 0 {
		s.hold(-s.held)
	}
}

func (s *stream) hold(n int64) {
	n = max(n, -s.held)
	s.held += n
	s.mem.held.Add(n)
}

// went tells the writer that there may be room. Under the lock.
func (s *stream) went() {
	close(s.read)
	s.read = make(chan struct{})
}

func (s *stream) came() {
	close(s.arrived)
	s.arrived = make(chan struct{})
}

// next is some bytes of the body after those that were read, waiting for them if it must; wait is called before.
func (r *reader) next(ctx context.Context, wait func()) ([]byte, error) {
	s := r.s
	for {
		s.mu.Lock()
		switch {
		case r.cut:
			s.mu.Unlock()
			return nil, errTooSlow
		case r.pos < s.end:
			b := s.at(r.pos)
			s.mu.Unlock()
			return b, nil
		case s.done:
			err := s.err
			s.mu.Unlock()
			if err == nil {
				err = io.EOF
			}
			return nil, err
		}
		c := s.arrived
		s.mu.Unlock()
		wait()
		select {
		case <-c:
		case <-r.gone:
			return nil, http.ErrBodyReadAfterClose
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// advance says that n more bytes have been passed on.
func (r *reader) advance(n int) {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	r.pos += int64(n)
	if s.sliding {
		s.drop()
		s.went()
	}
}

// at is the rest of the block that holds pos.
func (s *stream) at(pos int64) []byte {
	off := pos - s.base
	for _, b := range s.blocks {
		if off < int64(len(b)) {
			return b[off:]
		}
		off -= int64(len(b))
	}
	return nil
}

// drop forgets blocks that every reader has read, once all who are expected have begun.
func (s *stream) drop() {
	if s.attached < s.expected {
		return
	}
	low := s.end
	for r := range s.readers {
		low = min(low, r.pos)
	}
	for len(s.blocks) > 0 && s.base+int64(len(s.blocks[0])) <= low {
		s.base += int64(len(s.blocks[0]))
		s.hold(-int64(cap(s.blocks[0])))
		s.blocks[0] = nil
		s.blocks = s.blocks[1:]
	}
}

const smallBlock, bigBlock = 4 << 10, 64 << 10

// write adds p, waiting for room if the stream slides.
func (s *stream) write(ctx context.Context, p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(p) > 0 {
		if s.sole || s.end+int64(len(p)) > s.limit {
			s.sliding = true
		}
		if s.mem.held.Load() > s.mem.most { // hold no more than a plain proxy would
			s.sliding, s.limit = true, min(s.limit, leanWindow)
		}
		if s.sliding {
			if err := s.room(ctx); err != nil {
				return err
			}
		}
		n := s.append(p)
		p = p[n:]
		s.came()
	}
	return nil
}

// append adds what fits into one block, and no more than the limit allows to hold.
func (s *stream) append(p []byte) int {
	if s.sliding {
		p = p[:min(int64(len(p)), max(1, s.limit-(s.end-s.base)))]
	}
	last := len(s.blocks) - 1
	if last < 0 || len(s.blocks[last]) == cap(s.blocks[last]) {
		size := smallBlock
		if s.end >= bigBlock || len(p) > smallBlock {
			size = int(min(bigBlock, max(smallBlock, s.limit)))
		}
		s.hold(int64(size))
		s.blocks = append(s.blocks, make([]byte, 0, size))
		last++
	}
	b := s.blocks[last]
	n := min(len(p), cap(b)-len(b))
	s.blocks[last] = append(b, p[:n]...) // readers hold b[:len] at most; what follows is new
	s.end += int64(n)
	return n
}

// room waits, under the lock, until the stream holds less than its limit. Whoever holds it up for too long is cut off.
func (s *stream) room(ctx context.Context) error {
	var late <-chan time.Time
	for {
		s.drop()
		if s.attached >= s.expected && len(s.readers) == 0 {
			return errNoReaders
		}
		if s.end-s.base < s.limit {
			return nil
		}
		if late == nil {
			t := time.NewTimer(s.slow)
			defer t.Stop()
			late = t.C
		}
		c := s.read
		s.mu.Unlock()
		var err error
		cut := false
		select {
		case <-c:
		case <-late:
			cut = true
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		s.mu.Lock()
		if err != nil {
			return err
		}
		if cut {
			late = nil
			if s.attached < s.expected {
				s.expected = s.attached // they have gone
				continue
			}
			s.cutSlowest()
		}
	}
}

// cutSlowest gives up on those who hold the oldest block, if they delay somebody.
func (s *stream) cutSlowest() {
	edge := s.base + int64(len(s.blocks[0]))
	var slow []*reader
	for r := range s.readers {
		if r.pos < edge {
			slow = append(slow, r)
		}
	}
	if len(slow) == len(s.readers) {
		return // all are slow; the one client there is may take her time
	}
	for _, r := range slow {
		r.cut = true
		delete(s.readers, r)
	}
	s.came() // the cut ones may wait
}

// finish ends the body. Once ended it stays as it is.
func (s *stream) finish(trailer http.Header, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return
	}
	s.done, s.err, s.trailer = true, err, trailer
	s.came()
	s.release()
	if s.lonely != nil {
		s.lonely.Stop()
	}
}

// watch looks every so often whether anybody reads, and cancels the origin's request if not: from when the header is
// told it is the clients' reading that counts, and a body without readers may still be wanted, but only for so long.
func (s *stream) watch(every time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lonely = time.AfterFunc(every, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.done:
		case len(s.readers) == 0:
			s.cancel(errNoReaders)
		default:
			s.lonely.Reset(every)
		}
	})
}
