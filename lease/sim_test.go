package lease

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// The simulation runs machine, view and trust of several nodes, each with a clock of its own, against each other: requests and
// answers take time and are lost, nodes are stopped, the store is away. At no moment may two nodes act on one resource.

type event struct {
	at time.Duration
	n  uint64
	do func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].n < e[j].n
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any     { x := (*e)[len(*e)-1]; *e = (*e)[:len(*e)-1]; return x }

type sim struct {
	rng     *rand.Rand
	now     time.Duration
	queue   events
	n       uint64
	store   *Machine
	away    time.Duration // until then the store does not answer
	faulty  bool
	opts    Options
	nodes   []*simNode
	marks   int
	overlap string
	skew    int64 // of the store's clock, µs
}

type simNode struct {
	s       *sim
	name    string
	offset  time.Duration // of its clock, and how fast that runs
	rate    float64
	view    *view
	trust   trust
	owner   Owner
	beat    uint64
	holds   map[string]uint64 // fence
	stopped time.Duration     // until then it does nothing
}

func simIDs() [10]string {
	return [...]string{"r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9"}
}

func (s *sim) after(d time.Duration, do func()) {
	s.n++
	heap.Push(&s.queue, event{s.now + d, s.n, do})
}

// local is the node's own clock.
func (n *simNode) local() time.Duration { return n.offset + time.Duration(float64(n.s.now)*n.rate) }

// every does something each period of the node's clock, unless it is stopped: then as soon as it goes on.
func (n *simNode) every(period time.Duration, do func()) {
	var next func()
	next = func() {
		if d := n.stopped - n.s.now; d > 0 {
			n.s.after(d, next)
			return
		}
		do()
		n.s.after(time.Duration(float64(period)/n.rate), next)
	}
	n.s.after(n.s.upTo(period), next)
}

// ask sends a request, which reaches the store some time later, or not, and whose answer comes back, or not.
func (n *simNode) ask(do func(m *Machine, now int64), answered func()) {
	s := n.s
	lose := func() bool { return s.faulty && s.rng.IntN(10) == 0 }
	trip := func() time.Duration {
		if s.faulty && s.rng.IntN(20) == 0 {
			return s.upTo(3 * s.opts.Beat)
		}
		return s.upTo(20 * time.Millisecond)
	}
	if lose() {
		return
	}
	s.after(trip(), func() {
		if s.now < s.away {
			return
		}
		if s.faulty && s.rng.IntN(50) == 0 {
			s.skew = s.rng.Int64N(20*60e6) - 10*60e6 // the store's clock steps by minutes
		}
		do(s.store, 1e15+s.now.Microseconds()+s.skew)
		if lose() {
			return
		}
		s.after(trip(), func() { n.hear(answered) })
	})
}

// hear is an answer that comes to a node: once it goes on, if it is stopped.
func (n *simNode) hear(answered func()) {
	if d := n.stopped - n.s.now; d > 0 {
		n.s.after(d, func() { n.hear(answered) })
		return
	}
	answered()
}

func (n *simNode) doBeat() {
	if n.owner == (Owner{}) {
		var j Joined
		n.ask(func(m *Machine, now int64) { j = m.Join(Join{Worker: n.name, Token: fmt.Sprint(n.name, n.s.n)}, now) }, func() {
			if j.OK && n.owner == (Owner{}) {
				n.owner, n.view.me, n.beat = j.Owner, j.Owner, 0
			}
		})
		return
	}
	n.beat++
	b, started, ok := Beat{Owner: n.owner, Beat: n.beat, Held: len(n.holds)}, n.local(), false
	n.ask(func(m *Machine, _ int64) { ok = m.Beat(b) }, func() {
		switch {
		case b.Owner != n.owner:
		case ok:
			n.trust.beaten(started)
		default:
			n.owner, n.view.me, n.trust.until, n.holds = Owner{}, Owner{}, 0, map[string]uint64{}
		}
	})
}

func (n *simNode) read(then func()) {
	started := n.local()
	var rows []WorkerRow
	n.ask(func(m *Machine, _ int64) { rows = m.Workers() }, func() {
		p := n.view.step(rows, started, n.local())
		for _, k := range p.mark {
			n.ask(func(m *Machine, _ int64) {
				if m.living(k.Owner) != nil && m.Mark(k) {
					n.s.marks++
				}
			}, func() {})
		}
		then()
	})
}

func (n *simNode) gather() {
	n.read(func() {
		if !n.view.lives(n.owner) || !n.trust.holds(n.local()) {
			return
		}
		living, me := n.view.owners(), n.owner
		var list []Brief
		n.ask(func(m *Machine, _ int64) { list = m.Orphans(living, 100) }, func() {
			n.read(func() { // who began meanwhile is not dead
				for _, b := range list {
					if b.Owner != (Owner{}) && n.view.lives(b.Owner) {
						continue
					}
					var got Taken
					n.ask(func(m *Machine, now int64) {
						got = m.Take(Take{ID: b.ID, From: b.Owner, Fence: b.Fence, To: me}, now)
					}, func() {
						if got.OK && n.owner == me {
							n.holds[b.ID] = got.Row.Fence
						}
					})
				}
			})
		})
	})
}

// reconcile: what it owns without knowing, and what it does not own any more.
func (n *simNode) reconcile() {
	me := n.owner
	if me == (Owner{}) {
		return
	}
	var list []Brief
	n.ask(func(m *Machine, _ int64) { list = m.Owned(me) }, func() {
		if n.owner != me {
			return
		}
		for _, b := range list {
			n.holds[b.ID] = b.Fence
		}
	})
}

// acts reports whether the node works on a resource now.
func (n *simNode) acts(id string) bool {
	return n.holds[id] != 0 && n.s.now >= n.stopped && n.trust.holds(n.local())
}

func newSim(seed uint64, drift float64, o Options) *sim {
	s := &sim{rng: rand.New(rand.NewPCG(seed, 1)), store: NewMachine(0), opts: o.withDefaults()}
	for _, id := range simIDs() {
		s.store.Put(Put{ID: id, Desired: Started})
	}
	for i := range 4 {
		n := &simNode{
			s: s, name: fmt.Sprint("n", i), offset: s.upTo(time.Hour), rate: 1 + drift*(2*s.rng.Float64()-1),
			trust: trust{length: s.opts.Lease - s.opts.Margin}, holds: map[string]uint64{},
		}
		n.view = newView(n.name, s.opts)
		s.nodes = append(s.nodes, n)
		n.every(s.opts.Beat, n.doBeat)
		n.every(s.opts.Observe, n.gather)
		n.every(s.opts.Desired, n.reconcile)
	}
	return s
}

// run goes on for d, and looks after each event.
func (s *sim) run(d time.Duration) {
	end := s.now + d
	defer func() { s.now = end }()
	for len(s.queue) > 0 && s.queue[0].at <= end {
		e := heap.Pop(&s.queue).(event)
		s.now = e.at
		e.do()
		for _, id := range simIDs() {
			who := ""
			for _, n := range s.nodes {
				if n.acts(id) {
					if who != "" && s.overlap == "" {
						s.overlap = fmt.Sprintf("at %v %s and %s act on %s", s.now, who, n.name, id)
					}
					who = n.name
				}
			}
		}
	}
}

// trouble stops nodes and takes the store away, for d.
func (s *sim) trouble(d time.Duration) {
	s.faulty = true
	for end := s.now + d; s.now < end; {
		s.run(s.upTo(s.opts.Lease))
		switch n := s.nodes[s.rng.IntN(len(s.nodes))]; s.rng.IntN(4) {
		case 0, 1:
			n.stopped = s.now + s.upTo(3*s.opts.Lease)
		case 2:
			s.away = s.now + s.upTo(2*s.opts.Lease)
		}
	}
	s.faulty, s.away = false, 0
	for _, n := range s.nodes {
		n.stopped = 0
	}
}

func (s *sim) acted() (k int) {
	for _, id := range simIDs() {
		for _, n := range s.nodes {
			if n.acts(id) {
				k++
			}
		}
	}
	return k
}

// TestSimulation: clocks that differ by up to an hour and run up to 4 % too fast or too slow, which the margin of a tenth
// allows for, and a store's clock that steps by minutes (cases/lease 6, 9, 11).
func TestSimulation(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 4
	}
	marks := 0
	for seed := range seeds {
		s := newSim(seed, 0.04, Options{})
		s.run(time.Minute)
		if s.marks != 0 || s.acted() != 10 {
			t.Fatalf("seed %d: in peace %d were marked dead, %d of 10 are acted on", seed, s.marks, s.acted())
		}
		s.trouble(20 * time.Minute)
		marks += s.marks
		s.run(2 * time.Minute)
		if s.overlap != "" {
			t.Errorf("seed %d: %s", seed, s.overlap)
		}
		if s.acted() != 10 {
			t.Errorf("seed %d: after the trouble %d of 10 are acted on", seed, s.acted())
		}
	}
	if marks == 0 {
		t.Error("nobody was ever marked dead: the trouble is none")
	}
	t.Logf("%d deaths", marks)
}

// TestSimulationFinds shows that the simulation finds what the margin is for: clocks that differ by more than it.
func TestSimulationFinds(t *testing.T) {
	for seed := range uint64(200) {
		s := newSim(seed, 0.6, Options{Margin: time.Nanosecond})
		s.run(time.Minute)
		s.trouble(20 * time.Minute)
		if s.overlap != "" {
			t.Logf("seed %d: %s", seed, s.overlap)
			return
		}
	}
	t.Error("no overlap was found with clocks that differ by more than the margin")
}

// upTo is a random time below d.
func (s *sim) upTo(d time.Duration) time.Duration { return time.Duration(s.rng.Int64N(int64(d))) }
