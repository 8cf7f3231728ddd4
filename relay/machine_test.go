package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func (w *twin) room() int {
	n, bytes := w.window()
	if bytes >= w.t.WindowBytes || w.held() {
		return 0
	}
	return max(w.t.Window-n, 0)
}

func TestMachineAgainstTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tune := Tuning{
			Window: rapid.IntRange(1, 30).Draw(t, "window"), WindowBytes: rapid.IntRange(200, 6000).Draw(t, "bytes"),
			Batch: rapid.IntRange(1, 8).Draw(t, "batch"), InFlight: rapid.IntRange(1, 4).Draw(t, "flight"),
			Attempts: rapid.IntRange(1, 3).Draw(t, "attempts"), GiveUp: time.Duration(rapid.IntRange(1, 2000).Draw(t, "giveup")) * time.Millisecond,
			Backoff: 100 * time.Millisecond, MaxBackoff: 2 * time.Second,
		}
		limits := Limits{
			Events: rapid.IntRange(0, 5).Draw(t, "limit"), Bytes: rapid.SampledFrom([]int{0, 30, 100}).Draw(t, "limitBytes"),
			EventBytes: rapid.SampledFrom([]int{0, 25}).Draw(t, "eventBytes"),
		}
		m := newMachine(tune, "")
		w := &twin{t: tune, now: time.Unix(1000, 0), flight: map[*job][]*twinEvent{}}
		half := func() float64 { return 0.5 }
		var jobs []*job
		n := 0
		add := func(stop bool) {
			if m.room() == 0 {
				return
			}
			n++
			e := Event{
				ID: fmt.Sprint(n), Key: fmt.Sprint("k", rapid.IntRange(0, 4).Draw(t, "key")), At: w.now, Position: Position(fmt.Sprint(n)),
				Payload: make([]byte, rapid.IntRange(0, 40).Draw(t, "size")),
			}
			m.add([]Event{e}, stop)
			w.events = append(w.events, &twinEvent{Event: e, stop: stop})
		}
		next := func() bool {
			want, bury := w.next(limits)
			got := m.next(w.now, limits)
			if (got == nil) != (len(want) == 0) {
				t.Fatalf("next: machine has a job: %v; twin wants %d events", got != nil, len(want))
			}
			if got == nil {
				if at := m.wake(w.now); !at.IsZero() && !at.After(w.now) {
					t.Fatalf("wake %v is not after now", at)
				}
				return false
			}
			var a, b []string
			keys := map[string]bool{}
			for _, e := range got.events() {
				a = append(a, e.ID)
				if keys[e.Key] {
					t.Fatalf("two events of key %s in one batch", e.Key)
				}
				keys[e.Key] = true
			}
			for _, e := range want {
				b = append(b, e.ID)
			}
			if !slices.Equal(a, b) || got.bury != bury {
				t.Fatalf("next: machine %v (bury %v), twin %v (bury %v)", a, got.bury, b, bury)
			}
			if bury {
				w.digs++
			}
			w.flight[got] = want
			jobs = append(jobs, got)
			return true
		}
		finish := func(heal bool) {
			if len(jobs) == 0 {
				return
			}
			i := rapid.IntRange(0, len(jobs)-1).Draw(t, "job")
			j := jobs[i]
			jobs = slices.Delete(jobs, i, i+1)
			out := make([]outcome, len(j.items))
			kind := rapid.IntRange(0, 3).Draw(t, "kind")
			for k := range out {
				switch {
				case heal || kind == 0:
					out[k].ok = true
				case j.bury:
					out[k] = outcome{reason: "no", full: kind == 1}
				default:
					out[k] = outcome{class: rapid.SampledFrom([]Class{Transient, Transient, Throttled, Denied, Rejected}).Draw(t, "class"), reason: "no"}
					if kind == 1 {
						out[k].class = Transient
					}
					if kind == 2 && rapid.Bool().Draw(t, "ok") {
						out[k] = outcome{ok: true}
					}
					if out[k].class == Throttled && rapid.Bool().Draw(t, "after") {
						out[k].after = 700 * time.Millisecond
					}
				}
			}
			m.finish(j, out, w.now, half)
			w.finish(j, out)
		}
		check := func() {
			if m.cursor != w.settled() {
				t.Fatalf("cursor %q, twin %q", m.cursor, w.settled())
			}
			if m.room() != w.room() {
				t.Fatalf("room %d, twin %d", m.room(), w.room())
			}
			if _, bytes := w.window(); m.bytes != bytes {
				t.Fatalf("bytes %d, twin %d", m.bytes, bytes)
			}
		}
		resume := func() {
			m.resume()
			for _, e := range w.events {
				e.stop = false
			}
		}
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0, 1, 2:
				add(false)
			case 3:
				if rapid.IntRange(0, 5).Draw(t, "gap") == 0 {
					add(true)
				}
			case 4, 5:
				next()
			case 6, 7:
				finish(false)
			case 8:
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 1000).Draw(t, "ms")) * time.Millisecond)
			case 9:
				resume()
			}
			check()
		}
		// A sink that takes everything again gets everything.
		resume()
		for range 10_000 {
			if m.empty() {
				break
			}
			for next() {
			}
			if len(jobs) > 0 {
				finish(true)
			} else if at := m.wake(w.now); !at.IsZero() {
				w.now = at
			}
			check()
		}
		if !m.empty() {
			t.Fatalf("not all done though the sink takes everything: cursor %q of %d", m.cursor, n)
		}
		for _, e := range w.events {
			if e.delivery == "" {
				t.Fatalf("event %s is done and was neither taken nor buried", e.ID)
			}
		}
	})
}

// With all events of a batch spoiled by one, that one is found and ends among the dead letters.
func TestMachineFindsTheSpoiler(t *testing.T) {
	tune := Tuning{GiveUp: time.Second}.withDefaults()
	m := newMachine(tune, "")
	now := time.Unix(0, 0)
	var events []Event
	for n := range 200 {
		events = append(events, Event{ID: fmt.Sprint(n), Key: fmt.Sprint(n), Position: Position(fmt.Sprint(n))})
	}
	m.add(events, false)
	sends, buried := 0, 0
	for !m.empty() {
		j := m.next(now, Limits{})
		if j == nil {
			now = m.wake(now)
			continue
		}
		out := make([]outcome, len(j.items))
		bad := !j.bury && slices.ContainsFunc(j.items, func(it *item) bool { return it.ID == "77" })
		for i := range out {
			out[i].ok = !bad
		}
		if j.bury {
			buried++
			if j.items[0].ID != "77" {
				t.Fatalf("%s was buried", j.items[0].ID)
			}
		} else if sends++; sends > 300 {
			t.Fatal("300 sends and no end")
		}
		if len(events) == 200 && m.room() > 0 && sends%3 == 0 { // traffic goes on: the sink is seen to live
			e := Event{ID: fmt.Sprint("later", sends), Key: fmt.Sprint("later", sends), Position: Position(fmt.Sprint(1000 + sends))}
			if buried == 0 {
				m.add([]Event{e}, false)
			}
		}
		m.finish(j, out, now, func() float64 { return 0.5 })
	}
	if buried != 1 {
		t.Fatalf("%d were buried", buried)
	}
}

// A sink that is down for a day fills no dead letters.
func TestMachineWaitsForTheSink(t *testing.T) {
	m := newMachine(Tuning{}.withDefaults(), "")
	now := time.Unix(0, 0)
	for n := range 50 {
		m.add([]Event{{ID: fmt.Sprint(n), Key: fmt.Sprint(n % 7), Position: Position(fmt.Sprint(n))}}, false)
	}
	sends := 0
	for end := now.Add(24 * time.Hour); now.Before(end); {
		j := m.next(now, Limits{})
		if j == nil {
			now = m.wake(now)
			continue
		}
		if j.bury {
			t.Fatal("something was buried")
		}
		sends++
		m.finish(j, make([]outcome, len(j.items)), now, func() float64 { return 0.5 })
	}
	if sends > 24*3600/15+50 {
		t.Fatalf("%d sends in a day: it does not back off", sends)
	}
	for n := 0; !m.empty(); n++ {
		if j := m.next(now, Limits{}); j != nil {
			out := make([]outcome, len(j.items))
			for i := range out {
				out[i].ok = true
			}
			m.finish(j, out, now, func() float64 { return 0.5 })
		} else {
			now = m.wake(now)
		}
		if n > 1000 {
			t.Fatal("it does not go on")
		}
	}
}
