package room

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
	"time"
)

// Rates of 60 and 61 a minute have one interval and two bursts: going from one to the other
// must not keep the wrong burst.
func TestRateChangeTakesItsBurst(t *testing.T) {
	c := testConfig(1_000_000)
	c.Capacity.RatePerMinute = 61
	m, now := newTest(t, c)
	n := uint64(0)
	enter := func(k int) {
		for range k {
			n++
			m.Step(&Command{Op: OpEnter, NewID: testID(n)}, *now)
		}
	}
	for range 120 { // idle: the burst of 61 a minute is there
		*now += 1_000_000
		m.Step(&Command{Op: OpTick}, *now)
	}
	c.Capacity.RatePerMinute = 60
	m.Step(&Command{Op: OpConfigure, Config: &c}, *now)
	for range 120 {
		*now += 1_000_000
		m.Step(&Command{Op: OpTick}, *now)
	}
	enter(200)
	before := m.Summary().AdmittedTotal
	for range 59 {
		*now += 1_000_000
		m.Step(&Command{Op: OpTick}, *now)
	}
	if got := m.Summary().AdmittedTotal - before + 1; before != 1 || got > 60 {
		t.Errorf("%d at once, %d within a minute at 60 a minute", before, got)
	}
}

// A pause before the prequeue lets nobody into the draw early.
func TestPausedBeforeThePrequeue(t *testing.T) {
	c := testConfig(1)
	now := int64(1_700_000_000_000_000)
	c.Schedule.OpensAt = Time{time.UnixMicro(now).Add(2 * time.Hour)}
	m := NewMachine()
	m.Step(&Command{Op: OpConfigure, Config: &c, Seed: bytes7()}, now)
	m.Step(&Command{Op: OpState, State: StatePaused, Message: "a moment"}, now)
	if r := m.Step(&Command{Op: OpEnter, NewID: testID(1)}, now); !errors.Is(r.Err, ErrNotOpen) || len(r.Events) != 0 {
		t.Errorf("%+v", r)
	}
	now += 2*3600_000_000 - 600_000_000 // ten minutes before the opening
	if r := m.Step(&Command{Op: OpEnter, NewID: testID(1)}, now); r.Err != nil || r.View.Pos != 0 {
		t.Errorf("in the prequeue of a paused room: %+v", r)
	}
}

// Use at the moment of expiry, before the tick has come, does not revive a session, and is
// never answered with a time that has passed.
func TestUseDoesNotRevive(t *testing.T) {
	for _, op := range []Op{OpEnter, OpStatus, OpClaim, OpRenew} {
		c := testConfig(1)
		c.Session.Claim, c.Session.Idle, c.Session.Max = Duration(10*time.Second), Duration(20*time.Second), Duration(30*time.Second)
		m, now := newTest(t, c)
		in := m.Step(&Command{Op: OpEnter, NewID: testID(1), Request: [16]byte{1}}, *now).View.Ref
		next := m.Step(&Command{Op: OpEnter, NewID: testID(2)}, *now).View.Ref
		for range 10 {
			*now += 1_000_000
			r := m.Step(&Command{Op: OpHeard, Refs: []Ref{next}}, *now)
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		r := m.Step(&Command{Op: op, Ref: in, Request: [16]byte{1}}, *now)
		want := ErrEnded
		if op == OpEnter {
			want = ErrSpent
		}
		if !errors.Is(r.Err, want) || r.View.State != Ended || r.View.Reason != ReasonClaim {
			t.Errorf("op %d: %+v", op, r)
		}
		if v := m.Step(&Command{Op: OpStatus, Ref: next}, *now).View; v.State != Active {
			t.Errorf("op %d: the slot was not given on: %+v", op, v)
		}
	}
}

// A slot that comes free between two ticks is not given to somebody whose grace is over.
func TestGhostGetsNoSlot(t *testing.T) { // cases/room 1
	for _, order := range []Order{FIFO, Random} {
		c := testConfig(1)
		c.Queue.Grace, c.Queue.Order = Duration(5*time.Second), order
		m, now := newTest(t, c)
		in := m.Step(&Command{Op: OpEnter, NewID: testID(1)}, *now).View.Ref
		var ghosts []Ref
		for i := range 1000 {
			ghosts = append(ghosts, m.Step(&Command{Op: OpEnter, NewID: testID(uint64(i + 2))}, *now).View.Ref)
		}
		living := m.Step(&Command{Op: OpEnter, NewID: testID(2000)}, *now).View.Ref
		for range 6 {
			*now += 1_000_000
			m.Step(&Command{Op: OpHeard, Refs: []Ref{living}}, *now)
		}
		r := m.Step(&Command{Op: OpLeave, Ref: in}, *now) // no tick has come since their grace ended
		for r.More {
			r = m.Step(&Command{Op: OpTick}, *now)
		}
		if v := m.Step(&Command{Op: OpStatus, Ref: living}, *now).View; v.State != Active {
			t.Errorf("%s: the living one is %v", order, v.State)
		}
		for _, g := range ghosts {
			if v := m.view(g, false); v.State == Active || (order == FIFO && v.Reason != ReasonAbandoned) {
				t.Fatalf("%s: a ghost is %+v", order, v)
			}
		}
	}
}

// With hold, a slot stays taken for as long as a token can be used that was signed before
// the operator shortened idle or max; a snapshot keeps that, too.
func TestHoldCoversTokensOfALongerIdle(t *testing.T) {
	c := testConfig(1)
	c.Session.Hold, c.Session.Claim, c.Session.Idle, c.Session.Max = true, 0, Duration(10*time.Minute), Duration(time.Hour)
	m, now := newTest(t, c)
	in := m.Step(&Command{Op: OpEnter, NewID: testID(1)}, *now).View
	c.Session.Idle = Duration(time.Minute)
	m.Step(&Command{Op: OpConfigure, Config: &c}, *now)
	var b bytes.Buffer
	if err := m.Save(&b); err != nil {
		t.Fatal(err)
	}
	again, err := Load(&b)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*Machine{m, again} {
		var hold time.Duration
		for _, e := range m.Step(&Command{Op: OpLeave, Ref: in.Ref}, *now).Events {
			hold = e.Hold
		}
		if want := in.TokenEnd + Leeway; hold < want {
			t.Errorf("the slot is held for %v, the token is good for %v", hold, want)
		}
	}
}

// A configuration that is refused changes nothing.
func TestRefusedConfigurationChangesNothing(t *testing.T) {
	m, now := newTest(t, testConfig(1))
	c := testConfig(5)
	c.Schedule.OpensAt = Time{time.UnixMicro(*now).Add(time.Hour)}
	r := m.Step(&Command{Op: OpConfigure, Config: &c}, *now) // no seed
	if !errors.Is(r.Err, ErrBadCommand) || len(r.Events) != 0 || m.Summary().Limit != 1 {
		t.Errorf("%+v, limit %d", r, m.Summary().Limit)
	}
}

// Many sessions that were renewed come due at once: looking at them is done in pieces.
func TestRenewedSessionsAreLookedAtInPieces(t *testing.T) {
	const n = 50_000
	c := testConfig(n)
	c.Session.Claim, c.Session.Idle, c.Session.Max = 0, Duration(10*time.Second), Duration(time.Hour)
	m, now := newTest(t, c)
	for i := range n {
		m.Step(&Command{Op: OpEnter, NewID: testID(uint64(i + 1))}, *now)
	}
	for range 9 {
		*now += 1_000_000
		m.Step(&Command{Op: OpTick}, *now)
	}
	for i := range n {
		m.Step(&Command{Op: OpRenew, Ref: Ref{uint64(i + 1), testID(uint64(i + 1))}}, *now)
	}
	*now += 1_000_000
	steps := 1
	for m.Step(&Command{Op: OpTick}, *now).More {
		steps++
	}
	if steps < n/maxLooks {
		t.Errorf("%d sessions were looked at in %d steps", n, steps)
	}
	if a := m.Summary().Active; a != n {
		t.Errorf("%d of %d sessions are left", a, n)
	}
}

// After a long life and a restart with nobody waiting, the line begins where the positions are.
func TestLineSkipsWhatNobodyHas(t *testing.T) {
	var l Line
	l.add(1 << 40)
	if l.Len() != 1 || l.At(0) != 1<<40 || l.Before(1<<40) != 0 || l.Before(1<<41) != 1 || len(l.words) > 2*blockWords {
		t.Errorf("%d waiting, head %d, %d words", l.Len(), l.At(0), len(l.words))
	}
	l.remove(1 << 40)
	first := uint64(1 << 50)
	for i := range uint64(10) {
		l.apply(&Event{Type: Entered, Ref: Ref{Seq: first + i}, Prequeue: true, Key: 1 + i<<52})
	}
	l.apply(&Event{Type: StateChanged, State: &StateData{Phase: PhaseOpen}})
	if l.Len() != 10 || l.At(9) != first+9 || l.seqAt(first+3) != first+3 || len(l.words) > 2*blockWords {
		t.Errorf("%d waiting, last %d, %d words", l.Len(), l.At(9), len(l.words))
	}
}

// A million tickets pass through a small machine: what it keeps is bounded by what ten minutes bring.
func TestMachineDoesNotGrow(t *testing.T) {
	c := testConfig(10)
	m, now := newTest(t, c)
	heap := func() int64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	var early int64
	var id ID
	for n := range uint64(1_000_000) {
		*now += 50_000 // 12,000 in ten minutes
		binary.BigEndian.PutUint64(id[:], n+1)
		m.Step(&Command{Op: OpEnter, NewID: id, Request: id}, *now)
		if n%3 != 0 && n > 50 { // the others time out
			binary.BigEndian.PutUint64(id[:], n-49)
			m.Step(&Command{Op: OpLeave, Ref: Ref{n - 49, id}}, *now)
		}
		if n%20 == 0 {
			for m.Step(&Command{Op: OpTick}, *now).More {
			}
		}
		if n == 100_000 {
			early = heap()
		}
	}
	late := heap()
	t.Logf("%d KB in use after 100,000 tickets, %d KB after 1,000,000", early>>10, late>>10)
	if late > early+early/4+1<<20 {
		t.Error("the machine grows")
	}
	if s := m.Summary(); len(m.requests) > 20_000 || len(m.ended) > 20_000 || len(m.line.words) > 40*blockWords {
		t.Errorf("%d request ids, %d ended, %d words, %+v", len(m.requests), len(m.ended), len(m.line.words), s)
	}
}

// A machine that only replays forgets what it is told to.
func TestForget(t *testing.T) {
	m, now := newTest(t, testConfig(1))
	for n := range uint64(5000) {
		m.Step(&Command{Op: OpEnter, NewID: testID(n), Request: [16]byte(testID(n))}, *now)
		m.Step(&Command{Op: OpLeave, Ref: Ref{n + 1, testID(n)}}, *now)
	}
	for range 600 {
		m.Forget()
		if len(m.ended) != 5000 {
			t.Fatalf("forgotten too soon: %d left", len(m.ended))
		}
		m.now += time.Second
	}
	m.Forget()
	if len(m.ended)+len(m.requests) != 0 || len(m.tickets.chunks) != 1 {
		t.Errorf("%d ended, %d requests, %d chunks", len(m.ended), len(m.requests), len(m.tickets.chunks))
	}
}

// Of many waiters, each is abandoned when her own grace is over, by ticks that come only when
// Wake says so.
func TestEachIsAbandonedInTime(t *testing.T) {
	c := testConfig(1)
	c.Session.Claim, c.Queue.Grace = 0, Duration(5*time.Second)
	m, now := newTest(t, c)
	const n = 5 * chunkLen
	heard := map[uint64]time.Duration{}
	for k := range uint64(n) {
		m.Step(&Command{Op: OpEnter, NewID: testID(k + 1)}, *now)
		heard[k+1] = 0
	}
	for i, chunk := range []uint64{3, 1, 4, 0, 2, 3} { // heard from at different times
		*now += 100_000 * int64(i+1)
		r := m.Step(&Command{Op: OpTick}, *now)
		for k := range uint64(chunkLen) {
			seq := chunk*chunkLen + k + 1
			m.Step(&Command{Op: OpStatus, Ref: Ref{seq, testID(seq)}}, *now)
			heard[seq] = m.now
		}
		if len(r.Events) != 0 {
			t.Fatal(r.Events)
		}
	}
	ticks := 0
	for m.line.Len() > 0 {
		if ticks++; ticks > 1000 {
			t.Fatalf("%d are still waiting", m.line.Len())
		}
		*now += int64((m.Wake() + time.Microsecond - 1) / time.Microsecond)
		for _, e := range m.Step(&Command{Op: OpTick}, *now).Events {
			if silent := e.Room - heard[e.Seq]; silent <= 5*time.Second || silent > 5*time.Second+210*time.Millisecond {
				t.Fatalf("ticket %d was abandoned after %v", e.Seq, silent)
			}
		}
	}
}

// Time between the last command and a recovery does not count at all.
func TestRecoverOfALivingMachine(t *testing.T) {
	m, now := newTest(t, testConfig(1))
	in := m.Step(&Command{Op: OpEnter, NewID: testID(1)}, *now).View.Ref
	m.Step(&Command{Op: OpClaim, Ref: in}, *now)
	*now += 1_500_000
	m.Recover()
	if v := m.Step(&Command{Op: OpStatus, Ref: in}, *now).View; v.IdleEnd != 5*time.Minute || v.FinalEnd != 30*time.Minute {
		t.Errorf("%+v", v)
	}
}

// When all of a long line have gone, those who come next still get their positions.
func TestLineOfWhichAllHaveGone(t *testing.T) {
	var l Line
	const n = 200_000
	for pos := range uint64(n) {
		l.apply(&Event{Type: Entered, Ref: Ref{Seq: pos + 1}, Pos: pos + 1})
	}
	for pos := uint64(n); pos > 0; pos-- { // the head last
		l.apply(&Event{Type: Left, Ref: Ref{Seq: pos}, Pos: pos})
	}
	l.apply(&Event{Type: Entered, Ref: Ref{Seq: n + 1}, Pos: n + 1})
	if l.Len() != 1 || !l.Has(n+1) || l.At(0) != n+1 {
		t.Errorf("%d in line, head %d", l.Len(), l.At(0))
	}
}

// What nobody had to wait for in passthrough is not charged to the rate afterwards, and an
// order that was in force for nobody leaves no trace.
func TestPassthroughIsNotCharged(t *testing.T) {
	c := testConfig(1_000_000)
	c.Queue.Order, c.Capacity.RatePerMinute = Passthrough, 6
	m, now := newTest(t, c)
	for n := range uint64(100) {
		m.Step(&Command{Op: OpEnter, NewID: testID(n)}, *now)
	}
	c.Queue.Order = FIFO
	m.Step(&Command{Op: OpConfigure, Config: &c}, *now)
	if v := m.Step(&Command{Op: OpEnter, NewID: testID(1000)}, *now).View; v.State != Active {
		t.Errorf("the first one under the rate waits: %+v", v)
	}
}

// A held slot is given on at the moment it comes free, by ticks that come only when Wake says so.
func TestHeldSlotComesFreeInTime(t *testing.T) {
	c := testConfig(1)
	c.Session.Hold, c.Session.Claim, c.Session.Idle, c.Queue.Grace = true, 0, Duration(1250*time.Millisecond), Duration(time.Hour)
	m, now := newTest(t, c)
	in := m.Step(&Command{Op: OpEnter, NewID: testID(1)}, *now).View
	m.Step(&Command{Op: OpEnter, NewID: testID(2)}, *now)
	*now += 300_000
	in = m.Step(&Command{Op: OpRenew, Ref: in.Ref}, *now).View
	in.TokenEnd += m.now
	m.Step(&Command{Op: OpLeave, Ref: in.Ref}, *now)
	for n := range 1000 {
		if n == 10 { // or it would happen to come at the right moment
			*now += 123_000
			m.Step(&Command{Op: OpHeard}, *now)
		}
		*now += int64((m.Wake() + time.Microsecond - 1) / time.Microsecond)
		for _, e := range m.Step(&Command{Op: OpTick}, *now).Events {
			if e.Type != Admitted || e.Room != in.TokenEnd+Leeway {
				t.Errorf("%v at %v; the token and its leeway end at %v", e.Type, e.Room, in.TokenEnd+Leeway)
			}
			return
		}
	}
	t.Error("nobody was admitted")
}

// A max that is shortened ends sessions at once that are longer than it, whatever their idle.
func TestShorterMaxEndsAtOnce(t *testing.T) {
	c := testConfig(1)
	c.Session.Claim, c.Session.Idle, c.Session.Max = 0, Duration(5*time.Minute), Duration(30*time.Minute)
	m, now := newTest(t, c)
	in := m.Step(&Command{Op: OpEnter, NewID: testID(1)}, *now).View.Ref
	for range 650 {
		*now += 1_000_000
		m.Step(&Command{Op: OpRenew, Ref: in}, *now)
		m.Step(&Command{Op: OpTick}, *now)
	}
	c.Session.Max = Duration(6 * time.Minute)
	m.Step(&Command{Op: OpConfigure, Config: &c}, *now)
	*now += int64(m.Wake() / time.Microsecond)
	r := m.Step(&Command{Op: OpTick}, *now)
	if len(r.Events) != 1 || r.Events[0].Reason != ReasonMax {
		t.Errorf("%+v", r.Events)
	}
}
