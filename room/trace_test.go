package room

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

func testConfig(active int64) Config {
	c := DefaultConfig("r")
	c.Capacity.Active = active
	return c
}

func newTest(t testing.TB, c Config) (*Machine, *int64) {
	t.Helper()
	m, now := NewMachine(), int64(1_700_000_000_000_000)
	if r := m.Step(&Command{Op: OpConfigure, Config: &c, Seed: bytes.Repeat([]byte{7}, 32)}, now); r.Err != nil {
		t.Fatal(r.Err)
	}
	return m, &now
}

func testID(n uint64) (id ID) {
	copy(id[:], fmt.Sprintf("%016d", n))
	return id
}

func TestSmoke(t *testing.T) {
	m, now := newTest(t, testConfig(2))
	for i := uint64(1); i <= 5; i++ {
		r := m.Step(&Command{Op: OpEnter, NewID: testID(i)}, *now)
		t.Logf("%+v %v", r.View, r.Err)
	}
	r := m.Step(&Command{Op: OpLeave, Ref: Ref{1, testID(1)}}, *now)
	for _, e := range r.Events {
		t.Logf("%v %+v", e.Type, e)
	}
	*now += int64(time.Second / time.Microsecond)
	t.Log(m.Wake())
}

func BenchmarkMachine(b *testing.B) {
	const n = 1_000_000
	m, now := newTest(b, testConfig(1))
	for i := uint64(1); i <= n; i++ {
		m.Step(&Command{Op: OpEnter, NewID: testID(i), Request: [16]byte(testID(i))}, *now)
	}
	b.Run("enter", func(b *testing.B) {
		i := m.seq
		for b.Loop() {
			i++
			id := ID{byte(i), byte(i >> 8), byte(i >> 16), byte(i >> 24), 1}
			m.Step(&Command{Op: OpEnter, NewID: id, Request: [16]byte(id)}, *now)
		}
	})
	b.Run("place", func(b *testing.B) {
		i := uint64(1)
		for b.Loop() {
			i = i*6364136223846793005 + 1
			m.line.Before(i%n + 1)
		}
	})
	b.Run("status", func(b *testing.B) {
		i := uint64(1)
		for b.Loop() {
			i = i*6364136223846793005 + 1
			s := i%n + 1
			m.Step(&Command{Op: OpStatus, Ref: Ref{s, testID(s)}}, *now)
		}
	})
	b.Run("leave", func(b *testing.B) {
		s := uint64(2)
		for b.Loop() {
			m.Step(&Command{Op: OpLeave, Ref: Ref{s, testID(s)}}, *now)
			s++
		}
	})
}
