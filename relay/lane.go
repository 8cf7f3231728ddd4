package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/ushergo/usher/lease"
)

// lane carries one partition to the sink while its lease is held.
type lane struct {
	o         *Options
	partition string
	fence     uint64
	log       *slog.Logger
	limits    Limits
	from      string                    // the cursor, as it was kept
	keep      func(cursor string)       // notes it; it is written soon, under the fence
	last      func(cursor string) error // writes it, and waits
	resumed   chan struct{}
	results   chan result

	mu        sync.Mutex // guards what follows; the loop alone changes it
	m         *machine
	progress  time.Time
	sourceErr error
	caughtUp  bool // the last read found nothing
	counts    Counts
}

type result struct {
	job      *job
	outcomes []outcome
}

// errFenced ends a lane whose partition has another owner by the sink's word.
var errFenced = errors.New("relay: the sink has seen a later owner")

func newLane(o *Options, partition string, r lease.Resource) *lane {
	l := &lane{
		o: o, partition: partition, fence: r.Fence, log: o.Logger.With("relay", o.ID, "partition", partition),
		limits: o.sink.Limits(), from: r.Cursor, resumed: make(chan struct{}, 1),
		results: make(chan result, o.Tuning.InFlight), progress: time.Now(),
		keep: r.SetCursor,
		last: func(cursor string) error {
			r.SetCursor(cursor)
			ctx, cancel := context.WithTimeout(context.Background(), o.SendTimeout)
			defer cancel()
			return r.Flush(ctx)
		},
	}
	l.m = newMachine(o.Tuning, readCursor(r.Cursor).After)
	return l
}

// run works until the partition ends (nil), ctx does, or the sink says that somebody else owns the partition.
func (l *lane) run(ctx context.Context) error {
	sends, cancel := context.WithCancel(context.WithoutCancel(ctx)) // sends outlive ctx by a little, unless the lease is lost
	defer cancel()
	reads, stopReads := context.WithCancel(ctx)
	f := newFeed(l.o.Source, l.partition, readCursor(l.from), l.o.Tuning)
	var reading sync.WaitGroup
	reading.Go(func() { f.run(reads) })
	defer reading.Wait()
	defer stopReads()

	wake := time.NewTimer(time.Hour)
	defer wake.Stop()
	asked, ended := false, false
	for {
		next, room, fenced, empty := l.start(sends)
		switch {
		case fenced:
			return l.leave(cancel, errFenced)
		case ended && empty:
			return l.last(cursorEnd)
		}
		if room > 0 && !asked && !ended {
			f.want <- room
			asked = true
		}
		wake.Reset(next)
		select {
		case <-ctx.Done():
			stopReads()
			return l.leave(cancel, context.Cause(ctx))
		case got := <-f.out:
			asked = asked && got.err != nil
			ended = got.end
			l.fed(got)
		case r := <-l.results:
			l.finished(r)
		case <-l.resumed:
			l.goOn()
		case <-wake.C:
		}
	}
}

func (l *lane) locked(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// start begins everything that can be done now, and tells how long nothing else can be.
func (l *lane) start(ctx context.Context) (wait time.Duration, room int, fenced, empty bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for j := l.m.next(now, l.limits); j != nil; j = l.m.next(now, l.limits) {
		go l.do(ctx, j, j.events())
	}
	wait = time.Hour
	if at := l.m.wake(now); !at.IsZero() {
		wait = max(at.Sub(now), 0)
	}
	return wait, l.m.room(), l.m.fenced && l.m.idle(), l.m.empty()
}

// do sends or buries, and reports. results has room for all jobs under way.
func (l *lane) do(ctx context.Context, j *job, events []Event) {
	if j.bury {
		l.results <- result{j, []outcome{l.bury(ctx, j.items[0])}}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.o.SendTimeout)
	defer cancel()
	errs := l.send(ctx, Batch{Relay: l.o.ID, Partition: l.partition, Fence: l.fence, Events: events})
	now := time.Now()
	outcomes := make([]outcome, len(events))
	for i, err := range errs {
		if err == nil {
			outcomes[i].ok = true
			l.o.Observer.Taken(&events[i], now.Sub(events[i].At))
			continue
		}
		outcomes[i] = outcome{class: ClassOf(err), after: afterOf(err), reason: reason(err)}
		l.o.Observer.Failed(&events[i], outcomes[i].class)
	}
	l.results <- result{j, outcomes}
}

// send is the sink's, with panics as errors: one event that upsets a handler does not bring down the others.
func (l *lane) send(ctx context.Context, b Batch) (errs []error) {
	defer func() {
		if p := recover(); p != nil {
			errs = All(len(b.Events), fmt.Errorf("relay: panic: %v", p))
		}
	}()
	return normal(l.o.sink.Send(ctx, b), len(b.Events))
}

func (l *lane) bury(ctx context.Context, it *item) outcome {
	ctx, cancel := context.WithTimeout(ctx, l.o.SendTimeout)
	defer cancel()
	err := l.o.Dead.Put(ctx, Letter{
		Relay: l.o.ID, Partition: l.partition, Event: it.Envelope(), Class: it.class.String(), Reason: it.reason,
		Attempts: it.tries, First: it.first.UTC(), Last: it.lastFail.UTC(),
	}, l.o.Bounds)
	if err != nil {
		return outcome{reason: reason(err), full: errors.Is(err, ErrDeadFull)}
	}
	l.o.Observer.Buried(&it.Event)
	l.log.Warn("an event went to the dead letters", "event", it.ID, "key", it.Key, "attempts", it.tries, "class", it.class.String(), "reason", it.reason)
	return outcome{ok: true}
}

// reason is an error's text, bounded.
func reason(err error) string {
	s := strings.ToValidUTF8(err.Error(), "?")
	if len(s) > 1024 {
		s = s[:1024]
		for !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	return s
}

func (l *lane) fed(got fed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if (got.err == nil) != (l.sourceErr == nil) {
		if got.err != nil {
			l.log.Error("the source cannot be read; trying again", "err", got.err)
		} else {
			l.log.Info("the source is read again")
		}
	}
	l.sourceErr = got.err
	l.caughtUp = got.err == nil && got.gap == nil && len(got.events) == 0
	switch {
	case got.gap != nil:
		l.log.Error("events are lost: the source no longer has them", "err", got.gap, "stops", l.o.OnGap == GapStop)
		l.o.Observer.Gap(got.gap)
		l.m.add([]Event{gapEvent(l.partition, got.gap)}, l.o.OnGap == GapStop)
	case len(got.events) > 0:
		if l.m.empty() {
			l.progress = time.Now()
		}
		l.m.add(got.events, false)
	case got.place != "":
		if l.m.place(got.place) {
			l.keep(string(got.place))
		}
	}
}

// gapEvent is how the sink hears of a gap.
func gapEvent(partition string, gap *GapError) Event {
	payload, _ := json.Marshal(map[string]any{ // strings and numbers: cannot fail
		"type": TypeGap, "partition": partition, "after": gap.From, "up_to": gap.To, "lost": gap.Lost, "cause": gap.Cause,
	})
	return Event{
		ID: fmt.Sprintf("%s/gap/%s-%s", partition, gap.From, gap.To), Key: partition, Type: TypeGap, At: time.Now(),
		Payload: payload, Position: gap.To,
	}
}

func (l *lane) finished(r result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	word, _ := l.m.alarm()
	before := l.m.cursor
	l.m.finish(r.job, r.outcomes, time.Now(), rand.Float64)
	for _, o := range r.outcomes {
		switch {
		case o.ok && r.job.bury:
			l.counts.Buried++
		case o.ok:
			l.counts.Taken++
		case !r.job.bury:
			l.counts.Failed++
		}
		if o.ok {
			l.progress = time.Now()
		}
	}
	if l.m.cursor != before {
		l.keep(string(l.m.cursor))
	}
	if now, why := l.m.alarm(); now != word && now != "" {
		l.log.Error("the relay stands still", "alarm", now, "why", why)
	} else if now != word {
		l.log.Info("the relay goes on", "after", word)
	}
}

// goOn reads on behind a gap that somebody answers for.
func (l *lane) goOn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m.held == nil {
		return
	}
	l.log.Info("the relay goes on behind the gap", "gap", l.m.held.ID)
	l.m.resume()
	l.keep(string(l.m.cursor))
}

// leave waits for what is under way, and gives up the partition because of cause.
func (l *lane) leave(cancel func(), cause error) error {
	if errors.Is(cause, lease.ErrLost) || errors.Is(cause, errFenced) {
		cancel()
	}
	grace := time.NewTimer(l.o.Drain)
	defer grace.Stop()
	for waits := 0; ; {
		idle := false
		l.locked(func() { idle = l.m.idle() })
		if idle {
			return cause
		}
		select {
		case r := <-l.results:
			l.finished(r)
			continue
		case <-grace.C:
		}
		if waits++; waits > 1 {
			l.log.Error("the sink does not return from Send after its context has ended; it is left alone")
			return cause
		}
		cancel()
		grace.Reset(hung)
	}
}

// hung is how long a Send may take to notice that its context has ended.
const hung = 5 * time.Second

// status tells how the lane is.
func (l *lane) status() LaneStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	s := LaneStatus{
		Partition: l.partition, Fence: l.fence, Cursor: string(l.m.cursor), Window: len(l.m.items) - l.m.head,
		WindowBytes: l.m.bytes, InFlight: l.m.flight, CaughtUp: l.caughtUp && l.m.empty(), Counts: l.counts,
	}
	if s.Cursor == "" {
		s.Cursor = l.from
	}
	if at := l.m.oldest(); !at.IsZero() {
		s.Lag = max(now.Sub(at), 0)
	}
	switch s.Alarm, s.Why = l.m.alarm(); {
	case s.Alarm != "":
	case l.sourceErr != nil:
		s.Alarm, s.Why = AlarmSource, reason(l.sourceErr)
	case !l.m.empty() && now.Sub(l.progress) > stalled:
		s.Alarm, s.Why = AlarmStalled, "nothing was taken for "+now.Sub(l.progress).Round(time.Second).String()
		if it := l.m.items[l.m.head]; it.reason != "" {
			s.Why += "; last error: " + it.reason
		}
	}
	return s
}

// stalled is after how long without progress somebody should look.
const stalled = 5 * time.Minute
