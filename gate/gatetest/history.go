package gatetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ushergo/usher/gate"
)

// lossy loses requests and replies of what can be repeated by its id.
type lossy struct {
	gate.Store
	mu  sync.Mutex
	rnd *rand.Rand
}

var errLost = fmt.Errorf("%w: lost by the test", gate.ErrUnknown)

func (l *lossy) Do(ctx context.Context, key string, cmd *gate.Command) (gate.Result, error) {
	if cmd.Op != gate.OpAcquire && cmd.Op != gate.OpRelease {
		return l.Store.Do(ctx, key, cmd)
	}
	l.mu.Lock()
	n := l.rnd.IntN(10)
	l.mu.Unlock()
	if n == 0 {
		return gate.Result{}, errLost // the request
	}
	r, err := l.Store.Do(ctx, key, cmd)
	if n == 1 && err == nil {
		return gate.Result{}, errLost // the reply
	}
	return r, err
}

// model is a state of the machine as porcupine sees it: a list of commands that gives it.
// Leases are so long that time decides nothing, but fences go by the answers.
type model struct {
	commands []gate.Command
	times    []int64
}

func (s model) machine() *gate.Machine {
	m := gate.NewMachine(0)
	for i := range s.commands {
		m.Step(&s.commands[i], s.times[i])
	}
	return m
}

// step says whether the machine could have answered so.
func (s model) step(cmd gate.Command, out gate.Result) (bool, model) {
	m := s.machine()
	at := int64(1)
	if out.Err == nil && (cmd.Op == gate.OpAcquire || cmd.Op == gate.OpReopen) {
		at = int64(out.Fence) // a fence is the time, unless that would not be greater
	}
	was := m.Fence()
	want := m.Step(&cmd, at)
	next := model{append(s.commands[:len(s.commands):len(s.commands)], cmd), append(s.times[:len(s.times):len(s.times)], at)}
	switch {
	case want.Err != out.Err:
		return false, s
	case out.Err == nil && cmd.Op == gate.OpAcquire && want.Fence != out.Fence:
		return false, s
	case out.Err == nil && cmd.Op == gate.OpReopen && out.Fence <= was:
		return false, s
	case errors.Is(out.Err, gate.ErrSettled) && want.Verdict != out.Verdict:
		return false, s
	case cmd.Op == gate.OpStatus && (want.Free != out.Free || want.Limit != out.Limit || want.Verdict != out.Verdict):
		return false, s
	}
	return true, next
}

// testLinearizable runs clients side by side, with lost requests and replies that are settled by
// asking again with the same id, and asks porcupine whether one machine could have given their answers.
func testLinearizable(f *fixture) {
	const clients, steps = 4, 14
	for round := range 12 {
		key := fmt.Sprintf("%s.%d", f.key, round)
		l := &lossy{Store: f.s, rnd: rand.New(rand.NewPCG(rand.Uint64(), 1))}
		if _, err := f.s.Do(f.Context(), key, &gate.Command{Op: gate.OpSet, Permits: 2}); err != nil {
			f.Fatal(err)
		}
		var mu sync.Mutex
		var ops []porcupine.Operation
		start := time.Now()
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(rand.Uint64(), 2))
				var last gate.Command
				var fence uint64
				for n := range steps {
					cmd := gate.Command{Op: gate.OpAcquire, ID: id(c*1000 + n), N: 1 + rnd.IntN(2), Lease: time.Hour, Idle: time.Hour}
					switch rnd.IntN(10) {
					case 0, 1, 2, 3:
						cmd = gate.Command{Op: gate.OpRelease, ID: last.ID}
					case 4:
						cmd = gate.Command{Op: gate.OpStatus}
					case 5:
						cmd = gate.Command{Op: gate.OpSet, Permits: int64(rnd.IntN(4))}
					case 6:
						if fence > 0 {
							cmd = gate.Command{Op: gate.OpSettle, ID: last.ID, Fence: fence, Verdict: fmt.Sprint(c, n), TTL: time.Minute}
						}
					case 7:
						cmd = gate.Command{Op: gate.OpReopen}
					}
					call := time.Since(start)
					var out gate.Result
					for {
						var err error
						if out, err = l.Do(f.Context(), key, &cmd); err == nil {
							break
						}
						if !errors.Is(err, gate.ErrUnknown) {
							f.Errorf("%+v: %v", cmd, err)
							return
						}
					}
					if cmd.Op == gate.OpAcquire && out.Err == nil {
						last, fence = cmd, out.Fence
					}
					mu.Lock()
					ops = append(ops, porcupine.Operation{ClientId: c, Input: cmd, Call: int64(call), Output: out, Return: int64(time.Since(start))})
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		m := porcupine.Model{
			Init: func() any {
				set := gate.Command{Op: gate.OpSet, Permits: 2}
				return model{[]gate.Command{set}, []int64{0}}
			},
			Step: func(s, in, out any) (bool, any) { return s.(model).step(in.(gate.Command), out.(gate.Result)) },
			Equal: func(a, b any) bool {
				x, y := a.(model), b.(model)
				if len(x.commands) != len(y.commands) {
					return false
				}
				for i := range x.commands {
					if x.commands[i] != y.commands[i] || x.times[i] != y.times[i] {
						return false
					}
				}
				return true
			},
		}
		switch porcupine.CheckOperationsTimeout(m, ops, 20*time.Second) {
		case porcupine.Illegal:
			for _, op := range ops {
				f.Logf("client %d [%d %d] %+v -> %+v", op.ClientId, op.Call, op.Return, op.Input, op.Output)
			}
			f.Fatalf("round %d: no order of these commands gives these answers", round)
		case porcupine.Unknown:
			f.Logf("round %d: undecided within 20 s", round)
		}
	}
}
