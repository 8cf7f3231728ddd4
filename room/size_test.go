package room

import (
	"encoding/binary"
	"testing"
	"time"
)

// TestStepTimes prints how long the longest steps of bulk moves take, in a room of a size that
// counts: each holds the room for that long. The aim is 5 ms on a quiet machine.
func TestStepTimes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	type room struct {
		*testing.T
		m   *Machine
		now *int64
	}
	newRoom := func(t *testing.T, c Config, waiters int) room {
		r := room{t, nil, nil}
		r.m, r.now = newTest(t, c)
		var id ID
		for n := range uint64(waiters) {
			binary.BigEndian.PutUint64(id[:], n+1)
			if res := r.m.Step(&Command{Op: OpEnter, NewID: id}, *r.now); res.Err != nil {
				t.Fatal(res.Err)
			}
		}
		return r
	}
	// step obeys cmd and ticks until nothing is left to do, and returns how many events came.
	step := func(r room, what string, cmd *Command) (events int) {
		var longest, total, own time.Duration
		steps := 0
		for more := true; more; steps++ {
			began := time.Now()
			res := r.m.Step(cmd, *r.now)
			took := time.Since(began)
			if res.Err != nil {
				r.Fatal(res.Err)
			}
			if steps == 0 {
				own = took
			}
			if n := len(res.Events); n > 2*MaxMoves+1 {
				r.Errorf("%s: a step moved %d", what, n)
			}
			events += len(res.Events)
			longest, total = max(longest, took), total+took
			more, cmd = res.More, &Command{Op: OpTick}
		}
		r.Logf("%-46s first step %8v, longest %8v, %3d steps, %8v in all", what, own.Round(time.Microsecond), longest.Round(time.Microsecond), steps, total.Round(time.Microsecond))
		return events
	}
	big := func() Config {
		c := testConfig(1)
		c.Session.Idle = Duration(30 * time.Minute)
		c.Queue.MaxWaiting, c.Queue.Grace = 2_000_000, Duration(time.Minute)
		return c
	}
	t.Run("100,000 slots", func(t *testing.T) {
		c := big()
		r := newRoom(t, c, 1_000_000)
		c.Capacity.Active = 100_001
		if n := step(r, "100,000 slots open", &Command{Op: OpConfigure, Config: &c}); n != 100_001 {
			t.Errorf("%d events", n)
		}
		c.Session.Idle, c.Session.Claim = Duration(30*time.Second), Duration(10*time.Second)
		step(r, "idle and claim are shortened for 100,000", &Command{Op: OpConfigure, Config: &c})
		for range 10 {
			*r.now += 1_000_000
			step(r, "a second", &Command{Op: OpTick})
		}
		if s := r.m.Summary(); s.AdmittedTotal != 200_002 {
			t.Errorf("after 100,001 no-shows: %+v", s)
		}
	})
	t.Run("100,000 ghosts", func(t *testing.T) {
		c := big()
		c.Session.Claim = 0
		r := newRoom(t, c, 1_000_000)
		var refs []Ref
		for n := range uint64(1_000_000) {
			if n%10 != 0 {
				var id ID
				binary.BigEndian.PutUint64(id[:], n+1)
				refs = append(refs, Ref{n + 1, id})
			}
		}
		for range 30 {
			*r.now += 1_500_000
			r.m.Step(&Command{Op: OpTick}, *r.now)
		}
		for len(refs) > 0 {
			k := min(len(refs), MaxMoves)
			r.m.Step(&Command{Op: OpHeard, Refs: refs[:k]}, *r.now)
			refs = refs[k:]
		}
		for range 15 {
			*r.now += 1_000_000
			r.m.Step(&Command{Op: OpHeard}, *r.now)
		}
		*r.now += 200_000
		if n := step(r, "100,000 of 1,000,000 vanish", &Command{Op: OpTick}); n != 99_999 { // the first of all is inside
			t.Errorf("%d events", n)
		}
	})
	t.Run("opening", func(t *testing.T) {
		c := big()
		c.Capacity.Active = 1000
		c.Schedule.OpensAt = Time{time.UnixMicro(1_700_000_000_000_000).Add(10 * time.Minute)}
		r := newRoom(t, c, 1_000_000)
		for n := range uint64(50_000) { // some leave before
			var id ID
			binary.BigEndian.PutUint64(id[:], 20*n+1)
			r.m.Step(&Command{Op: OpLeave, Ref: Ref{20*n + 1, id}}, *r.now)
		}
		began := time.Now()
		r.m.Mirror()
		t.Logf("a mirror of it %v", time.Since(began).Round(time.Microsecond))
		*r.now += 600_000_000
		r.m.clock, r.m.at = *r.now, *r.now // nobody loses her place meanwhile
		if n := step(r, "a prequeue of 1,000,000 opens", &Command{Op: OpTick}); n != 1001 {
			t.Errorf("%d events", n)
		}
		began = time.Now()
		r.m.Mirror()
		t.Logf("a mirror of it %v", time.Since(began).Round(time.Microsecond))
	})
	t.Run("recover", func(t *testing.T) {
		r := newRoom(t, func() Config { c := big(); c.Capacity.Active = 100_000; return c }(), 200_000)
		began := time.Now()
		r.m.Recover()
		t.Logf("full grace for 100,000 inside and as many in line after an outage %v", time.Since(began).Round(time.Microsecond))
	})
}
