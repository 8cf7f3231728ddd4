package affinity_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
)

// twinClaim is one granted claim; the twin never forgets any.
type twinClaim struct {
	affinity.Claim
	gen     uint64
	ready   bool
	session string
	until   int64
	cleared bool
}

// twin is the directory of one key as one would write it down: the claims that were granted, the last one counts.
type twin []*twinClaim

func (tw twin) live(now int64) *twinClaim {
	if len(tw) == 0 {
		return nil
	}
	if c := tw[len(tw)-1]; !c.cleared && now < c.until {
		return c
	}
	return nil
}

func (tw twin) row(now int64) affinity.Row {
	row := affinity.Row{At: time.UnixMicro(now).UTC()}
	if c := tw.live(now); c != nil {
		row.State, row.Owner, row.Addr, row.Session, row.Generation = affinity.Building, c.Owner, c.Addr, c.session, c.gen
		if c.ready {
			row.State = affinity.Ready
		}
		row.Left = time.Duration(c.until-now) * time.Microsecond
	}
	return row
}

// TestMachineTwin runs random commands on the machine and on lists that are read end to end.
func TestMachineTwin(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var m affinity.Space
	keys := map[string]twin{}
	now := int64(1_700_000_000_000_000)
	for step := range 50_000 {
		now += int64(rng.IntN(3)) * int64(rng.IntN(10_000_000))
		if rng.IntN(500) == 0 {
			m.Sweep(now, 1+rng.IntN(20))
		}
		key := fmt.Sprint("k", rng.IntN(5))
		tw := keys[key]
		owner := affinity.Identity{Instance: fmt.Sprint("i", rng.IntN(2)), Epoch: uint64(1 + rng.IntN(2))}
		gen := uint64(7)
		if len(tw) > 0 {
			gen = tw[max(0, len(tw)-1-rng.IntN(2))].gen
		}
		live := tw.live(now)
		switch rng.IntN(5) {
		case 0, 1:
			c := affinity.Claim{Key: key, Owner: owner, Addr: "a", Token: fmt.Sprint(rng.IntN(6)), Build: time.Duration(1+rng.IntN(20)) * time.Second}
			got := m.Claim(c, now)
			var last *twinClaim
			if len(tw) > 0 {
				last = tw[len(tw)-1]
			}
			same := last != nil && last.Token == c.Token && last.Owner == c.Owner
			want := affinity.Yours
			switch {
			case live != nil && !same && !(live.Owner.Instance == owner.Instance && live.Owner.Epoch < owner.Epoch):
				want = affinity.Theirs
			case live == nil && same && now < last.until+affinity.Lingering:
				want = affinity.Spent
			case live == nil || !same:
				if last != nil && got.Row.Generation <= last.gen {
					t.Fatalf("step %d: generation %d after %d", step, got.Row.Generation, last.gen)
				}
				tw = append(tw, &twinClaim{Claim: c, gen: got.Row.Generation, until: now + c.Build.Microseconds()})
				keys[key] = tw
			}
			if got.Verdict != want {
				t.Fatalf("step %d: %v, want %v", step, got, want)
			}
		case 2, 3:
			ttl := time.Duration(1+rng.IntN(20)) * time.Second
			it := affinity.Item{Key: key, Generation: gen, Ready: rng.IntN(2) == 0, Session: fmt.Sprint(step)}
			got := m.Refresh(affinity.Refresh{Owner: owner, TTL: ttl, Items: []affinity.Item{it}}, now).Held[0]
			want := live != nil && live.gen == gen && live.Owner == owner
			if got != want {
				t.Fatalf("step %d: held %v", step, got)
			}
			if want && it.Ready {
				live.ready, live.session = true, it.Session
			}
			if want && live.ready {
				live.until = now + ttl.Microseconds()
			}
		case 4:
			got := m.Clear(affinity.Clear{Key: key, Owner: owner, Generation: gen}, now).Cleared
			want := false
			if len(tw) > 0 {
				last := tw[len(tw)-1]
				if want = last.gen == gen && last.Owner == owner && (live != nil || last.cleared && now < last.until+affinity.Lingering); want && live != nil {
					last.cleared, last.until = true, now
				}
			}
			if got != want {
				t.Fatalf("step %d: cleared %v", step, got)
			}
		}
		for key, tw := range keys {
			if got, want := m.Get(key, now), tw.row(now); got != want {
				t.Fatalf("step %d: %q\n got %+v\nwant %+v", step, key, got, want)
			}
		}
	}
	m.Sweep(now+int64(2*time.Hour/time.Microsecond), 100)
	if m.Len() != 0 {
		t.Errorf("%d rows are kept for ever", m.Len())
	}
}
