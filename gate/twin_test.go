package gate_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ushergo/usher/gate"
)

// twin is the machine as a beginner would write it: a list of everything, walked each time.
type twin struct {
	set      bool
	limit    int64
	all      []*twinPermit
	fence    uint64
	reopened uint64
	settled  string
	until    int64
}

type twinPermit struct {
	id              gate.ID
	of              gate.ID // the acquire's first id
	n               int
	fence           uint64
	expires, forget int64
	state           string // held, released, expired
}

func (w *twin) held() (n int64) {
	for _, p := range w.all {
		if p.state == "held" {
			n++
		}
	}
	return n
}

func (w *twin) group(id gate.ID) (ps []*twinPermit) {
	for _, p := range w.all {
		if p.of == id {
			ps = append(ps, p)
		}
	}
	return ps
}

// step gives what a caller cares about. Fewer than MaxMoves permits expire at once here.
func (w *twin) step(c *gate.Command, us int64) (fence uint64, expired int, err error) {
	ms := us / 1000
	for _, p := range w.all {
		if p.state == "held" && p.expires <= ms {
			p.state = "expired"
			expired++
		}
	}
	w.all = slices.DeleteFunc(w.all, func(p *twinPermit) bool { return p.forget <= ms })
	draw := func() uint64 {
		w.fence = max(w.fence+1, uint64(us))
		return w.fence
	}
	group := w.group(c.ID)
	switch c.Op {
	case gate.OpAcquire:
		if len(group) > 0 {
			switch group[0].state {
			case "held":
				return group[0].fence, expired, nil
			case "released":
				return 0, expired, gate.ErrReleased
			}
			return 0, expired, gate.ErrExpired
		}
		if w.until > ms {
			return 0, expired, gate.ErrSettled
		}
		if !w.set {
			if c.Permits == 0 {
				return 0, expired, gate.ErrNotSet
			}
			w.set, w.limit = true, c.Permits
		}
		if w.limit-w.held() < int64(c.N) {
			return 0, expired, gate.ErrFull
		}
		f := draw()
		for _, id := range c.ID.Members(c.N) {
			end := ms + c.Lease.Milliseconds()
			w.all = append(w.all, &twinPermit{id, c.ID, c.N, f, end, end + c.Lease.Milliseconds(), "held"})
		}
		return f, expired, nil
	case gate.OpRelease:
		if len(group) == 0 {
			return 0, expired, gate.ErrExpired
		}
		for _, p := range group {
			if p.state == "expired" {
				return 0, expired, gate.ErrExpired
			}
			if p.state == "held" { // else it is a repeat
				p.state, p.forget = "released", ms+p.forget-p.expires
			}
		}
	case gate.OpExtend:
		if len(group) == 0 {
			return 0, expired, gate.ErrExpired
		}
		switch group[0].state {
		case "released":
			return 0, expired, gate.ErrReleased
		case "expired":
			return 0, expired, gate.ErrExpired
		}
		for _, p := range group {
			p.expires = ms + c.Lease.Milliseconds()
			p.forget = p.expires + c.Lease.Milliseconds()
		}
		return group[0].fence, expired, nil
	case gate.OpSettle:
		if c.Fence < w.reopened || c.Fence > w.fence || len(group) > 0 && group[0].fence != c.Fence {
			return 0, expired, gate.ErrStale
		}
		w.settled, w.until = c.Verdict, ms+c.TTL.Milliseconds()
	case gate.OpReopen:
		w.reopened, w.until = draw(), 0
		return w.reopened, expired, nil
	case gate.OpSet:
		w.set, w.limit = true, c.Permits
	case gate.OpDelete:
		for _, p := range w.all {
			if p.state == "held" {
				p.state = "expired"
			}
		}
		*w = twin{all: w.all, fence: w.fence, reopened: w.fence + 1}
	}
	return 0, expired, nil
}

func TestMachineAgainstTwin(t *testing.T) {
	for round := range 300 {
		rnd := rand.New(rand.NewPCG(uint64(round), 11))
		m, w := gate.NewMachine(0), &twin{reopened: 1}
		now := int64(1_000_000_000)
		var fences []uint64
		for n := range 300 {
			now += rnd.Int64N(3000)
			ms := func(upto int) time.Duration { return time.Duration(1+rnd.IntN(upto)) * time.Millisecond }
			var id gate.ID
			id[0], id[15] = byte(rnd.IntN(30)), 1
			c := &gate.Command{ID: id}
			switch x := rnd.IntN(20); {
			case x < 9:
				c.Op, c.N, c.Lease, c.Permits = gate.OpAcquire, 1+rnd.IntN(3), ms(40), int64(rnd.IntN(5))
			case x < 14:
				c.Op = gate.OpRelease
			case x < 16:
				c.Op, c.Lease = gate.OpExtend, ms(40)
			case x < 17:
				c.Op, c.TTL, c.Verdict, c.Fence = gate.OpSettle, ms(5), "v", 1
				if len(fences) > 0 {
					c.Fence = fences[rnd.IntN(len(fences))]
				}
			case x < 18:
				c.Op, c.Permits = gate.OpSet, int64(rnd.IntN(6))
			case rnd.IntN(10) == 0:
				c.Op = gate.OpDelete
			case rnd.IntN(4) == 0:
				c.Op = gate.OpReopen
			}
			got := m.Step(c, now)
			fence, expired, err := w.step(c, now)
			if got.Err != err || got.Expired != expired || got.Set != w.set || got.Limit != w.limit || got.Held() != w.held() ||
				(c.Op != gate.OpStatus && c.Op != gate.OpSettle && err == nil && got.Fence != fence) {
				t.Fatalf("round %d, step %d at %d: %+v\n got %+v\nwant %v, fence %d, expired %d, limit %d, held %d", round, n, now, c, got, err, fence, expired, w.limit, w.held())
			}
			if got.Fence > 0 && got.Err == nil {
				fences = append(fences, got.Fence)
			}
			if got.Err == nil && c.Op == gate.OpAcquire && !got.Again && got.Free < 0 {
				t.Fatalf("round %d, step %d: granted beyond the limit: %+v", round, n, got)
			}
		}
	}
}

func TestMembersDiffer(t *testing.T) {
	a, b := gate.ID{1}.Members(500), gate.ID{2}.Members(500)
	all := append(slices.Clone(a), b...)
	slices.SortFunc(all, func(x, y gate.ID) int { return bytes.Compare(x[:], y[:]) })
	if n := len(slices.Compact(all)); n != 1000 {
		t.Errorf("%d of 1000 differ", n)
	}
	if a[0] != (gate.ID{1}) || !slices.Equal(a[:3], gate.ID{1}.Members(3)) {
		t.Error("members depend on how many there are")
	}
}

// 100,000 held permits make nothing slower: figures, run with -bench.
func BenchmarkMachine(b *testing.B) {
	for _, held := range []int{0, 100_000} {
		b.Run(map[int]string{0: "empty", 100_000: "held=100000"}[held], func(b *testing.B) {
			m := gate.NewMachine(0)
			m.Step(&gate.Command{Op: gate.OpSet, Permits: gate.MaxLimit}, 1)
			rnd := rand.New(rand.NewPCG(1, 1))
			next := func() (id gate.ID) {
				for i := range 2 {
					x := rnd.Uint64()
					for j := range 8 {
						id[8*i+j] = byte(x >> (8 * j))
					}
				}
				return id
			}
			for range held {
				m.Step(&gate.Command{Op: gate.OpAcquire, ID: next(), N: 1, Lease: gate.MaxLease}, 1)
			}
			now := int64(1)
			for b.Loop() {
				now += 10
				id := next()
				m.Step(&gate.Command{Op: gate.OpAcquire, ID: id, N: 1, Lease: time.Millisecond}, now)
				m.Step(&gate.Command{Op: gate.OpRelease, ID: id}, now)
			}
		})
	}
}
