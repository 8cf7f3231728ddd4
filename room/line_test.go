package room

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestLineAgainstSlice drives a line over many blocks, where it trims and rebuilds, against a
// sorted slice of positions.
func TestLineAgainstSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Line
		var twin []uint64
		next := uint64(1)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		apply := func(e Event) { l.apply(&e) }
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				for range rapid.IntRange(1, 3*blockBits).Draw(t, "n") {
					apply(Event{Type: Entered, Ref: Ref{Seq: next}, Pos: next})
					twin = append(twin, next)
					next++
				}
			},
			"opening": func(t *rapid.T) {
				n := rapid.IntRange(0, 2*blockBits).Draw(t, "n")
				first := next
				type entry struct{ key, seq uint64 }
				var es []entry
				for range n {
					e := entry{rng.Uint64() | 1, next}
					apply(Event{Type: Entered, Ref: Ref{Seq: next}, Prequeue: true, Key: e.key})
					es = append(es, e)
					next++
				}
				dead := map[uint64]bool{}
				for range rapid.IntRange(0, n).Draw(t, "gone") {
					e := es[rng.IntN(n)]
					if !dead[e.key] {
						dead[e.key] = true
						apply(Event{Type: Left, Ref: Ref{Seq: e.seq}, Key: e.key})
					}
				}
				apply(Event{Type: StateChanged, State: &StateData{State: StateOpen, Phase: PhaseOpen}})
				slices.SortFunc(es, func(a, b entry) int {
					if a.key < b.key {
						return -1
					}
					return 1
				})
				for i, e := range es {
					pos := first + uint64(i)
					if dead[e.key] {
						continue
					}
					twin = append(twin, pos)
					if got := l.seqAt(pos); got != e.seq {
						t.Fatalf("seq at %d: %d, want %d", pos, got, e.seq)
					}
				}
			},
			"head": func(t *rapid.T) {
				for range min(len(twin), rapid.IntRange(0, 3*blockBits).Draw(t, "n")) {
					apply(Event{Type: Admitted, Ref: Ref{Seq: twin[0]}, Pos: twin[0]})
					twin = twin[1:]
				}
			},
			"anywhere": func(t *rapid.T) {
				for range min(len(twin), 50) {
					i := rng.IntN(len(twin))
					apply(Event{Type: Abandoned, Ref: Ref{Seq: twin[i]}, Pos: twin[i]})
					twin = slices.Delete(twin, i, i+1)
				}
			},
			"": func(t *rapid.T) {
				if l.Len() != len(twin) || l.Positioned() != len(twin) {
					t.Fatalf("%d, want %d", l.Len(), len(twin))
				}
				for range 40 {
					pos := rng.Uint64N(next + 10)
					i, there := slices.BinarySearch(twin, pos)
					if l.Before(pos) != i || l.Has(pos) != there {
						t.Fatalf("before %d: %d %v, want %d %v", pos, l.Before(pos), l.Has(pos), i, there)
					}
				}
				for range min(len(twin), 40) {
					k := rng.IntN(len(twin))
					if l.At(k) != twin[k] {
						t.Fatalf("at %d: %d, want %d", k, l.At(k), twin[k])
					}
				}
				if l.At(len(twin)) != 0 || l.At(-1) != 0 {
					t.Fatal("a position beyond the line")
				}
				c := l.clone()
				if c.Len() != l.Len() || (len(twin) > 0 && c.At(len(twin)/2) != l.At(len(twin)/2)) {
					t.Fatal("the clone differs")
				}
				sketch := l.Sketch()
				for range min(len(twin), 40) {
					k := rng.IntN(len(twin))
					got, ok := SketchPlace(sketch, twin[k])
					want := float64(k + 1)
					if !ok || float64(got) < want || float64(got) > want*1.0501+1 || (k < 100 && int(got) != k+1) {
						t.Fatalf("sketch place %d %v, want %d", got, ok, k+1)
					}
				}
				if len(sketch) > 400 {
					t.Fatalf("sketch of %d pairs", len(sketch))
				}
			},
		})
	})
}

// TestLineForgets churns through far more positions than wait at once.
func TestLineForgets(t *testing.T) {
	var l Line
	for pos := uint64(1); pos <= 3_000_000; pos++ {
		l.apply(&Event{Type: Entered, Ref: Ref{Seq: pos}, Pos: pos})
		if pos > 1000 {
			l.apply(&Event{Type: Admitted, Ref: Ref{Seq: pos - 1000}, Pos: pos - 1000})
		}
	}
	if l.Len() != 1000 || len(l.words) > 64*blockWords {
		t.Errorf("%d waiting in %d words", l.Len(), len(l.words))
	}
}

// TestBytesPerWaiter holds a million waiters with request ids to 150 bytes each, in all.
func TestBytesPerWaiter(t *testing.T) {
	const n = 1_000_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	m, now := newTest(t, testConfig(1))
	for i := uint64(1); i <= n; i++ {
		id := ID{byte(i), byte(i >> 8), byte(i >> 16), 1}
		m.Step(&Command{Op: OpEnter, NewID: id, Request: [16]byte(id)}, *now)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	got := float64(after.HeapAlloc-before.HeapAlloc) / n
	t.Logf("%.1f bytes a waiter", got)
	if got > 150 {
		t.Errorf("%.1f bytes a waiter, want at most 150", got)
	}
	runtime.KeepAlive(m)
}

// TestBulkMovesInChunks opens 100,000 slots at once, and lets 100,000 waiters vanish at once:
// no command moves more than MaxMoves.
func TestBulkMovesInChunks(t *testing.T) {
	const n = 100_000
	enter := func() (*Machine, *int64) {
		c := testConfig(1)
		c.Session.Claim = 0
		m, now := newTest(t, c)
		for i := uint64(1); i <= n+1; i++ {
			m.Step(&Command{Op: OpEnter, NewID: testID(i)}, *now)
		}
		return m, now
	}
	drain := func(m *Machine, now int64, r Result) (commands int) {
		for commands = 1; r.More; commands++ {
			r = m.Step(&Command{Op: OpTick}, now)
			if len(r.Events) > 2*MaxMoves {
				t.Fatalf("%d events in one command", len(r.Events))
			}
		}
		return commands
	}
	t.Run("slots", func(t *testing.T) {
		m, now := enter()
		c := m.config
		c.Capacity.Active = n + 1
		r := m.Step(&Command{Op: OpConfigure, Config: &c}, *now)
		commands := drain(m, *now, r)
		if s := m.Summary(); s.Active != n+1 || s.Waiting != 0 || commands < n/MaxMoves {
			t.Errorf("%+v after %d commands", s, commands)
		}
	})
	t.Run("ghosts", func(t *testing.T) {
		m, now := enter()
		var r Result
		for range 151 + 1 { // grace is 5 min; an interval counts for 2 s at most
			*now += (2 * time.Second).Microseconds()
			r = m.Step(&Command{Op: OpTick}, *now)
			m.Step(&Command{Op: OpRenew, Ref: Ref{1, testID(1)}}, *now)
			if r.More {
				break
			}
		}
		commands := drain(m, *now, r)
		if s := m.Summary(); s.Waiting != 0 || s.Active != 1 || commands < n/MaxMoves {
			t.Errorf("%d waiting, %d active after %d commands", s.Waiting, s.Active, commands)
		}
	})
}

// TestRate holds admissions to R in any half-open minute, keeps up 98 % of R, and earns
// nothing beyond the burst while nobody waits.
func TestRate(t *testing.T) { // cases/room 7, 8
	for _, r := range []int64{1, 2, 59, 60, 61, 100, 119, 600, 6000} {
		c := testConfig(0)
		c.Capacity.RatePerMinute = r
		c.Queue.Grace, c.Session.Claim = Duration(time.Hour), 0
		m, now := newTest(t, c)
		for range 300 { // ten idle minutes
			*now += (2 * time.Second).Microseconds()
			m.Step(&Command{Op: OpTick}, *now)
		}
		var admits []time.Duration
		take := func(r Result) {
			for _, e := range r.Events {
				if e.Type == Admitted {
					admits = append(admits, e.Room)
				}
			}
		}
		for i := range uint64(5*r + 10) {
			take(m.Step(&Command{Op: OpEnter, NewID: testID(i + 1)}, *now))
		}
		start := m.now
		for m.now-start < 4*time.Minute {
			*now += m.Wake().Microseconds()
			take(m.Step(&Command{Op: OpTick}, *now))
		}
		for i := 0; i+int(r) < len(admits); i++ {
			if d := admits[i+int(r)] - admits[i]; d < time.Minute {
				t.Fatalf("rate %d: %d admissions within %v", r, r+1, d)
			}
		}
		if got, want := float64(len(admits)), 0.98*4*float64(r); got < want-1 {
			t.Errorf("rate %d: %v admissions in four minutes, want %v", r, got, want)
		}
	}
}

// TestOpeningProof repeats a draw from what was published.
func TestOpeningProof(t *testing.T) {
	c := testConfig(1)
	c.Schedule.OpensAt = Time{time.UnixMicro(1_700_000_000_000_000).Add(time.Minute)}
	m, now := newTest(t, c)
	var ids []ID
	for i := range uint64(1000) {
		ids = append(ids, testID(i+1))
		if r := m.Step(&Command{Op: OpEnter, NewID: ids[i]}, *now); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	promised := m.Summary().Opening.SeedHash
	*now += time.Minute.Microseconds()
	m.Step(&Command{Op: OpTick}, *now)
	o := m.Summary().Opening
	want, order := Draw(bytes7(), o.FirstPos, ids)
	if o != want || o.SeedHash != promised {
		t.Errorf("published %+v\nrepeated  %+v", o, want)
	}
	moved := 0
	for i, id := range order {
		seq := uint64(slices.Index(ids, id)) + 1
		v := m.view(Ref{seq, id}, false)
		if v.Pos != o.FirstPos+uint64(i) {
			t.Fatalf("ticket %d stands at %d, the draw says %d", seq, v.Pos, o.FirstPos+uint64(i))
		}
		if v.Pos != seq {
			moved++
		}
	}
	if moved < 900 {
		t.Errorf("only %d of 1000 were moved", moved)
	}
	if other, _ := Draw(bytes7(), o.FirstPos, append(slices.Clone(ids[1:]), ids[0])); other.Root == o.Root {
		t.Error("another list of ids has the same root")
	}
}

func bytes7() []byte { return slices.Repeat([]byte{7}, 32) }

func testConfig(active int64) Config {
	c := DefaultConfig("r")
	c.Capacity.Active = active
	return c
}

func newTest(t testing.TB, c Config) (*Machine, *int64) {
	t.Helper()
	m, now := NewMachine(), int64(1_700_000_000_000_000)
	if r := m.Step(&Command{Op: OpConfigure, Config: &c, Seed: bytes7()}, now); r.Err != nil {
		t.Fatal(r.Err)
	}
	return m, &now
}

// BenchmarkMachine prints the figures of a room in which a million wait.
func BenchmarkMachine(b *testing.B) {
	const n = 1_000_000
	id := func(i uint64) ID { return ID{byte(i), byte(i >> 8), byte(i >> 16), byte(i >> 24), 1} }
	fill := func() (*Machine, int64) {
		c := testConfig(1)
		c.Queue.MaxWaiting = 1 << 40
		m, now := newTest(b, c)
		for i := uint64(1); i <= n; i++ {
			m.Step(&Command{Op: OpEnter, NewID: id(i), Request: [16]byte(id(i))}, *now)
		}
		return m, *now
	}
	random := uint64(1)
	anyone := func() uint64 { random = mix(random + 1); return random%n + 1 }
	// Each round does a fixed number of operations, so that the line stays about as long.
	round := func(name string, op func(m *Machine, now int64)) {
		b.Run(name, func(b *testing.B) {
			const ops = 200_000
			var cpu time.Duration
			for b.Loop() {
				b.StopTimer()
				m, now := fill()
				runtime.GC()
				b.StartTimer()
				before := cpuTime()
				for range ops {
					op(m, now)
				}
				cpu += cpuTime() - before
			}
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N)/ops, "cpu-ns/each")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/ops, "ns/each")
			b.ReportMetric(0, "ns/op")
		})
	}
	round("enter", func(m *Machine, now int64) {
		i := m.seq + 1
		m.Step(&Command{Op: OpEnter, NewID: id(i), Request: [16]byte(id(i))}, now)
	})
	round("leave", func(m *Machine, now int64) {
		s := anyone()
		m.Step(&Command{Op: OpLeave, Ref: Ref{s, id(s)}}, now)
	})
	round("place", func(m *Machine, now int64) { m.line.Before(anyone()) })
	round("status", func(m *Machine, now int64) {
		s := anyone()
		m.Step(&Command{Op: OpStatus, Ref: Ref{s, id(s)}}, now)
	})
	b.Run("sketch", func(b *testing.B) {
		m, _ := fill()
		for b.Loop() {
			m.line.Sketch()
		}
	})
}

// cpuTime is what the process has used: on a busy machine it says more than the clock does.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
