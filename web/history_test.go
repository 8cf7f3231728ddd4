package web

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/ushergo/usher/engine/memory"
	"github.com/ushergo/usher/room"
	"github.com/ushergo/usher/token"
)

// samples makes five minutes of them.
func samples(n int, f func(i int) (waiting, active int64)) []sample {
	start := time.Unix(0, 0)
	list := make([]sample, n)
	for i := range list {
		list[i].when = start.Add(time.Duration(i) * sampleEvery)
		list[i].Waiting, list[i].Active = f(i)
	}
	return list
}

func TestMeasuredRate(t *testing.T) {
	h := newHistory()
	now := time.Now()
	for i := range 10 { // 100 admissions each ten seconds, the last sample five seconds ago
		h.rooms["r"] = append(h.rooms["r"], sample{when: now.Add(time.Duration(i-9)*sampleEvery - 5*time.Second), admitted: uint64(100 * i)})
	}
	if got := h.perMinute("r", 950); got < 590 || got > 610 {
		t.Errorf("%v a minute, want about 600", got)
	}
	h.rooms["young"] = []sample{{when: now.Add(-10 * time.Second), admitted: 5}}
	if got := h.perMinute("young", 15); got < 58 || got > 62 {
		t.Errorf("%v a minute, want about 60", got)
	}
	if got := h.perMinute("unknown", 7); got != 0 {
		t.Errorf("%v", got)
	}
	if since(3, 10) != 3 || since(10, 3) != 7 {
		t.Error("since")
	}
}

func TestObserver(t *testing.T) {
	reg := prometheus.NewRegistry()
	o := NewObserver(reg, nil)
	ref := func(i byte) room.Ref { return room.Ref{Seq: uint64(i), ID: room.ID{i}} }
	const second = 1_000_000
	o.Events("r", []room.Event{
		{Type: room.Entered, Ref: ref(1), At: 0}, {Type: room.Admitted, Ref: ref(1), At: 1 * second},
		{Type: room.Entered, Ref: ref(2), At: 0}, {Type: room.Admitted, Ref: ref(2), At: 2 * second},
		{Type: room.Entered, Ref: ref(3), At: 0}, {Type: room.Abandoned, Ref: ref(3), Reason: room.ReasonAbandoned, At: 3 * second},
		{Type: room.Left, Ref: ref(1), WasActive: true, Reason: room.ReasonLeft, At: 11 * second},
		{Type: room.Expired, Ref: ref(2), WasActive: true, Reason: room.ReasonMax, At: 22 * second},
		{Type: room.Expired, Ref: ref(9), WasActive: true, Reason: room.ReasonMax, At: 99 * second}, // admitted before we began
	})
	if stay, ok := o.stay("r"); !ok || stay != 15 {
		t.Errorf("a stay of %v s", stay)
	}
	if entered, out := o.flows("r"); entered != 3 || out != 1 {
		t.Errorf("%d entered, %d gave up", entered, out)
	}
	if _, ok := o.stay("other"); ok {
		t.Error("a stay where nobody was")
	}
	o.ETA("r", room.ETA{LowS: 10, HighS: 30}, 20*time.Second)
	o.ETA("r", room.ETA{LowS: 10, HighS: 30}, 40*time.Second)
	o.ETA("r", room.ETA{LowS: 10, HighS: 30}, 5*time.Second)
	var text strings.Builder
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range []string{
		`usher_eta_predictions_total{outcome="earlier",room="r"} 1`,
		`usher_eta_predictions_total{outcome="later",room="r"} 1`,
		`usher_eta_predictions_total{outcome="within",room="r"} 1`,
		`usher_eta_error_ratio_bucket{room="r",le="0.05"} 1`,
		`usher_eta_error_ratio_count{room="r"} 3`,
		`usher_room_ended_total{from="admitted",reason="left",room="r"} 1`,
		`usher_room_ended_total{from="admitted",reason="max",room="r"} 2`,
		`usher_room_ended_total{from="waiting",reason="abandoned",room="r"} 1`,
	} {
		if !strings.Contains(text.String(), line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}

// A room that was deleted takes its series with it: a shop that makes a room for each sale does not fill /metrics.
func TestDeletedRoomsLeaveNoSeries(t *testing.T) {
	engine, err := memory.Open(t.TempDir(), memory.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	reg := prometheus.NewRegistry()
	observer := NewObserver(reg, nil)
	ctx := context.Background()
	rooms, err := room.Open(ctx, engine, room.Options{Observer: observer})
	if err != nil {
		t.Fatal(err)
	}
	defer rooms.Close()
	keys, err := token.Open(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Rooms: rooms, Keys: keys, Observer: observer, Registry: reg})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	series := func() (n int) {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.Metric {
				for _, l := range m.Label {
					if l.GetName() == "room" && l.GetValue() == "sale" {
						n++
					}
				}
			}
		}
		return n
	}
	sale := room.DefaultConfig("sale")
	sale.Capacity.Active = 1
	rm, err := rooms.Configure(ctx, sale, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rm.Enter(ctx, room.Ref{}, [16]byte{}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if entered, _ := observer.flows("sale"); entered == 1 {
			break
		} else if time.Now().After(end) {
			t.Fatal("the enter was not seen")
		}
	}
	s.sampleAll(time.Now())
	if series() == 0 {
		t.Fatal("no series of a room that lives")
	}
	if err := rooms.Delete(ctx, "sale", true); err != nil {
		t.Fatal(err)
	}
	<-rm.Gone()
	s.sampleAll(time.Now())
	if n := series(); n != 0 {
		t.Errorf("%d series of a room that has gone", n)
	}
	observer.mu.Lock()
	defer observer.mu.Unlock()
	if len(observer.rooms) != 0 {
		t.Error("its stays are kept")
	}
}
