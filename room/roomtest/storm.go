package roomtest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ushergo/usher/room"
)

func testFollow(t *testing.T, s room.Store, can Abilities) {
	f := newFixture(t, s, Config("follow", 2))
	for i := range 10 {
		f.must(enter(i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	followers := make([]*follower, 5)
	for i := range followers {
		followers[i] = &follower{}
		wg.Go(func() { _ = s.Follow(ctx, f.room, followers[i]) })
	}
	parallel(8, func(k int) { // events before, while and after they come
		for i := range 50 {
			r, err := f.do(enter(100 + 50*k + i))
			if err != nil || r.Err != nil {
				t.Error(r.Err, err)
			}
			if can.Sync {
				for _, fl := range followers {
					fl.mu.Lock()
					if fl.mirror != nil && fl.mirror.Cursor.Before(r.Cursor) {
						t.Errorf("answered %v, a follower is at %v", r.Cursor, fl.mirror.Cursor)
					}
					fl.mu.Unlock()
				}
			}
		}
	})
	for _, fl := range followers {
		eventually(t, "a follower has everything", func() bool { return fl.summary().Waiting == 408 })
		fl.mu.Lock()
		if fl.bad != nil {
			t.Error(fl.bad)
		}
		for seq := uint64(3); seq <= 410; seq++ {
			if got := fl.mirror.Line.Before(seq); got != int(seq-3) {
				t.Fatalf("%d before %d", got, seq)
			}
		}
		fl.mu.Unlock()
	}
	cancel()
	wg.Wait()
}

// testStorm lets many clients do everything at once and audits the log that comes of it.
func testStorm(t *testing.T, s room.Store, _ Abilities) {
	c := Config("storm", 7)
	c.Capacity.RatePerMinute = 6000
	c.Session.Claim, c.Queue.Grace = room.Duration(time.Second), room.Duration(2*time.Second)
	f := newFixture(t, s, c)
	var mu sync.Mutex
	answered := map[room.Ref]bool{}
	parallel(16, func(k int) {
		rng := rand.New(rand.NewPCG(uint64(k), 1))
		var refs []room.Ref
		for i := range 150 {
			var cmd *room.Command
			switch pick := rng.IntN(10); {
			case pick < 5 || len(refs) == 0:
				cmd = enter(10_000*k + i)
			default:
				op := []room.Op{room.OpStatus, room.OpClaim, room.OpRenew, room.OpLeave, room.OpLeave}[pick-5]
				cmd = &room.Command{Op: op, Ref: refs[rng.IntN(len(refs))]}
			}
			if k == 0 && i%40 == 39 {
				c := c
				c.Capacity.Active = int64(rng.IntN(12)) + 1
				cmd = &room.Command{Op: room.OpConfigure, Config: &c}
			}
			r, err := f.do(cmd)
			if err != nil {
				t.Error(err)
				return
			}
			if r.View.Created {
				refs = append(refs, r.View.Ref)
				mu.Lock()
				answered[r.View.Ref] = true
				mu.Unlock()
			}
		}
	})
	events := f.log()
	if err := Audit(events); err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Type == room.Entered {
			delete(answered, e.Ref)
		}
	}
	if len(answered) > 0 {
		t.Errorf("%d answered enters are not in the log", len(answered))
	}
}

// testLinearizable checks histories of concurrent clients, some of whom lose their answers,
// with the machine itself as the model. Nothing in this room depends on the time.
func testLinearizable(t *testing.T, s room.Store, _ Abilities) {
	for round := range 6 {
		c := Config(fmt.Sprintf("lin-%d", round), 2)
		newFixture(t, s, c)
		history := History(t, []room.Store{s}, c, uint64(round))
		if res := Check(c, history, 30*time.Second); res == porcupine.Illegal {
			for _, o := range history {
				t.Logf("%d: %v..%v %v person %d → %+v", o.ClientId, o.Call, o.Return, o.Input.(input).op, o.Input.(input).person, o.Output)
			}
			t.Fatal("the history is not linearizable")
		}
	}
}

// History has five clients enter, leave and ask at once, through stores of one engine in turn, and records what they saw. The
// room exists, has a configuration by Config, and is empty. Some give up before they are answered: their outcome is unknown.
func History(t *testing.T, stores []room.Store, c room.Config, seed uint64) (history []porcupine.Operation) {
	var mu sync.Mutex
	start := time.Now()
	parallel(5, func(k int) {
		rng := rand.New(rand.NewPCG(seed, uint64(k)))
		for range 8 {
			person := rng.IntN(6)
			in := input{op: room.OpEnter, person: person}
			if rng.IntN(2) == 0 {
				in.op = []room.Op{room.OpLeave, room.OpStatus}[rng.IntN(2)]
			}
			cmd := enter(person)
			if in.op != room.OpEnter {
				mu.Lock()
				var ref room.Ref
				for _, o := range history { // somebody was told
					if out := o.Output.(output); o.Input.(input).person == person && o.Input.(input).op == room.OpEnter && out.known {
						ref = out.view.Ref
					}
				}
				mu.Unlock()
				if ref.Seq == 0 {
					continue
				}
				cmd = &room.Command{Op: in.op, Ref: ref}
			}
			ctx, cancel := context.WithCancel(t.Context())
			if rng.IntN(4) == 0 {
				go cancel() // the answer may be lost
			}
			in.cmd = *cmd
			call := time.Since(start)
			r, err := stores[rng.IntN(len(stores))].Do(ctx, c.ID, cmd)
			cancel()
			op := porcupine.Operation{ClientId: k, Input: in, Call: call.Nanoseconds(), Return: time.Since(start).Nanoseconds(), Output: output{err == nil, r.View, r.Err}}
			if err != nil { // done at any time from here on, or never
				op.Return = int64(time.Hour)
			}
			mu.Lock()
			history = append(history, op)
			mu.Unlock()
		}
	})
	return history
}

// Check asks whether the machine could have given those answers in some order.
func Check(c room.Config, history []porcupine.Operation, patience time.Duration) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(model(c), history, patience)
}

// Known says whether an operation of History was answered.
func Known(o porcupine.Operation) bool { return o.Output.(output).known }

type input struct {
	op     room.Op
	person int
	cmd    room.Command
}

type output struct {
	known bool
	view  room.View
	err   error
}

// model is the machine; its state between two steps is its snapshot.
func model(c room.Config) porcupine.Model {
	save := func(m *room.Machine) string {
		var b bytes.Buffer
		if err := m.Save(&b); err != nil {
			panic(err)
		}
		return b.String()
	}
	const now = 1_700_000_000_000_000
	n := porcupine.NondeterministicModel{
		Init: func() []any {
			m := room.NewMachine()
			m.Step(&room.Command{Op: room.OpConfigure, Config: &c, Seed: seed()}, now)
			return []any{save(m)}
		},
		Step: func(state, in, out any) []any {
			m, err := room.Load(bytes.NewReader([]byte(state.(string))))
			if err != nil {
				panic(err)
			}
			cmd, got := in.(input).cmd, out.(output)
			r := m.Step(&cmd, now)
			if !got.known { // obeyed, or never
				return []any{state, save(m)}
			}
			v := got.view
			if r.View.Ref != v.Ref || r.View.State != v.State || r.View.Created != v.Created || r.View.Reason != v.Reason || fmt.Sprint(r.Err) != fmt.Sprint(got.err) {
				return nil
			}
			return []any{save(m)}
		},
		Equal: func(a, b any) bool { return a == b },
	}
	return n.ToModel()
}
