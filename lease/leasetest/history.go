package leasetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ushergo/usher/lease"
)

// input is one call. fence is a resource's fence, or a worker's generation.
type input struct {
	op    string
	me    lease.Owner
	from  lease.Owner
	fence uint64
	text  string // cursor, or token
	beat  uint64
}

// output is its answer. lost: there was none.
type output struct {
	lost   bool
	ok     bool
	exists bool
	owner  lease.Owner
	fence  uint64
	text   string
	beat   uint64
	dead   bool
}

// history lets clients who lose answers work on one row, and looks for an order in which the machine would have said the same.
func (f *fixture) history(model porcupine.Model, rounds int, client func(ctx context.Context, store lease.Store, row string, k int, rng *rand.Rand, record func(in input, do func(ctx context.Context) (output, error)) (output, bool))) {
	stop := func() {}
	if f.Hurt != nil {
		stop = f.Hurt(f.T)
	}
	defer stop()
	lost := 0
	for round := range rounds {
		var mu sync.Mutex
		var ops []porcupine.Operation
		start := time.Now()
		var wg sync.WaitGroup
		for k := range 4 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(round), uint64(k)))
				store := []lease.Store{f.Store, f.Peer}[k%2]
				client(f.Context(), store, fmt.Sprint("h", round), k, rng, func(in input, do func(ctx context.Context) (output, error)) (output, bool) {
					ctx, cancel := context.WithCancel(f.Context())
					defer cancel()
					if rng.IntN(8) == 0 {
						go cancel() // the answer may be lost
					}
					call := time.Since(start).Nanoseconds()
					out, err := do(ctx)
					if err == nil && rng.IntN(10) == 0 {
						out, err = output{}, lease.ErrUnknown // it was done, and the answer is lost
					}
					op := porcupine.Operation{ClientId: k, Input: in, Call: call, Return: time.Since(start).Nanoseconds(), Output: out}
					mu.Lock()
					defer mu.Unlock()
					if err != nil { // done at any time from here on, or never; and twice where the client has asked again by itself
						op.Return, op.Output = int64(time.Hour), output{lost: true}
						op.ClientId = 1000 + len(ops)
						ops = append(ops, op)
						op.ClientId++
						lost++
					} else if again(in, out) {
						twin := op
						twin.Output = output{lost: true}
						twin.ClientId = 1000 + len(ops)
						ops = append(ops, twin)
					}
					ops = append(ops, op)
					return out, err == nil
				})
			})
		}
		wg.Wait()
		if res := porcupine.CheckOperationsTimeout(model, ops, 5*time.Second); res == porcupine.Illegal {
			for _, o := range ops {
				f.Logf("%d: %d..%d %+v → %+v", o.ClientId, o.Call, o.Return, o.Input, o.Output)
			}
			f.Fatalf("round %d: no order explains this history", round)
		}
	}
	f.Logf("%d answers were lost", lost)
}

// again says of which answers the engine may have asked a second time by itself, after the first answer was lost: what was
// done and then refused, or done, undone by somebody else, and done again.
func again(in input, out output) bool {
	return !out.ok || in.op == "delete" || in.op == "join" || in.op == "put"
}

// rowState is what the model knows of a row. vague: its fence is at least that, for the answer to a take was lost.
type rowState struct {
	exists bool
	owner  lease.Owner
	fence  uint64 // the floor, where it does not exist
	vague  bool
	cursor string
}

// machine is the machine in that state.
func (s rowState) machine() *lease.Machine {
	if !s.exists {
		return lease.NewMachine(s.fence)
	}
	m := lease.NewMachine(0)
	m.Restore(lease.Row{ID: "r", Desired: lease.Started, Rev: 1, Owner: s.owner, Fence: s.fence, Cursor: s.cursor})
	return m
}

func (s rowState) after(m *lease.Machine) rowState {
	for _, r := range m.Get([]string{"r"}) {
		return rowState{true, r.Owner, r.Fence, s.vague, r.Cursor}
	}
	return rowState{fence: m.Floor(), vague: true} // other rows raise the floor too
}

// saw compares a row that was answered.
func (s rowState) saw(o output) (rowState, bool) {
	if o.exists != s.exists {
		return s, false
	}
	if !s.exists {
		return s, true
	}
	if s.vague && o.fence >= s.fence {
		s.fence, s.vague = o.fence, false
	}
	return s, o.owner == s.owner && o.fence == s.fence && o.text == s.cursor
}

func rowModel() porcupine.Model {
	n := porcupine.NondeterministicModel{
		Init: func() []any { return []any{rowState{vague: true}} },
		Step: func(state, in, out any) []any {
			s, i, o := state.(rowState), in.(input), out.(output)
			m := s.machine()
			var ok bool
			next := s
			switch i.op {
			case "get":
			case "put":
				m.Put(lease.Put{ID: "r", Desired: lease.Started})
			case "delete":
				ok = m.Delete("r") || o.ok // it may have been there when this was asked
			case "take":
				t := m.Take(lease.Take{ID: "r", From: i.from, Fence: i.fence, To: i.me}, int64(o.fence))
				if ok = t.OK; ok && o.lost {
					next.vague = next.vague || t.Row.Fence != s.fence
				} else if ok && t.Row.Fence != s.fence {
					next.vague = false
				}
			case "release":
				ok = m.Release(lease.Release{ID: "r", Owner: i.me, Fence: i.fence})
			case "flush":
				ok = m.Flush(lease.Cursor{ID: "r", Owner: i.me, Fence: i.fence, Cursor: i.text})
			}
			next = next.after(m)
			if o.lost {
				if next == s {
					return []any{s}
				}
				return []any{s, next}
			}
			if i.op != "get" && i.op != "put" && ok != o.ok {
				return nil
			}
			if i.op == "get" || i.op == "put" || i.op == "take" {
				var same bool
				if next, same = next.saw(o); !same {
					return nil
				}
			}
			return []any{next}
		},
		Equal: func(a, b any) bool { return a == b },
	}
	return n.ToModel()
}

// testRowHistories: cases/lease 9, 13.
func testRowHistories(f *fixture) {
	f.history(rowModel(), 3, func(_ context.Context, store lease.Store, row string, k int, rng *rand.Rand, record func(input, func(context.Context) (output, error)) (output, bool)) {
		me := lease.Owner{Worker: fmt.Sprint("w", k), Generation: 1}
		last := output{}
		held := uint64(0)
		rowOut := func(ok bool, r lease.Row) output {
			return output{ok: ok, exists: r.ID != "", owner: r.Owner, fence: r.Fence, text: r.Cursor}
		}
		for n := range 8 {
			in := input{op: []string{"get", "put", "delete", "take", "take", "take", "release", "flush", "flush"}[rng.IntN(9)], me: me, text: fmt.Sprint(k, ".", n)}
			if n == 0 {
				in.op = "put"
			}
			switch in.op {
			case "take":
				in.from, in.fence = last.owner, last.fence
			case "release", "flush":
				in.fence = held
			}
			out, ok := record(in, func(ctx context.Context) (output, error) {
				switch in.op {
				case "put":
					r, err := store.Put(ctx, lease.Put{ID: row, Desired: lease.Started})
					return rowOut(true, r), err
				case "delete":
					ok, err := store.Delete(ctx, row)
					return output{ok: ok}, err
				case "take":
					t, err := store.Take(ctx, lease.Take{ID: row, From: in.from, Fence: in.fence, To: me})
					return rowOut(t.OK, t.Row), err
				case "release":
					ok, err := store.Release(ctx, lease.Release{ID: row, Owner: me, Fence: in.fence})
					return output{ok: ok}, err
				case "flush":
					ok, err := store.Flush(ctx, []lease.Cursor{{ID: row, Owner: me, Fence: in.fence, Cursor: in.text}})
					return output{ok: err == nil && ok[0]}, err
				}
				rows, err := store.Get(ctx, []string{row})
				if len(rows) == 0 {
					return output{}, err
				}
				return rowOut(true, rows[0]), err
			})
			if ok && (in.op == "get" || in.op == "put" || in.op == "take") {
				last = out
				if out.owner == me {
					held = out.fence
				}
			}
		}
	})
}

// workerState is what the model knows of a worker's row.
type workerState struct {
	row   lease.WorkerRow
	vague bool // its generation is at least that
	token string
}

func workerModel() porcupine.Model {
	n := porcupine.NondeterministicModel{
		Init: func() []any { return []any{workerState{}} },
		Step: func(state, in, out any) []any {
			s, i, o := state.(workerState), in.(input), out.(output)
			m := lease.NewMachine(0)
			if s.row.Worker != "" {
				m.RestoreWorker(s.row, s.token)
			}
			who := lease.Owner{Worker: "w", Generation: i.fence}
			next := s
			ok := true
			switch i.op {
			case "join":
				j := m.Join(lease.Join{Worker: "w", Token: i.text}, int64(o.fence))
				if ok = j.OK; ok {
					next.token = i.text
				}
				next.vague = s.vague && j.Owner == s.row.Owner || o.lost && j.Owner != s.row.Owner
			case "beat":
				ok = m.Beat(lease.Beat{Owner: who, Beat: i.beat})
			case "mark":
				ok = m.Mark(lease.Mark{Owner: who, Beat: i.beat})
			case "leave":
				m.Leave(who)
			}
			for _, w := range m.Workers() {
				next.row = w
			}
			if o.lost {
				if next == s {
					return []any{s}
				}
				return []any{s, next}
			}
			if ok != o.ok {
				return nil
			}
			if i.op == "join" || i.op == "get" {
				if next.vague && o.fence >= next.row.Generation {
					next.row.Generation, next.vague = o.fence, false
				}
				if o.fence != next.row.Generation {
					return nil
				}
			}
			if i.op == "get" && next.row.Worker != "" && (o.beat != next.row.Beat || o.dead != next.row.Dead) {
				return nil
			}
			return []any{next}
		},
		Equal: func(a, b any) bool { return a == b },
	}
	return n.ToModel()
}

// testWorkerHistories: a late beat and a death mark, one of them first.
func testWorkerHistories(f *fixture) {
	f.history(workerModel(), 3, func(_ context.Context, store lease.Store, row string, k int, rng *rand.Rand, record func(input, func(context.Context) (output, error)) (output, bool)) {
		gen, seen, beat := uint64(0), uint64(0), uint64(0)
		for n := range 8 {
			in := input{op: []string{"join", "beat", "beat", "beat", "mark", "mark", "get", "get", "leave"}[rng.IntN(9)], fence: gen, beat: seen}
			if n == 0 || gen == 0 && in.op != "get" {
				in.op = "join"
			}
			switch in.op {
			case "join":
				in.text = fmt.Sprint(k, ".", n/2)
			case "beat":
				beat++
				in.beat = beat*4 + uint64(k)
			}
			who := lease.Owner{Worker: row, Generation: in.fence}
			out, ok := record(in, func(ctx context.Context) (output, error) {
				switch in.op {
				case "join":
					j, err := store.Join(ctx, lease.Join{Worker: row, Token: in.text})
					return output{ok: j.OK, fence: j.Owner.Generation}, err
				case "beat":
					ok, err := store.Beat(ctx, lease.Beat{Owner: who, Beat: in.beat})
					return output{ok: ok}, err
				case "mark":
					ok, err := store.Mark(ctx, lease.Mark{Owner: who, Beat: in.beat})
					return output{ok: ok}, err
				case "leave":
					return output{ok: true}, store.Leave(ctx, who)
				}
				rows, err := store.Workers(ctx)
				for _, w := range rows {
					if w.Worker == row {
						return output{ok: true, fence: w.Generation, beat: w.Beat, dead: w.Dead}, err
					}
				}
				return output{ok: true}, err
			})
			if ok && (in.op == "join" || in.op == "get") && out.fence > 0 {
				gen, seen = out.fence, out.beat
			}
		}
	})
}
