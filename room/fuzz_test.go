package room

import (
	"bytes"
	"testing"
)

// FuzzDecodeEvent feeds junk to the event reader: it must not panic, and what it accepts must
// survive being written again.
func FuzzDecodeEvent(f *testing.F) {
	m, now := newTest(f, testConfig(1))
	add := func(r Result) {
		for i := range r.Events {
			f.Add(r.Events[i].Append(nil))
		}
	}
	c := testConfig(2)
	add(m.Step(&Command{Op: OpConfigure, Config: &c}, *now))
	add(m.Step(&Command{Op: OpEnter, NewID: testID(1), Request: [16]byte{1}}, *now))
	add(m.Step(&Command{Op: OpLeave, Ref: Ref{1, testID(1)}}, *now))
	add(m.Step(&Command{Op: OpState, State: StatePaused, Message: "x"}, *now))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, rest, err := DecodeEvent(b)
		if err != nil {
			return
		}
		if len(rest) >= len(b) {
			t.Fatal("an event of no bytes")
		}
		again := e.Append(nil)
		back, rest, err := DecodeEvent(again)
		if err != nil || len(rest) != 0 || !bytes.Equal(back.Append(nil), again) {
			t.Fatalf("%x was read, written as %x, and then not read: %v", b, again, err)
		}
		_ = e.Public("r")
	})
}
