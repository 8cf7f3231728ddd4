package memory_test

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
)

func heap() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Many visitors pass through a small room, with watchers, passes, signs of life, pages of
// the log: afterwards there is no more memory in use than early on.
func TestSoakChurnDoesNotLeak(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	var now atomic.Int64
	now.Store(1_800_000_000_000_000)
	e, err := memory.Open(t.TempDir(), memory.Options{NoSync: true, Now: now.Load})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	rs, err := room.Open(t.Context(), e, room.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer rs.Close()
	c := config(10)
	c.Log.MaxBytes = 1 << 20
	r, err := rs.Configure(t.Context(), c, 0)
	if err != nil {
		t.Fatal(err)
	}
	var early int64
	var refs []room.Ref // inside and in line, oldest first
	visitors := 200_000
	if os.Getenv("USHER_SOAK") != "" {
		visitors = 2_000_000
	}
	for n := range visitors {
		now.Add(100_000)
		v, err := r.Enter(t.Context(), room.Ref{}, [16]byte(number(n)))
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, v.Ref)
		w := r.Watch(v.ID)
		r.Heard(v.Ref)
		if len(refs) > 30 {
			if n%7 == 0 {
				p, err := r.Use(t.Context(), refs[0])
				if err != nil {
					t.Fatal(err)
				}
				p.Close()
			}
			if _, err := r.Leave(t.Context(), refs[0]); err != nil {
				t.Fatal(err)
			}
			refs = refs[1:]
		}
		w.Stop()
		if n == 50_000 {
			early = heap()
		}
	}
	var late int64
	until(t, func() bool { // a snapshot under way takes its own, and so does a rush
		late = heap()
		return late < early+early/4+10<<20 // the journal keeps two buffers of up to 4 MiB
	})
	t.Logf("%d KB in use after 50,000 visitors, %d KB after %d", early>>10, late>>10, visitors)
}

// While 100,000 slots open, callers come in between the pieces of it: their longest wait is
// printed, and that they were answered before the last admission is asserted.
func TestCallersComeInBetween(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	e, err := memory.Open(t.TempDir(), memory.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c := config(1)
	mustDo(t, e, &room.Command{Op: room.OpConfigure, Config: &c})
	for n := range 150_000 {
		mustDo(t, e, enterCmd(n))
	}
	c.Capacity.Active = 100_000
	began := time.Now()
	mustDo(t, e, &room.Command{Op: room.OpConfigure, Config: &c})
	var longest time.Duration
	between, last := 0, mustDo(t, e, &room.Command{Op: room.OpStatus, Ref: room.Ref{Seq: 100_000, ID: number(99_999)}})
	for last.View.State == room.Waiting {
		asked := time.Now()
		last = mustDo(t, e, &room.Command{Op: room.OpStatus, Ref: room.Ref{Seq: 100_000, ID: number(99_999)}})
		longest = max(longest, time.Since(asked))
		if between++; time.Since(began) > time.Minute {
			t.Fatal("100,000 slots were not filled within a minute")
		}
	}
	t.Logf("100,000 admitted in %v; %d calls in between, the longest took %v", time.Since(began).Round(time.Millisecond), between, longest.Round(time.Microsecond))
	if between == 0 {
		t.Error("nobody was answered in between")
	}
}
