package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// ErrRedriving is Redrive's while another one of that relay runs in this process.
var ErrRedriving = errors.New("relay: dead letters are being brought back already")

// Redrive says what to bring back.
type Redrive struct {
	IDs       []string // events; empty: all there are when it begins
	PerSecond float64  // letters; default 50
	Limit     int      // letters at most; 0: all
	// Before leaves out letters that failed after it; default: now. A redrive that is done in several calls gives the same
	// time to each, and ends.
	Before time.Time
}

// Redriven is what became of it.
type Redriven struct {
	Taken  int `json:"taken"`  // and gone from the dead letters
	Failed int `json:"failed"` // and still there, with the new reason
}

// Redrive sends dead letters again, marked late, the oldest first and no faster than said. A letter is forgotten when the
// sink has taken it; so a redrive that is cut off, or runs twice, sends some twice with the same Event.ID and loses none.
// It runs whether or not the relay does, and stops early when the sink takes nothing five times in a row.
func (r *Relay) Redrive(ctx context.Context, d Redrive) (Redriven, error) {
	if !r.redriving.TryLock() {
		return Redriven{}, ErrRedriving
	}
	defer r.redriving.Unlock()
	if d.PerSecond <= 0 {
		d.PerSecond = 50
	}
	var out Redriven
	gap := time.Duration(float64(time.Second) / d.PerSecond)
	next, fails := time.Now(), 0
	err := r.eachLetter(ctx, d, func(l Letter) error {
		if wait := time.Until(next); wait > 0 && !pause(ctx, wait) {
			return ctx.Err()
		}
		next = next.Add(gap)
		if late := time.Now().Add(-time.Second); next.Before(late) {
			next = late // what was slow is not made up for by a burst
		}
		err := r.redrive(ctx, l)
		if err == nil {
			out.Taken++
			fails = 0
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		out.Failed++
		if ClassOf(err) == Rejected {
			fails = 0
			return nil
		}
		if fails++; fails >= 5 {
			return fmt.Errorf("relay: the sink takes nothing; the rest stays among the dead letters: %w", err)
		}
		if !pause(ctx, max(afterOf(err), r.o.Tuning.backoff(fails, rand.Float64()))) {
			return ctx.Err()
		}
		return nil
	})
	return out, err
}

// eachLetter calls f for the letters that are wanted. What is put while it runs is not.
func (r *Relay) eachLetter(ctx context.Context, d Redrive, f func(Letter) error) error {
	n := 0
	for _, id := range d.IDs {
		l, err := r.o.Dead.Get(ctx, r.o.ID, id)
		if errors.Is(err, ErrNoLetter) {
			continue // it was brought back before
		}
		if err != nil {
			return err
		}
		if err := f(l); err != nil {
			return err
		}
		if n++; n == d.Limit {
			return nil
		}
	}
	if len(d.IDs) > 0 {
		return nil
	}
	before := d.Before
	if before.IsZero() {
		before = time.Now()
	}
	for after := uint64(0); ; {
		page, err := r.o.Dead.List(ctx, r.o.ID, after, 100)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, l := range page {
			after = l.Seq
			if l.Last.After(before) {
				continue
			}
			if err := f(l); err != nil {
				return err
			}
			if n++; n == d.Limit {
				return nil
			}
		}
	}
}

// redrive sends one letter.
func (r *Relay) redrive(ctx context.Context, l Letter) error {
	e := l.Event.Event()
	e.Late, e.Attempt = true, l.Attempts
	sending, cancel := context.WithTimeout(ctx, r.o.SendTimeout)
	defer cancel()
	now := time.Now().UTC()
	err := normal(r.o.sink.Send(sending, Batch{Relay: r.o.ID, Partition: l.Partition, Events: []Event{e}}), 1)[0]
	if err == nil {
		r.o.Logger.Info("a dead letter was brought back", "relay", r.o.ID, "event", e.ID)
		_, err := r.o.Dead.Drop(ctx, r.o.ID, e.ID)
		return err
	}
	l.Attempts++
	l.Redriven++
	l.Last, l.Reason, l.Class = now, reason(err), ClassOf(err).String()
	return errors.Join(err, r.o.Dead.Put(context.WithoutCancel(ctx), l, r.o.Bounds))
}

// Letters gives access to the relay's dead letters.
func (r *Relay) Letters() DeadLetters { return r.o.Dead }

// lettersState is what housekeeping said last, so that it says it once.
type lettersState struct {
	mu    sync.Mutex
	alarm string
}

// deadWait is after how long a dead letter is an alarm.
const deadWait = 5 * time.Minute

// AlarmDead is a relay's alarm while letters are older than five minutes.
const AlarmDead = "dead_letters"

func deadAlarm(s DeadStats) (word, why string) {
	if s.Oldest.IsZero() || time.Since(s.Oldest) < deadWait {
		return "", ""
	}
	return AlarmDead, fmt.Sprintf("%d dead letters, the oldest of %s: usher dlq list", s.Letters, s.Oldest.UTC().Format(time.RFC3339))
}

// housekeeping forgets old dead letters and raises the alarm about those that nobody looks at.
func (r *Relay) housekeeping(ctx context.Context) {
	for first := true; first || pause(ctx, 30*time.Second); first = false {
		n, err := r.o.Dead.Expire(ctx, r.o.ID, time.Now().Add(-r.o.Retain))
		if n > 0 {
			r.o.Observer.Expired(n)
			r.o.Logger.Error("dead letters were forgotten: nobody brought them back in time", "relay", r.o.ID, "letters", n, "kept", r.o.Retain.String())
		}
		var stats DeadStats
		if err == nil {
			stats, err = r.o.Dead.Stats(ctx, r.o.ID)
		}
		if err != nil {
			if ctx.Err() == nil {
				r.o.Logger.Warn("the dead letters cannot be looked at", "relay", r.o.ID, "err", err)
			}
			continue
		}
		word, why := deadAlarm(stats)
		r.letters.mu.Lock()
		if word != r.letters.alarm && word != "" {
			r.o.Logger.Error("dead letters wait for somebody", "relay", r.o.ID, "why", why)
		}
		r.letters.alarm = word
		r.letters.mu.Unlock()
	}
}
