// Package gatetest holds engines to the contract of gate.Store. Every engine runs the same
// suite; what an engine cannot do, it says in Abilities.
package gatetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/gate"
)

// Abilities say what an engine does beyond the contract.
type Abilities struct {
	// Restart closes a store and opens another on the same state, as after a stop. Nil: none to test.
	Restart func(t *testing.T, s gate.Store) gate.Store
	// Peer opens another store on the same keys, as another process has it. Nil: the same one.
	Peer func(t *testing.T, s gate.Store) gate.Store
}

func (a Abilities) peer(t *testing.T, s gate.Store) gate.Store {
	if a.Peer == nil {
		return s
	}
	return a.Peer(t, s)
}

// Run runs the suite. open returns a store; keys are prefixed with the test's name, so one
// that is not empty will do. The test's cleanup closes it.
func Run(t *testing.T, open func(t *testing.T) gate.Store, can Abilities) {
	tests := []struct {
		name string
		test func(f *fixture)
	}{
		{"Life", testLife},
		{"AllOrNothing", testAllOrNothing},
		{"Idempotence", testIdempotence},
		{"Expiry", testExpiry},
		{"Chunks", testChunks},
		{"Limits", testLimits},
		{"Settle", testSettle},
		{"Delete", testDelete},
		{"Idle", testIdle},
		{"Refused", testRefused},
		{"Overtakes", testOvertakes},
		{"Watch", testWatch},
		{"Replay", testReplay},
		{"Linearizable", testLinearizable},
		{"Restart", testRestart},
		{"Order", testOrder},
		{"Crash", testCrash},
		{"GivingUp", testGivingUp},
		{"DoneContext", testDoneContext},
		{"Raise", testRaise},
		{"Verdict", testVerdict},
		{"Unheard", testUnheard},
		{"LostReplies", testLostReplies},
		{"Storm", testStorm},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "Restart" && can.Restart == nil {
				t.Skip("this engine has nothing to restart")
			}
			var b strings.Builder
			for _, c := range t.Name() {
				if c == '/' || c == '#' {
					c = '.'
				}
				b.WriteRune(c)
			}
			tt.test(&fixture{T: t, s: open(t), key: fmt.Sprintf("%s.%d", b.String(), time.Now().UnixNano()), can: can})
		})
	}
}

type fixture struct {
	*testing.T
	s   gate.Store
	key string
	can Abilities
}

func (f *fixture) do(cmd *gate.Command) gate.Result {
	f.Helper()
	r, err := f.s.Do(f.Context(), f.key, cmd)
	if err != nil {
		f.Fatalf("%+v: %v", cmd, err)
	}
	return r
}

// want obeys a command that has to be answered with err; nil: succeed.
func (f *fixture) want(err error, cmd *gate.Command) gate.Result {
	f.Helper()
	r := f.do(cmd)
	if !errors.Is(r.Err, err) {
		f.Fatalf("%s %v: answered %v, want %v", cmd.Op, cmd.ID, r.Err, err)
	}
	return r
}

// counts fails unless the key has that many permits in all and free.
func (f *fixture) counts(limit, free int64) {
	f.Helper()
	if r := f.do(&gate.Command{Op: gate.OpStatus}); r.Limit != limit || r.Free != free || r.Set != (limit > 0) {
		f.Fatalf("set %v, limit %d, free %d; want %d, %d", r.Set, r.Limit, r.Free, limit, free)
	}
}

func (f *fixture) set(n int64) { f.Helper(); f.want(nil, &gate.Command{Op: gate.OpSet, Permits: n}) }

func id(n int) (id gate.ID) {
	binary.BigEndian.PutUint64(id[4:], uint64(n)+1)
	return id
}

func acquire(n int) *gate.Command {
	return &gate.Command{Op: gate.OpAcquire, ID: id(n), N: 1, Lease: time.Hour}
}

func release(n int) *gate.Command { return &gate.Command{Op: gate.OpRelease, ID: id(n)} }

// eventually waits until ok says so.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		time.Sleep(time.Millisecond) // between two questions, not instead of one
	}
}

// passed waits until the store's own clock is past a permit's end.
func (f *fixture) passed(expires int64) {
	f.Helper()
	eventually(f.T, "the lease ends", func() bool {
		r, err := f.s.Do(f.Context(), f.key+".clock", &gate.Command{Op: gate.OpStatus})
		return err == nil && r.At/1000 >= expires
	})
}

func testLife(f *fixture) {
	f.want(gate.ErrNotSet, acquire(1))
	f.set(2)
	a := f.want(nil, acquire(1))
	b := f.want(nil, acquire(2))
	if a.Fence == 0 || b.Fence <= a.Fence {
		f.Errorf("fences %d, %d do not grow", a.Fence, b.Fence)
	}
	if a.N != 1 || a.Again || a.Left() <= 59*time.Minute || a.Left() > time.Hour {
		f.Errorf("%+v", a)
	}
	full := f.want(gate.ErrFull, acquire(3))
	if full.Next <= 59*time.Minute || full.Next > time.Hour {
		f.Errorf("the next permit expires in %v", full.Next)
	}
	f.counts(2, 0)
	if r := f.want(nil, release(1)); !r.Wake || r.Free != 1 {
		f.Errorf("%+v", r)
	}
	f.want(nil, acquire(3))
	if r := f.want(nil, &gate.Command{Op: gate.OpExtend, ID: id(3), Lease: 2 * time.Hour}); r.Left() <= time.Hour || r.Fence <= b.Fence {
		f.Errorf("%+v", r)
	}
	f.want(nil, release(2))
	f.want(nil, release(3))
	f.counts(2, 2)
	f.want(gate.ErrExpired, release(99))
	f.want(gate.ErrExpired, &gate.Command{Op: gate.OpExtend, ID: id(99), Lease: time.Hour})
	f.want(gate.ErrReleased, &gate.Command{Op: gate.OpExtend, ID: id(3), Lease: time.Hour})
	f.counts(2, 2)
}

func testAllOrNothing(f *fixture) {
	f.set(5)
	three := func(n int) *gate.Command { c := acquire(n); c.N = 3; return c }
	r := f.want(nil, three(1))
	if r.N != 3 {
		f.Errorf("%+v", r)
	}
	f.want(gate.ErrFull, three(2))
	f.counts(5, 2)
	if again := f.want(nil, three(1)); !again.Again || again.Fence != r.Fence || again.N != 3 || again.Expires != r.Expires {
		f.Errorf("%+v, want %+v again", again, r)
	}
	f.counts(5, 2)
	if r := f.want(nil, &gate.Command{Op: gate.OpExtend, ID: id(1), Lease: 3 * time.Hour}); r.N != 3 {
		f.Errorf("extended %d", r.N)
	}
	f.want(nil, release(1)) // by the first id alone
	f.counts(5, 5)
	f.want(nil, three(3))
}

func testIdempotence(f *fixture) { // cases/gate 6
	f.set(1)
	a := f.want(nil, acquire(1))
	again := f.want(nil, acquire(1))
	if !again.Again || again.Fence != a.Fence || again.Expires != a.Expires {
		f.Errorf("%+v, want %+v again", again, a)
	}
	f.counts(1, 0)
	f.want(nil, release(1))
	f.want(nil, release(1)) // the first answer was lost
	f.counts(1, 1)
	f.want(gate.ErrReleased, acquire(1))
	f.counts(1, 1)
}

func testExpiry(f *fixture) { // cases/gate 2
	f.set(1)
	short := acquire(1)
	short.Lease = 30 * time.Millisecond
	a := f.want(nil, short)
	f.passed(a.Expires)
	f.want(gate.ErrExpired, &gate.Command{Op: gate.OpExtend, ID: id(1), Lease: time.Hour})
	b := f.want(nil, acquire(2))
	if b.Fence <= a.Fence {
		f.Error("the fence went back")
	}
	f.want(gate.ErrExpired, release(1))
	f.counts(1, 0)
	f.want(nil, release(2))
	f.want(gate.ErrExpired, release(1))
	f.counts(1, 1)

	long := acquire(3)
	long.Lease = time.Second
	c := f.want(nil, long)
	f.passed(c.Expires)
	f.want(gate.ErrExpired, long) // known for one lease yet, and not granted anew
	f.counts(1, 1)
}

func testChunks(f *fixture) { // cases/gate 4
	const all = 8000
	f.set(all)
	var last int64
	for i := range all / 500 {
		c := acquire(i)
		c.N, c.Lease = 500, 200*time.Millisecond
		last = max(last, f.do(c).Expires)
	}
	f.passed(last)
	expired, calls := 0, 0
	for more := true; more; calls++ {
		r := f.do(&gate.Command{Op: gate.OpStatus})
		if r.Expired > 2*gate.MaxMoves {
			f.Fatalf("one call took %d back", r.Expired)
		}
		expired, more = expired+r.Expired, r.More
	}
	f.counts(all, all)
	f.Logf("%d taken back in %d calls", expired, calls)
}

func testLimits(f *fixture) { // cases/gate 3
	f.set(3)
	for n := range 3 {
		f.want(nil, acquire(n))
	}
	if r := f.do(&gate.Command{Op: gate.OpSet, Permits: 1}); r.Free != -2 || r.Limit != 1 {
		f.Errorf("%+v", r)
	}
	f.want(gate.ErrFull, acquire(10))
	if r := f.want(nil, release(0)); r.Wake {
		f.Error("woke for a permit that is not free")
	}
	f.want(nil, release(1))
	f.want(gate.ErrFull, acquire(10))
	f.counts(1, 0)
	f.want(nil, release(2))
	f.want(nil, acquire(10))
	if r := f.do(&gate.Command{Op: gate.OpSet, Permits: 2}); !r.Wake || r.Free != 1 {
		f.Errorf("%+v", r)
	}
	f.want(nil, acquire(11))
	f.want(nil, &gate.Command{Op: gate.OpSet, Permits: 0})
	f.want(nil, release(10))
	f.want(gate.ErrFull, acquire(12)) // set to none is set
}

func testSettle(f *fixture) {
	f.set(2)
	a, b := f.want(nil, acquire(1)), f.want(nil, acquire(2))
	settle := func(n int, fence uint64, v string) *gate.Command {
		return &gate.Command{Op: gate.OpSettle, ID: id(n), Fence: fence, Verdict: v, TTL: time.Minute}
	}
	if r := f.want(nil, settle(1, a.Fence, "taken\x00 by 1 ü")); !r.Wake {
		f.Error("those who wait were not woken")
	}
	s := f.want(gate.ErrSettled, acquire(3))
	if s.Verdict != "taken\x00 by 1 ü" || s.Fence != a.Fence || s.Until <= s.At/1000 {
		f.Errorf("%+v", s)
	}
	if r := f.want(nil, acquire(2)); !r.Again { // a holder's repeat is not a new try
		f.Errorf("%+v", r)
	}
	if r := f.do(&gate.Command{Op: gate.OpStatus}); r.Verdict != s.Verdict || r.Fence != a.Fence {
		f.Errorf("%+v", r)
	}
	f.want(nil, release(1))
	f.want(nil, settle(1, a.Fence, "taken by 1")) // after the permit's end too
	f.want(gate.ErrStale, settle(2, a.Fence, "with another's fence"))
	f.want(gate.ErrStale, settle(9, b.Fence+1<<40, "with a fence never drawn"))

	r := f.want(nil, &gate.Command{Op: gate.OpReopen})
	if r.Fence <= b.Fence || !r.Wake {
		f.Errorf("%+v after fence %d", r, b.Fence)
	}
	f.want(gate.ErrStale, settle(2, b.Fence, "too late"))
	c := f.want(nil, acquire(3))
	f.want(nil, settle(3, c.Fence, ""))
	f.want(gate.ErrSettled, acquire(4)) // an empty verdict is one

	f.want(nil, &gate.Command{Op: gate.OpReopen})
	f.want(nil, release(3))
	d := f.want(nil, acquire(5))
	short := settle(5, d.Fence, "short")
	short.TTL = 20 * time.Millisecond
	r = f.want(nil, short)
	f.passed(r.Until)
	f.want(gate.ErrFull, acquire(6)) // 2 and 5 hold it: full, not settled
	f.want(nil, release(2))
	f.want(nil, acquire(7))
}

func testDelete(f *fixture) {
	f.set(2)
	a := f.want(nil, acquire(1))
	f.want(nil, &gate.Command{Op: gate.OpDelete})
	f.counts(0, 0)
	f.want(gate.ErrNotSet, acquire(2))
	f.want(gate.ErrExpired, acquire(1)) // a spent id stays so
	f.want(gate.ErrExpired, release(1))
	f.want(gate.ErrStale, &gate.Command{Op: gate.OpSettle, ID: id(1), Fence: a.Fence, Verdict: "x", TTL: time.Second})
	f.set(1)
	if b := f.want(nil, acquire(2)); b.Fence <= a.Fence {
		f.Errorf("fence %d after %d", b.Fence, a.Fence)
	}
	f.want(gate.ErrExpired, release(1))
	f.counts(1, 0)
}

func testIdle(f *fixture) { // a key made by an acquire
	c := acquire(1)
	c.Permits, c.Idle = 2, time.Hour
	f.want(nil, c)
	f.counts(2, 1)
	c = acquire(2)
	c.Permits, c.Idle = 7, time.Hour
	f.want(nil, c)
	f.counts(2, 0) // what it is stays
}

func testRefused(f *fixture) {
	for _, key := range []string{"", "a b", "usher:x", "{a}", "ü", strings.Repeat("x", 129), "a\n", "a*"} {
		if _, err := f.s.Do(f.Context(), key, &gate.Command{Op: gate.OpStatus}); !errors.Is(err, gate.ErrBadRequest) {
			f.Errorf("key %q: %v", key, err)
		}
		if err := f.s.Watch(f.Context(), key, func() {}); !errors.Is(err, gate.ErrBadRequest) {
			f.Errorf("watch key %q: %v", key, err)
		}
	}
	for _, cmd := range []*gate.Command{
		{Op: gate.OpAcquire, N: 0, Lease: time.Second},
		{Op: gate.OpAcquire, N: gate.MaxPermits + 1, Lease: time.Second},
		{Op: gate.OpAcquire, N: 1},
		{Op: gate.OpAcquire, N: 1, Lease: gate.MaxLease + 1},
		{Op: gate.OpAcquire, N: 1, Lease: time.Second, Permits: -1},
		{Op: gate.OpExtend, Lease: -time.Second},
		{Op: gate.OpSet, Permits: -1},
		{Op: gate.OpSet, Permits: gate.MaxLimit + 1},
		{Op: gate.OpSettle, Fence: 1, TTL: time.Second, Verdict: strings.Repeat("x", gate.MaxVerdict+1)},
		{Op: gate.OpSettle, Fence: 1, TTL: gate.MaxTTL + time.Second},
		{Op: gate.OpSettle, Fence: 0, TTL: time.Second},
		{Op: 99},
	} {
		if _, err := f.s.Do(f.Context(), f.key, cmd); !errors.Is(err, gate.ErrBadRequest) {
			f.Errorf("%+v: %v", cmd, err)
		}
	}
	f.counts(0, 0)
}

func testOvertakes(f *fixture) { // cases/gate 10
	f.set(1)
	take := func(n int, node uint64) *gate.Command {
		c := acquire(n)
		c.Node, c.Patience = node, time.Minute
		return c
	}
	f.want(nil, take(0, 1))
	f.want(gate.ErrFull, take(1, 2)) // node 2 waits from here on
	f.want(nil, release(0))
	n := 10
	for f.do(take(n, 1)).Err == nil {
		f.want(nil, release(n))
		if n++; n > 10+gate.MaxOvertakes {
			f.Fatalf("node 2 was overtaken %d times", n-10)
		}
	}
	f.want(gate.ErrFull, take(99, 3))
	f.want(nil, take(1, 2))
	f.want(nil, release(1))
	f.want(nil, take(100, 1)) // and the promise is kept
	if n-10 != gate.MaxOvertakes {
		f.Errorf("overtaken %d times, not %d", n-10, gate.MaxOvertakes)
	}
}

func testWatch(f *fixture) {
	woken := make(chan struct{}, 100)
	other := f.can.peer(f.T, f.s)
	if err := other.Watch(f.Context(), f.key, func() { woken <- struct{}{} }); err != nil {
		f.Fatal(err)
	}
	heard := func(what string) {
		f.Helper()
		select {
		case <-woken:
		case <-time.After(30 * time.Second):
			f.Fatalf("%s: not woken", what)
		}
	}
	f.set(1)
	heard("set")
	a := f.want(nil, acquire(1))
	f.want(nil, release(1))
	heard("release")
	f.want(nil, &gate.Command{Op: gate.OpSettle, ID: id(1), Fence: a.Fence, Verdict: "x", TTL: time.Second})
	heard("settle")
	f.want(nil, &gate.Command{Op: gate.OpReopen})
	heard("reopen")
}

func testRestart(f *fixture) {
	f.set(2)
	a := f.want(nil, acquire(1))
	auto := f.key + ".auto"
	c := acquire(1)
	c.Permits, c.Idle = 2, time.Hour
	b, err := f.s.Do(f.Context(), auto, c)
	if err != nil || b.Err != nil {
		f.Fatal(err, b.Err)
	}
	f.s = f.can.Restart(f.T, f.s)
	if r := f.want(nil, &gate.Command{Op: gate.OpStatus}); r.Limit != 2 {
		f.Errorf("limit %d, want 2", r.Limit)
	}
	if r := f.want(nil, acquire(2)); r.Fence <= a.Fence {
		f.Errorf("fence %d after %d", r.Fence, a.Fence)
	}
	c.ID = id(3)
	c.Permits = 5
	if r, err := f.s.Do(f.Context(), auto, c); err != nil || r.Err != nil || r.Fence <= b.Fence {
		f.Errorf("%v, %v, fence %d after %d", err, r.Err, r.Fence, b.Fence)
	}
	f.want(nil, &gate.Command{Op: gate.OpDelete})
	f.s = f.can.Restart(f.T, f.s)
	f.counts(0, 0)
}
