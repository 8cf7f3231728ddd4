package room

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestWakeMissesNothing drives two rooms with the same commands. One is ticked each
// millisecond, the other only when Wake says so: the same happens to the same people at the
// same moment, and the second is not kept busy for nothing.
func TestWakeMissesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := genConfig(t)
		c.Queue.Order = rapid.SampledFrom([]Order{FIFO, FIFO, Reject, Passthrough}).Draw(t, "order")
		c.Capacity.RatePerMinute = rapid.SampledFrom([]int64{0, 0, 1, 60, 61}).Draw(t, "rate") // intervals of whole milliseconds
		c.Queue.Grace = Duration(rapid.SampledFrom([]time.Duration{time.Second, 1050 * time.Millisecond, 3 * time.Second}).Draw(t, "grace"))
		start := int64(1_700_000_000_000_000)
		if rapid.Bool().Draw(t, "scheduled") {
			c.Schedule.OpensAt = Time{time.UnixMicro(start).Add(time.Duration(rapid.IntRange(0, 6000).Draw(t, "opens")) * time.Millisecond)}
			c.Schedule.Prequeue = Duration(rapid.IntRange(0, 4000).Draw(t, "prequeue")) * Duration(time.Millisecond)
			if rapid.Bool().Draw(t, "closes") {
				c.Schedule.ClosesAt = Time{c.Schedule.OpensAt.Add(3 * time.Second)}
			}
		}
		if c.Validate() != nil {
			c.Capacity.Active = 1
		}
		type command struct {
			at  int64
			cmd Command
		}
		var script []command
		at := start
		for n := range rapid.IntRange(1, 25).Draw(t, "commands") {
			at += rapid.SampledFrom([]int64{0, 1, 7, 100, 333, 900}).Draw(t, "later") * 1000
			cmd := Command{Op: OpEnter, NewID: testID(uint64(n))}
			if n > 0 && rapid.IntRange(0, 2).Draw(t, "enter") == 0 {
				k := rapid.IntRange(0, n-1).Draw(t, "whose")
				cmd = Command{Op: rapid.SampledFrom([]Op{OpStatus, OpClaim, OpRenew, OpLeave}).Draw(t, "op"), Ref: Ref{uint64(k + 1), testID(uint64(k))}}
			}
			script = append(script, command{at, cmd})
		}
		seed := slices.Repeat([]byte{7}, 32)
		often, seldom := NewMachine(), NewMachine()
		var want, got []string
		note := func(to *[]string, r Result) {
			for _, e := range r.Events {
				*to = append(*to, fmt.Sprint(e.Room, " ", e.Type, " ", e.Seq, " ", e.Reason))
			}
		}
		ticks := 0
		next := start
		step := func(m *Machine, to *[]string, cmd *Command, at int64) Result {
			r := m.Step(cmd, at)
			note(to, r)
			if m == seldom {
				wake := m.Wake()
				if wake > time.Second {
					t.Fatalf("Wake is %v", wake)
				}
				if n := at + int64((wake+time.Microsecond-1)/time.Microsecond); cmd.Op == OpTick || n < next {
					next = n
				}
			}
			return r
		}
		for _, m := range []*Machine{often, seldom} {
			to := &want
			if m == seldom {
				to = &got
			}
			step(m, to, &Command{Op: OpConfigure, Config: &c, Seed: seed}, start)
		}
		now := start
		until := func(end int64) { // ticks at end are made, too
			for now < end {
				now += 1000
				step(often, &want, &Command{Op: OpTick}, now)
			}
			for next <= end {
				ticks++
				step(seldom, &got, &Command{Op: OpTick}, next)
			}
		}
		for _, s := range script {
			until(s.at)
			step(often, &want, &s.cmd, s.at)
			step(seldom, &got, &s.cmd, s.at)
		}
		horizon := rapid.SampledFrom([]int64{12, 12, 12, 12, 90}).Draw(t, "seconds") * 1_000_000 // held slots take a minute
		until(at + horizon)
		if !slices.Equal(got, want) {
			for i := range max(len(got), len(want)) {
				a, b := "", ""
				if i < len(want) {
					a = want[i]
				}
				if i < len(got) {
					b = got[i]
				}
				t.Logf("%-40s %s", a, b)
			}
			t.Fatal("left: ticked each millisecond; right: when Wake says so")
		}
		// Once a second, once for each thing that happens, and now and then to look in vain.
		if seconds := int((at+horizon-start)/1_000_000) + 1; ticks > 3*seconds+4*len(got)+20 {
			t.Fatalf("%d ticks in %d s for %d events", ticks, seconds, len(got))
		}
	})
}

// A room that waits for its opening is not ticked all the time although people with a
// position stand in line and slots are free.
func TestWakeBeforeAnOpening(t *testing.T) {
	m, now := newTest(t, testConfig(1))
	for i := range 3 {
		m.Step(&Command{Op: OpEnter, NewID: testID(uint64(i))}, *now)
	}
	c := testConfig(10)
	c.Schedule.OpensAt = Time{time.UnixMicro(*now).Add(time.Hour)}
	if r := m.Step(&Command{Op: OpConfigure, Config: &c, Seed: bytes7()}, *now); r.Err != nil {
		t.Fatal(r.Err)
	}
	if s := m.Summary(); s.Waiting != 2 || s.Active != 1 {
		t.Fatalf("%+v", s)
	}
	*now += 10_000
	m.Step(&Command{Op: OpTick}, *now)
	if w := m.Wake(); w < 500*time.Millisecond {
		t.Errorf("wakes in %v for nothing", w)
	}
}
