package keepertest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
)

// Upstream sends numbered messages over WebSocket: GET /{stream}?from=N&fence=F is sent message N+1 and all behind it, as
// they come into being. Of a stream it keeps only the connection with the higher fence: a lower one is refused with 409,
// and closed when a higher one comes. It is an http.Handler, safe for concurrent use.
type Upstream struct {
	// Rate is how many messages a stream has per second. Set before the first use, as the next two.
	Rate float64
	// Size is how long a message is, in bytes, about. Default: as short as it can be.
	Size int
	// Drop is the mean life of a connection, which then is cut at random without a word. 0: none is.
	Drop time.Duration
	// Pace bounds how many messages of a stream are sent per second when many are behind. 0: as fast as they are read.
	Pace float64

	start   time.Time
	ended   atomic.Int64 // ns since start; 0: goes on
	once    sync.Once
	mu      sync.Mutex
	streams map[string]*stream

	pings atomic.Int64
	deaf  atomic.Bool
}

type stream struct {
	fence  uint64
	conn   *link // nil: nobody is connected
	events []Event
}

type link struct {
	net.Conn
	fence   uint64
	writing sync.Mutex
	gone    chan struct{}
	once    sync.Once
}

func (l *link) cut() {
	l.once.Do(func() {
		close(l.gone)
		_ = l.Close()
	})
}

// Event is what happened to a stream.
type Event struct {
	At    time.Time
	What  string // "open", "closed", "dropped" (at random), "superseded" (a higher fence came), "refused" (the fence is too low)
	Fence uint64
	From  int64
}

func (u *Upstream) begin() {
	u.once.Do(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.start.IsZero() {
			u.start = time.Now()
		}
		u.streams = map[string]*stream{}
	})
}

// Number is that of the last message there is, the same for all streams.
func (u *Upstream) Number() int64 {
	u.begin()
	d := time.Since(u.start)
	if e := time.Duration(u.ended.Load()); e > 0 {
		d = min(d, e)
	}
	return int64(d.Seconds() * u.Rate)
}

// End stops time: there are no further messages. It returns the number of the last.
func (u *Upstream) End() int64 {
	u.begin()
	u.ended.CompareAndSwap(0, int64(max(time.Since(u.start), 1)))
	return u.Number()
}

// Text is a message.
func (u *Upstream) Text(name string, n int64) []byte {
	text := fmt.Sprintf(`{"seq":%d,"stream":%q,"text":"word %d`, n, name, n)
	if pad := u.Size - len(text) - 2; pad > 0 {
		text += strings.Repeat("-", pad)
	}
	return []byte(text + `"}`)
}

// Deaf makes the upstream answer no pings and send nothing, as one behind a dead link does.
func (u *Upstream) Deaf(on bool) { u.deaf.Store(on) }

// Pings is how many pings came.
func (u *Upstream) Pings() int64 { return u.pings.Load() }

// Events of a stream so far.
func (u *Upstream) Events(name string) []Event {
	u.begin()
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := u.streams[name]; s != nil {
		return append([]Event(nil), s.events...)
	}
	return nil
}

// Fence is that of the open connection of a stream, with ok, and else the highest there was.
func (u *Upstream) Fence(name string) (fence uint64, ok bool) {
	u.begin()
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.streams[name]
	if s == nil {
		return 0, false
	}
	return s.fence, s.conn != nil
}

// Open is how many streams are connected.
func (u *Upstream) Open() (n int) {
	u.begin()
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.streams {
		if s.conn != nil {
			n++
		}
	}
	return n
}

// Cut cuts a stream's connection without a word.
func (u *Upstream) Cut(name string) {
	u.begin()
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := u.streams[name]; s != nil && s.conn != nil {
		s.conn.cut()
	}
}

// Close cuts all connections.
func (u *Upstream) Close() {
	u.begin()
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.streams {
		if s.conn != nil {
			s.conn.cut()
		}
	}
}

func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.begin()
	name := strings.TrimPrefix(r.URL.Path, "/")
	from, err1 := strconv.ParseInt(r.FormValue("from"), 10, 64)
	fence, err2 := strconv.ParseUint(r.FormValue("fence"), 10, 64)
	if err1 != nil || err2 != nil || name == "" {
		http.Error(w, "want /{stream}?from={number}&fence={fence}", http.StatusBadRequest)
		return
	}
	if !u.admit(name, fence, from) {
		http.Error(w, "a connection with a higher fence has this stream", http.StatusConflict)
		return
	}
	conn, _, _, err := ws.UpgradeHTTP(r, w)
	if err != nil {
		return
	}
	l := &link{Conn: conn, fence: fence, gone: make(chan struct{})}
	if !u.attach(name, l, from) {
		return
	}
	go u.listen(l)
	what := u.send(name, l, from)
	l.cut()
	u.detach(name, l, what)
}

// admit refuses a fence that is too low.
func (u *Upstream) admit(name string, fence uint64, from int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.streams[name]
	if s == nil {
		s = &stream{}
		u.streams[name] = s
	}
	if fence < s.fence {
		s.events = append(s.events, Event{time.Now(), "refused", fence, from})
		return false
	}
	return true
}

// attach makes l the stream's connection, and closes the one before.
func (u *Upstream) attach(name string, l *link, from int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.streams[name]
	if l.fence < s.fence { // meanwhile
		s.events = append(s.events, Event{time.Now(), "refused", l.fence, from})
		l.cut()
		return false
	}
	if s.conn != nil {
		s.events = append(s.events, Event{time.Now(), "superseded", s.conn.fence, 0})
		s.conn.cut() // no byte of it is sent from here on
	}
	s.fence, s.conn = l.fence, l
	s.events = append(s.events, Event{time.Now(), "open", l.fence, from})
	return true
}

func (u *Upstream) detach(name string, l *link, what string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := u.streams[name]; s.conn == l {
		s.conn = nil
		s.events = append(s.events, Event{time.Now(), what, l.fence, 0})
	}
}

// listen answers pings, and ends when the other side does.
func (u *Upstream) listen(l *link) {
	defer l.cut()
	for {
		h, err := ws.ReadHeader(l)
		if err != nil || h.Length > 64<<10 {
			return
		}
		if _, err := io.CopyN(io.Discard, l, h.Length); err != nil {
			return
		}
		switch h.OpCode {
		case ws.OpPing:
			u.pings.Add(1)
			if u.deaf.Load() {
				continue
			}
			l.writing.Lock()
			err = wsutil.WriteServerMessage(l, ws.OpPong, nil)
			l.writing.Unlock()
			if err != nil {
				return
			}
		case ws.OpClose:
			return
		}
	}
}

// send sends what there is and what comes, and returns why it ended.
func (u *Upstream) send(name string, l *link, from int64) string {
	every := max(time.Duration(float64(time.Second)/u.Rate), 5*time.Millisecond)
	if u.Pace > 0 {
		every = 5 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var die <-chan time.Time
	if u.Drop > 0 {
		t := time.NewTimer(time.Duration(rand.ExpFloat64() * float64(u.Drop)))
		defer t.Stop()
		die = t.C
	}
	var buf []byte
	for {
		buf = buf[:0]
		last := u.Number()
		if u.Pace > 0 {
			last = min(last, from+max(int64(u.Pace*0.005), 1))
		}
		for n := from + 1; n <= last && len(buf) < 32<<10 && !u.deaf.Load(); n++ {
			f, err := ws.CompileFrame(ws.NewTextFrame(u.Text(name, n)))
			if err != nil {
				return "closed"
			}
			buf, from = append(buf, f...), n
		}
		if len(buf) > 0 {
			l.writing.Lock()
			_, err := l.Write(buf)
			l.writing.Unlock()
			if err != nil {
				return "closed"
			}
			if from < u.Number() && u.Pace == 0 {
				continue
			}
		}
		select {
		case <-l.gone:
			return "closed"
		case <-die:
			return "dropped"
		case <-tick.C:
		}
	}
}
