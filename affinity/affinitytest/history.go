package affinitytest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ushergo/usher/affinity"
)

type input struct {
	op    string
	owner affinity.Identity
	token string
	gen   uint64
}

type output struct {
	known   bool // false: the answer was lost
	verdict affinity.Verdict
	owner   affinity.Identity
	gen     uint64
	state   affinity.State
	yes     bool
}

// linearizable lets clients who lose answers work on one key, and looks for an order in which the machine would have said
// the same. Nothing here expires. Generations are the store's: the model takes those that grow.
func linearizable(t *testing.T, c *client) { // cases/affinity 4
	for round := range 8 {
		key := fmt.Sprint("lin-", round)
		var mu sync.Mutex
		var history []porcupine.Operation
		gens := []uint64{1}
		start := time.Now()
		var wg sync.WaitGroup
		for k := range 5 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(round), uint64(k)))
				o := who(uint64(k % 3))
				for i := range 8 {
					mu.Lock()
					in := input{op: []string{"claim", "claim", "refresh", "clear", "get"}[rng.IntN(5)], owner: o, gen: gens[len(gens)-1], token: fmt.Sprint(k, "-", i/2)}
					mu.Unlock()
					ctx, cancel := context.WithCancel(t.Context())
					if rng.IntN(4) == 0 {
						go cancel() // the answer may be lost
					}
					call := time.Since(start)
					out, err := c.obey(ctx, key, in)
					cancel()
					op := porcupine.Operation{ClientId: k, Input: in, Call: call.Nanoseconds(), Return: time.Since(start).Nanoseconds(), Output: out}
					if err != nil { // done at any time from here on, or never
						op.Return, op.Output = int64(time.Hour), output{}
					}
					mu.Lock()
					if out.known && out.verdict == affinity.Yours {
						gens = append(gens, out.gen)
					}
					history = append(history, op)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if res := porcupine.CheckOperationsTimeout(model(), history, 20*time.Second); res == porcupine.Illegal {
			for _, o := range history {
				t.Logf("%d: %v..%v %+v → %+v", o.ClientId, o.Call, o.Return, o.Input, o.Output)
			}
			t.Fatal("the history is not linearizable")
		}
	}
}

func (c *client) obey(ctx context.Context, key string, in input) (output, error) {
	out := output{known: true}
	var err error
	switch in.op {
	case "claim":
		var got affinity.Claimed
		got, err = c.f.Store.Claim(ctx, affinity.Claim{Space: c.space, Key: key, Owner: in.owner, Token: in.token, Build: time.Hour})
		out.verdict, out.owner, out.gen, out.state = got.Verdict, got.Row.Owner, got.Row.Generation, got.Row.State
	case "refresh":
		var got affinity.Refreshed
		got, err = c.f.Store.Refresh(ctx, affinity.Refresh{Space: c.space, Owner: in.owner, TTL: time.Hour, Items: []affinity.Item{{Key: key, Generation: in.gen, Ready: true}}})
		out.yes = err == nil && got.Held[0]
	case "clear":
		var got affinity.Cleared
		got, err = c.f.Store.Clear(ctx, affinity.Clear{Space: c.space, Key: key, Owner: in.owner, Generation: in.gen})
		out.yes = got.Cleared
	default:
		var got affinity.Row
		got, err = c.f.Store.Get(ctx, c.space, key)
		out.owner, out.gen, out.state = got.Owner, got.Generation, got.State
	}
	if err != nil {
		return output{}, err
	}
	return out, nil
}

// model is the machine's rule for one key, with the generation as what was answered: a machine whose state can be
// compared. asTheMachine compares the rest.
func model() porcupine.Model {
	type st struct {
		state affinity.State
		owner affinity.Identity
		token string
		gen   uint64 // 0: not known, for the answer was lost
	}
	n := porcupine.NondeterministicModel{
		Init: func() []any { return []any{st{}} },
		Step: func(state, in, out any) []any {
			s, i, o := state.(st), in.(input), out.(output)
			sameGen := s.gen == i.gen || s.gen == 0
			switch i.op {
			case "claim":
				switch {
				case s.state != affinity.None && s.token == i.token && s.owner == i.owner: // asked again
					if !o.known {
						return []any{s}
					}
					if o.verdict != affinity.Yours || o.owner != s.owner || s.gen != 0 && o.gen != s.gen {
						return nil
					}
					s.gen = o.gen
					return []any{s}
				case s.state != affinity.None:
					if o.known && (o.verdict != affinity.Theirs || o.owner != s.owner || o.state != s.state || s.gen != 0 && o.gen != s.gen) {
						return nil
					}
					if o.known {
						s.gen = o.gen
					}
					return []any{s}
				case s.token == i.token && s.owner == i.owner:
					if o.known && o.verdict != affinity.Spent {
						return nil
					}
					return []any{s}
				}
				next := st{affinity.Building, i.owner, i.token, o.gen}
				if !o.known {
					return []any{s, next}
				}
				if o.verdict != affinity.Yours || o.gen <= s.gen {
					return nil
				}
				return []any{next}
			case "refresh", "clear":
				hit := s.owner == i.owner && sameGen && s.gen != 0
				maybe := s.owner == i.owner && s.gen == 0 && s.token != "" // who knows
				done := s
				if i.op == "refresh" {
					hit, maybe = hit && s.state != affinity.None, maybe && s.state != affinity.None
					done.state = affinity.Ready
				} else {
					done.state = affinity.None
				}
				if maybe {
					done.gen = i.gen
					switch {
					case !o.known:
						return []any{s, done}
					case o.yes:
						return []any{done}
					}
					return []any{s}
				}
				if o.known && o.yes != hit {
					return nil
				}
				if !hit {
					return []any{s}
				}
				if !o.known {
					return []any{s, done}
				}
				return []any{done}
			}
			if o.known && (o.state != s.state || s.state != affinity.None && (o.owner != s.owner || s.gen != 0 && o.gen != s.gen)) {
				return nil
			}
			if o.known && s.state != affinity.None {
				s.gen = o.gen
			}
			return []any{s}
		},
		Equal: func(a, b any) bool { return a == b },
	}
	return n.ToModel()
}
