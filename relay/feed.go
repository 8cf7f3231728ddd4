package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// feed reads a partition, a request at a time, and opens the reader anew when it breaks.
type feed struct {
	source    Source
	partition string
	at        Start
	tuning    Tuning

	want chan int // how many events the lane has room for; one request at a time
	out  chan fed
}

// fed answers one request.
type fed struct {
	events []Event
	place  Position // where the reader stands, if it has moved without an event
	gap    *GapError
	end    bool
	err    error // told beside; the request stands
}

func newFeed(s Source, partition string, at Start, t Tuning) *feed {
	return &feed{source: s, partition: partition, at: at, tuning: t, want: make(chan int, 1), out: make(chan fed)}
}

// run serves requests until ctx ends or the partition does.
func (f *feed) run(ctx context.Context) {
	var r Reader
	defer func() { closeReader(r) }()
	failures := 0
	for {
		var n int
		select {
		case <-ctx.Done():
			return
		case n = <-f.want:
		}
		for answered := false; !answered; {
			var got fed
			r, got = f.read(ctx, r, n)
			if ctx.Err() != nil {
				return
			}
			if got.err != nil {
				closeReader(r)
				r = nil
				failures++
			} else {
				failures, answered = 0, true
			}
			select {
			case <-ctx.Done():
				return
			case f.out <- got:
			}
			if got.end {
				return
			}
			if failures > 0 && !pause(ctx, max(f.tuning.backoff(failures, rand.Float64()), afterOf(got.err))) {
				return
			}
		}
	}
}

func (f *feed) read(ctx context.Context, r Reader, n int) (Reader, fed) {
	if r == nil {
		var err error
		if r, err = f.source.Open(ctx, f.partition, f.at); err != nil {
			return nil, f.failed(err)
		}
	}
	events, err := r.Read(ctx, n)
	if err != nil {
		return r, f.failed(err)
	}
	got := fed{events: events}
	if len(events) > 0 {
		f.at = Start{After: events[len(events)-1].Position}
	} else if p, ok := r.(Placed); ok {
		if at := p.Position(); at != "" && at != f.at.After {
			got.place, f.at = at, Start{After: at}
		}
	}
	return r, got
}

func (f *feed) failed(err error) fed {
	var gap *GapError
	switch {
	case errors.Is(err, ErrEnd):
		return fed{end: true}
	case errors.As(err, &gap):
		f.at = Start{After: gap.To}
		return fed{gap: gap}
	}
	return fed{err: err}
}

func closeReader(r Reader) {
	if r != nil {
		_ = r.Close() // whatever it says, nothing more is read from it
	}
}

// pause waits; false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
