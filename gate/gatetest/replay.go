package gatetest

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ushergo/usher/gate"
)

// random makes a command on few ids and with leases so short that all that can happen does.
func random(rnd *rand.Rand, fences []uint64) *gate.Command {
	ms := func(upto int) time.Duration { return time.Duration(1+rnd.IntN(upto)) * time.Millisecond }
	c := &gate.Command{ID: id(rnd.IntN(40))}
	switch n := rnd.IntN(100); {
	case n < 45:
		c.Op, c.N, c.Lease, c.Idle = gate.OpAcquire, 1, ms(20), time.Hour
		if rnd.IntN(4) == 0 {
			c.N = 1 + rnd.IntN(5)
		}
		if rnd.IntN(2) == 0 {
			c.Permits = int64(1 + rnd.IntN(6))
		}
		if rnd.IntN(2) == 0 {
			c.Node, c.Patience = uint64(1+rnd.IntN(3)), ms(30)
		}
	case n < 75:
		c.Op = gate.OpRelease
	case n < 83:
		c.Op, c.Lease = gate.OpExtend, ms(20)
	case n < 88:
		c.Op, c.Permits = gate.OpSet, int64(rnd.IntN(8))
	case n < 92:
		c.Op, c.TTL, c.Verdict = gate.OpSettle, ms(6), fmt.Sprint("verdict ", n)
		c.Fence = 1
		if len(fences) > 0 {
			c.Fence = fences[rnd.IntN(len(fences))]
		}
	case n < 94:
		c.Op = gate.OpReopen
	case n < 95:
		c.Op = gate.OpDelete
	default:
		c.Op = gate.OpStatus
	}
	return c
}

// testReplay sends random commands to the store and to the machine, which is told the time at
// which the store decided: every answer must be the same.
func testReplay(f *fixture) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 5))
	f.Logf("seed %d", seed)
	m := gate.NewMachine(0)
	var fences []uint64
	seen := map[string]int{}
	missing := func() (list []string) {
		for _, what := range []string{"acquire: <nil>", "acquire: no permit is free", "acquire: key is settled", "acquire: permit was released",
			"acquire: permit has expired", "release: permit has expired", "extend: <nil>", "settle: <nil>", "settle: fence is too old to settle", "expired"} {
			if seen[what] == 0 {
				list = append(list, what)
			}
		}
		return list
	}
	deadline := time.Now().Add(20 * time.Second)
	for n := 0; n < 4000 || len(missing()) > 0; n++ {
		if time.Now().After(deadline) {
			f.Fatalf("after %d steps, never happened: %v", n, missing())
		}
		c := random(rnd, fences)
		got := f.do(c)
		want := m.Step(c, got.At)
		if got != want {
			f.Fatalf("step %d, %+v:\n got %+v\nwant %+v", n, c, got, want)
		}
		if got.Fence > 0 && c.Op != gate.OpStatus && got.Err == nil {
			if fences = append(fences, got.Fence); len(fences) > 20 {
				fences = fences[1:]
			}
		}
		seen[fmt.Sprintf("%s: %v", c.Op, got.Err)]++
		if got.Expired > 0 {
			seen["expired"]++
		}
	}
}
