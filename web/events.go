package web

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/ushergo/usher/room"
)

const (
	beatEvery       = 15 * time.Second // a comment when there was nothing to say
	writeWithin     = 10 * time.Second // a reader that takes longer is cut off
	rankEvery       = 2 * time.Second
	streamsAtTicket = 8    // tabs of one visitor
	streamsAtEase   = 5000 // for each CPU: beyond it frames become rarer
)

// streams counts the event streams that are open.
type streams struct {
	s      *Server
	max    int
	mu     sync.Mutex
	n      int
	tabs   map[room.ID]int
	empty  chan struct{} // closed when the last one ends during a drain
	window time.Duration // of the drain: streams close at random moments within it
}

func newStreams(s *Server) *streams {
	return &streams{s: s, max: s.opts.MaxStreams, tabs: map[room.ID]int{}}
}

func (st *streams) open(id room.ID) *problem {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.s.isDraining():
		return &problem{status: 503, code: "draining", detail: "this node is being stopped; come back in a moment", retry: 5 * time.Second}
	case st.n >= st.max:
		return &problem{status: 503, code: "streams_full", detail: "too many event streams are open; poll status instead", retry: 30 * time.Second}
	case st.tabs[id] >= streamsAtTicket:
		return &problem{status: 429, code: "too_many", detail: "this ticket has too many event streams open already", retry: 30 * time.Second}
	}
	st.n++
	st.tabs[id]++
	return nil
}

func (st *streams) close(id room.ID) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.tabs[id]--; st.tabs[id] == 0 {
		delete(st.tabs, id)
	}
	if st.n--; st.n == 0 && st.empty != nil {
		close(st.empty)
		st.empty = nil
	}
}

func (st *streams) count() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.n
}

// load is how many times more streams there are than can be served at ease; at least 1.
func (st *streams) load() int { return 1 + st.count()/(streamsAtEase*runtime.GOMAXPROCS(0)) }

// Drain makes the node lose its visitors: ready becomes 503, and each event stream is told when to come back
// and is closed, at random moments so that they do not all come back at once. It returns when all are closed
// or ctx ends. The listeners go on answering; stop them after it.
func (s *Server) Drain(ctx context.Context) error {
	window := s.opts.DrainFor / 2
	if at, ok := ctx.Deadline(); ok {
		window = max(time.Until(at)/2, 0)
	}
	st := s.streams
	empty := make(chan struct{})
	st.mu.Lock()
	// A thousand a second is what a node that takes over accepts without noticing.
	st.window = min(window, time.Duration(st.n)*time.Millisecond)
	if st.n == 0 {
		close(empty)
	} else if st.empty != nil { // a second Drain waits with the first
		empty = st.empty
	} else {
		st.empty = empty
	}
	s.drainOnce.Do(func() { close(s.draining) })
	st.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// slot is when a stream closes in a drain, and how long its client then waits.
func (st *streams) slot() (closeIn, comeBack time.Duration) {
	st.mu.Lock()
	window, n := st.window, st.n
	st.mu.Unlock()
	spread := min(max(2*time.Second, time.Duration(n)*2*time.Millisecond), 30*time.Second)
	return rand.N(window + 1), time.Second + rand.N(spread)
}

// events answers with server-sent events for one ticket.
func (c *call) events() {
	ref, ok := c.ticket()
	if !ok {
		return
	}
	rm := c.entry.room
	w := rm.Watch(ref.ID) // before the first look, so that nothing falls between
	defer w.Stop()
	v, err := rm.Status(c.r.Context(), ref)
	if err != nil {
		c.fail(c.s.roomProblem(c.entry, &v, err))
		return
	}
	if p := c.s.streams.open(ref.ID); p != nil {
		c.fail(p)
		return
	}
	defer c.s.streams.close(ref.ID)
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Content-Type-Options", "nosniff")
	c.w.WriteHeader(http.StatusOK)
	if c.r.Method == http.MethodHead {
		return
	}
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Time{}) // the server's limit is for requests
	cutUnheard(c.r.Context())
	st := &stream{call: c, rc: rc, ref: ref, view: v.View}
	st.buf = append(st.buf, "retry: "...)
	st.buf = strconv.AppendInt(st.buf, 2000+rand.Int64N(8000), 10)
	st.buf = append(st.buf, '\n')
	if !st.news(&v) || !st.flush() {
		return
	}
	st.run(w)
}

// stream is one open event stream. It belongs to its request's goroutine.
type stream struct {
	*call
	rc   *http.ResponseController
	ref  room.Ref
	view room.View
	buf  []byte // frames to be written

	told    bool      // the admission
	dirty   bool      // something changed that the store could not tell yet
	written time.Time // the last write
	heard   time.Time // the last sign of life noted
	ranked  time.Time
	place   int64
	waiting int64
	stats   statsKey
}

type statsKey struct {
	waiting, active int64
	state, message  string
}

func (st *stream) run(w *room.Watcher) {
	every := st.s.opts.StatsEvery
	tick := time.NewTimer(every)
	defer tick.Stop()
	draining := st.s.draining
	var over <-chan time.Time
	for {
		select {
		case <-st.r.Context().Done():
			return
		case <-st.s.stop:
			return
		case <-over:
			return
		case <-draining:
			draining = nil
			closeIn, comeBack := st.s.streams.slot()
			st.reconnect(comeBack)
			over = time.After(closeIn)
		case _, ok := <-w.C:
			if !ok { // the room was deleted
				return
			}
			if !st.look() {
				st.flush()
				return
			}
		case <-tick.C:
			tick.Reset(every * time.Duration(st.s.streams.load()))
			if st.dirty && !st.look() {
				st.flush()
				return
			}
			st.tick(time.Now())
		}
		if !st.flush() {
			return
		}
	}
}

// look asks what became of the ticket; false when it ended.
func (st *stream) look() bool {
	v, err := st.entry.room.Status(st.r.Context(), st.ref)
	switch {
	case err == nil:
		st.dirty = false
		return st.news(&v)
	case errors.Is(err, room.ErrEnded):
		st.end(v.Reason, v.At)
		return false
	case errors.Is(err, room.ErrNoTicket), errors.Is(err, room.ErrNotFound):
		return false
	}
	st.dirty = true
	return true
}

// news tells what a visit says: the admission once, or the place.
func (st *stream) news(v *room.Visit) bool {
	st.view = v.View
	now := time.Now()
	st.heard = now
	if v.State == room.Waiting {
		st.rank(v.Place, v.Waiting, v.ETA, v.At, now)
		return true
	}
	if st.told {
		return true
	}
	adm, err := st.s.admissions.of(st.entry, v, false)
	if err != nil {
		st.s.log.Error("an admission could not be signed", "room", st.id, "err", err)
		return false
	}
	st.told = true
	st.frame()
	st.buf = append(st.buf, `{"type":"admission","status":"ADMITTED","action":"REDIRECT","admission":`...)
	st.buf = appendAdmission(st.buf, adm)
	st.close(v.At)
	return true
}

// tick tells what changed since the last one, and is heard from.
func (st *stream) tick(now time.Time) {
	if e := st.s.table().rooms[st.id]; e != nil {
		st.entry = e // a shorter grace must be kept up with
	}
	doc, _, _ := st.entry.doc.get(st.entry.room)
	if k := (statsKey{doc.Waiting, doc.Active, doc.RoomState, doc.Message}); k != st.stats {
		st.stats = k
		st.frame()
		st.buf = append(st.buf, `{"type":"stats","waiting":`...)
		st.buf = strconv.AppendInt(st.buf, k.waiting, 10)
		st.buf = append(st.buf, `,"active":`...)
		st.buf = strconv.AppendInt(st.buf, k.active, 10)
		st.buf = append(st.buf, `,"room_state":`...)
		st.buf = appendString(st.buf, k.state)
		st.buf = append(st.buf, `,"message":`...)
		st.buf = appendString(st.buf, k.message)
		st.buf = append(st.buf, `,"at":"`...)
		st.buf = append(st.buf, doc.At...)
		st.buf = append(st.buf, "\"}\n\n"...)
	}
	if st.view.State == room.Waiting && now.Sub(st.ranked) >= st.cadence() {
		place, waiting, ok := st.entry.room.Rank(st.view)
		if !ok {
			place = 0
		}
		if place != st.place || waiting != st.waiting {
			st.rank(place, waiting, etaAt(doc, place), now.UnixMicro(), now)
		}
	}
	beat := min(beatEvery, max(time.Duration(st.entry.cfg.Queue.Grace)/4, time.Second))
	if len(st.buf) == 0 && now.Sub(st.written) >= beat {
		st.buf = append(st.buf, ":\n\n"...)
	}
	if st.view.State == room.Waiting && now.Sub(st.heard) >= beat {
		st.heard = now
		st.entry.room.Heard(st.ref)
	}
}

// cadence is how often a place is told: at ease always the same, under load by how far away her turn is.
func (st *stream) cadence() time.Duration {
	if st.s.streams.load() == 1 {
		return rankEvery - 100*time.Millisecond // a tick that comes a little early counts
	}
	switch p, n := st.place, st.waiting; {
	case p == 0:
		return 10 * time.Second
	case p*100 <= n || p <= 20:
		return rankEvery
	case p*10 <= n:
		return 5 * time.Second
	case p*2 <= n:
		return 10 * time.Second
	}
	return 15 * time.Second
}

func (st *stream) rank(place, waiting int64, eta *room.ETA, at int64, now time.Time) {
	st.ranked, st.place, st.waiting = now, place, waiting
	st.frame()
	st.buf = append(st.buf, `{"type":"rank","status":"WAITING","place":`...)
	if place > 0 {
		st.buf = strconv.AppendInt(st.buf, place, 10)
	} else {
		st.buf = append(st.buf, "null"...)
	}
	st.buf = append(st.buf, `,"waiting":`...)
	st.buf = strconv.AppendInt(st.buf, waiting, 10)
	st.buf = append(st.buf, `,"eta":`...)
	st.buf = appendETA(st.buf, eta)
	st.close(at)
}

// end tells why the ticket ended. Who left by her own will knows it.
func (st *stream) end(why room.Reason, at int64) {
	if why == room.ReasonLeft {
		return
	}
	st.frame()
	st.buf = append(st.buf, `{"type":"timeout","reason":`...)
	st.buf = appendString(st.buf, why.String())
	st.close(at)
}

func (st *stream) reconnect(after time.Duration) {
	ms := after.Milliseconds()
	st.buf = append(st.buf, "retry: "...)
	st.buf = strconv.AppendInt(st.buf, ms, 10)
	st.buf = append(st.buf, '\n')
	st.frame()
	st.buf = append(st.buf, `{"type":"RECONNECT_SOON","reason":"SERVER_SHUTDOWN","after_ms":`...)
	st.buf = strconv.AppendInt(st.buf, ms, 10)
	st.buf = append(st.buf, "}\n\n"...)
}

// frame begins an event, named by the position of the log that it is based on.
func (st *stream) frame() {
	head := st.entry.room.Head()
	st.buf = append(st.buf, "id: "...)
	st.buf = strconv.AppendUint(st.buf, head.Epoch, 10)
	st.buf = append(st.buf, '.')
	st.buf = strconv.AppendUint(st.buf, head.N, 10)
	st.buf = append(st.buf, "\ndata: "...)
}

// close ends a body with its time, and the event.
func (st *stream) close(at int64) {
	st.buf = append(st.buf, `,"at":"`...)
	st.buf = appendAt(st.buf, at)
	st.buf = append(st.buf, "\"}\n\n"...)
}

// flush writes what there is; false when the reader is gone or too slow.
func (st *stream) flush() bool {
	if len(st.buf) == 0 {
		return true
	}
	st.written = time.Now()
	_ = st.rc.SetWriteDeadline(st.written.Add(writeWithin))
	_, err := st.w.Write(st.buf)
	st.buf = st.buf[:0]
	return err == nil && st.rc.Flush() == nil
}
