package relay

import (
	"container/heap"
	"fmt"
	"time"
)

// machine decides, for one partition and one sink, which event is sent when and how far the cursor may go. It is pure: it
// is told the time and what became of each attempt, and rolls are given to it. Not safe for concurrent use.
type machine struct {
	t Tuning

	items  []*item          // in the source's order; items[head:] are in the window
	head   int              //
	bytes  int              // of the window
	seq    uint64           // of the last item
	last   map[string]*item // the newest item of each key
	ready  bySeq            // may be sent: the first of their keys
	asleep byTime           // failed, and wait for their time
	dying  []*item          // to be put among the dead letters, in the order in which they failed
	flight int              // sends under way
	digs   int              // burials under way

	cursor Position
	taken  uint64 // events that the sink has taken
	held   *item  // a gap that nobody has answered for: the cursor stays before it

	failures int       // sends in a row by which the sink took nothing
	until    time.Time // nothing is sent before
	denied   string    // why the sink refuses everything, while it does
	full     string    // why the dead letters take nothing, while they do
	digAt    time.Time // nothing is buried before
	digFails int
	fenced   bool
}

// item is an event in the window.
type item struct {
	Event
	seq      uint64
	next     *item // of its key
	state    itemState
	tries    int       // that failed
	strikes  int       // of them, those that counted against it
	seen     uint64    // how much the sink had taken when it failed last
	suspect  bool      // failed all alone: it is not put with others any more, lest it spoils them
	first    time.Time // failure
	lastFail time.Time
	at       time.Time // asleep until
	class    Class
	reason   string
	stop     bool // a gap: reading goes on when somebody has said so
}

type itemState uint8

const (
	queued itemState = iota // behind another of its key, or ready
	sending
	sleeping
	burying
	done
)

// job is what the shell is to do: send events, or bury one.
type job struct {
	items []*item
	bury  bool
}

func (j *job) events() []Event {
	events := make([]Event, len(j.items))
	for i, it := range j.items {
		events[i] = it.Event
		events[i].Attempt = it.tries
	}
	return events
}

// outcome is what became of one event of a job.
type outcome struct {
	ok     bool
	class  Class
	after  time.Duration
	reason string
	full   bool // of a burial: there is no room
}

func newMachine(t Tuning, cursor Position) *machine {
	return &machine{t: t, last: map[string]*item{}, cursor: cursor}
}

// room is how many more events the window takes.
func (m *machine) room() int {
	if m.bytes >= m.t.WindowBytes || m.held != nil {
		return 0
	}
	return max(m.t.Window-(len(m.items)-m.head), 0)
}

// add takes events in, in order. stop says that the event tells of a gap and that nothing is read behind it before resume.
func (m *machine) add(events []Event, stop bool) {
	for i := range events {
		m.seq++
		it := &item{Event: events[i], seq: m.seq, stop: stop}
		m.items = append(m.items, it)
		m.bytes += it.size()
		if before := m.last[it.Key]; before != nil {
			before.next = it
		} else {
			heap.Push(&m.ready, it)
		}
		m.last[it.Key] = it
		if stop {
			m.held = it
		}
	}
}

// place says where the reader stands after everything in the window; the cursor goes there if all of it is done.
func (m *machine) place(at Position) bool {
	if !m.empty() {
		return false
	}
	m.cursor = at
	return true
}

// resume says that a gap has been seen by somebody who answers for it.
func (m *machine) resume() {
	if m.held != nil {
		m.held.stop = false
		m.held = nil
		m.forward()
	}
}

// next is the next thing to do now; nil: nothing before wake.
func (m *machine) next(now time.Time, l Limits) *job {
	m.rouse(now)
	if m.fenced || m.digs+m.flight >= m.t.InFlight {
		return nil
	}
	if len(m.dying) > 0 && !now.Before(m.digAt) {
		it := m.dying[0]
		m.dying = m.dying[1:]
		m.digs++
		return &job{items: []*item{it}, bury: true}
	}
	if m.full != "" || now.Before(m.until) || m.failures > 0 && m.flight > 0 || len(m.ready) == 0 {
		return nil
	}
	j := m.gather(now, l)
	if len(j.items) == 0 { // all were too long
		return m.next(now, l)
	}
	m.flight++
	return j
}

// gather takes the next batch off the ready ones. While the sink takes nothing, batches get smaller each time, so that one
// event that spoils them all is found.
func (m *machine) gather(now time.Time, l Limits) *job {
	j := &job{}
	most := max(atMost(m.t.Batch, l.Events)>>min(m.failures, 30), 1)
	var later []*item
	for size := 0; len(m.ready) > 0 && len(j.items) < most; {
		it := heap.Pop(&m.ready).(*item)
		n := len(it.Payload) + len(it.Key)
		switch {
		case l.EventBytes > 0 && n > l.EventBytes || l.Bytes > 0 && n > l.Bytes:
			m.fail(it, now, outcome{class: Rejected, reason: fmt.Sprintf("the event has %d bytes, more than the sink takes", n)})
			m.die(it)
			continue
		case len(j.items) == 0 && it.suspect:
			most = 1
		case it.suspect:
			later = append(later, it)
			continue
		}
		if size += n; l.Bytes > 0 && size > l.Bytes {
			later, most = append(later, it), 0
			continue
		}
		it.state = sending
		j.items = append(j.items, it)
	}
	for _, it := range later {
		heap.Push(&m.ready, it)
	}
	return j
}

func atMost(a, b int) int {
	if b > 0 && b < a {
		return b
	}
	return a
}

// rouse makes ready whose time has come.
func (m *machine) rouse(now time.Time) {
	for len(m.asleep) > 0 && !now.Before(m.asleep[0].at) {
		it := heap.Pop(&m.asleep).(*item)
		it.state = queued
		heap.Push(&m.ready, it)
	}
}

// wake is when next may have something that it has not now, without anything being told; zero: never.
func (m *machine) wake(now time.Time) time.Time {
	var at time.Time
	soonest := func(t time.Time) {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	soonest(m.until)
	soonest(m.digAt)
	if len(m.asleep) > 0 {
		soonest(m.asleep[0].at)
	}
	return at
}

// finish takes in what became of a job. roll gives numbers in [0, 1).
func (m *machine) finish(j *job, outcomes []outcome, now time.Time, roll func() float64) {
	if j.bury {
		m.digs--
		m.buried(j.items[0], outcomes[0], now, roll)
		return
	}
	m.flight--
	alive, crowded := false, m.room() == 0
	for _, o := range outcomes {
		alive = alive || o.ok || o.class == Rejected
		if o.ok {
			m.taken++
		}
	}
	if alive {
		m.failures, m.denied = 0, ""
	}
	alone := len(j.items) == 1 && j.items[0].suspect && m.failures == 0 // it says nothing about the sink
	if !alive && !alone {
		m.failures++
		m.until = now.Add(m.t.backoff(m.failures, roll()))
	}
	for i, o := range outcomes {
		m.settle(j.items[i], o, batchFate{own: alive || len(j.items) == 1, alive: alive, crowded: crowded}, now, roll)
	}
	m.forward()
}

// batchFate is what matters of a batch to each of its events.
type batchFate struct {
	own     bool // what failed waits by itself, and not with all the others
	alive   bool // the sink took or refused something
	crowded bool // the window was full
}

// settle takes in what became of one event.
func (m *machine) settle(it *item, o outcome, b batchFate, now time.Time, roll func() float64) {
	if o.ok {
		m.end(it)
		return
	}
	since := m.taken > it.seen
	m.fail(it, now, o)
	switch o.class {
	case Fenced:
		m.fenced = true
		return
	case Rejected:
		m.die(it)
		return
	case Denied:
		m.denied = o.reason
	}
	if o.class == Transient || o.class == Denied && b.alive {
		// The first failure never counts: it may have been the sink's. Later ones do if others got through meanwhile.
		if it.tries > 1 && since {
			it.strikes++
		}
		if it.strikes >= m.t.Attempts && (now.Sub(it.first) >= m.t.GiveUp || b.crowded) {
			m.die(it)
			return
		}
		it.suspect = it.suspect || b.own && !b.alive
	}
	if until := now.Add(o.after); o.after > 0 && until.After(m.until) {
		m.until = until
	}
	if !b.own { // the whole sink waits
		it.state = queued
		heap.Push(&m.ready, it)
		return
	}
	it.state, it.at = sleeping, now.Add(max(o.after, m.t.backoff(it.tries, roll())))
	heap.Push(&m.asleep, it)
}

func (m *machine) fail(it *item, now time.Time, o outcome) {
	if it.tries == 0 {
		it.first = now
	}
	it.tries++
	it.seen = m.taken
	it.lastFail, it.class, it.reason = now, o.class, o.reason
}

func (m *machine) die(it *item) {
	it.state = burying
	m.dying = append(m.dying, it)
}

func (m *machine) buried(it *item, o outcome, now time.Time, roll func() float64) {
	if o.ok {
		m.full, m.digFails = "", 0
		m.end(it)
		m.forward()
		return
	}
	if o.full {
		m.full = o.reason
	}
	m.digFails++
	m.digAt = now.Add(m.t.backoff(m.digFails, roll()))
	m.dying = append([]*item{it}, m.dying...)
}

// end takes an item out of its key's line.
func (m *machine) end(it *item) {
	it.state = done
	m.bytes -= it.size()
	if it.next != nil {
		heap.Push(&m.ready, it.next)
		it.next = nil
	} else if m.last[it.Key] == it {
		delete(m.last, it.Key)
	}
	it.Payload = nil
}

// forward moves the cursor over what is done.
func (m *machine) forward() {
	for m.head < len(m.items) && m.items[m.head].state == done && !m.items[m.head].stop {
		m.cursor = m.items[m.head].Position
		m.items[m.head] = nil
		m.head++
	}
	if m.head == len(m.items) {
		m.items, m.head = m.items[:0], 0
	} else if m.head > 1024 && m.head > len(m.items)/2 {
		m.items = append([]*item(nil), m.items[m.head:]...)
		m.head = 0
	}
}

// idle reports whether nothing is under way.
func (m *machine) idle() bool { return m.flight == 0 && m.digs == 0 }

// empty reports whether everything that was read is done.
func (m *machine) empty() bool { return m.head == len(m.items) }

// oldest is when the oldest event happened that is not done; zero: there is none.
func (m *machine) oldest() time.Time {
	if m.empty() {
		return time.Time{}
	}
	return m.items[m.head].At
}

// alarm says why nothing moves that should, in a word and in a sentence; "": nothing is wrong.
func (m *machine) alarm() (word, why string) {
	switch {
	case m.full != "":
		return AlarmDeadFull, m.full
	case m.held != nil && m.held.state == done:
		return AlarmGap, m.held.Type + " " + m.held.ID
	case m.denied != "":
		return AlarmDenied, m.denied
	}
	return "", ""
}
