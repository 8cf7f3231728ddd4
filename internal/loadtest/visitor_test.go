package loadtest

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// tell answers a visitor's next act.
func tell(v *visitor, after time.Duration, status int, a map[string]any) news {
	body, _ := json.Marshal(a)
	now := v.due.Add(after)
	return v.exchanged(response{status: status, body: body}, nil, v.due, now, &manners{patience: time.Minute}, rand.New(rand.NewPCG(1, 1)))
}

func waitingAnswer(place int) map[string]any {
	return map[string]any{"ticket_id": "t", "ticket": "s", "state": "waiting", "seq": 9, "pos": 9, "place": place,
		"poll_after_ms": 5000, "presence_after_ms": 90000, "at": noon.Format(time.RFC3339Nano)}
}

func admittedAnswer() map[string]any {
	a := waitingAnswer(0)
	a["state"] = "admitted"
	a["admission"] = map[string]any{"token": "x", "expires_at": noon.Add(time.Hour).Format(time.RFC3339Nano), "renew_after_ms": 60000}
	return a
}

func newcomer() *visitor {
	return &visitor{due: noon, arriveAt: noon, stay: 100 * time.Second, requestID: "r"}
}

func TestVisitorsWay(t *testing.T) {
	v := newcomer()
	if n := tell(v, time.Second, 202, waitingAnswer(3)); !n.ticket || v.op != opStatus || v.due != noon.Add(6*time.Second) {
		t.Fatalf("after enter: %+v, next %v at %v", n, v.op, v.due)
	}
	if n := tell(v, 0, 200, waitingAnswer(1)); n.fault != noFault || v.place != 1 {
		t.Fatalf("after status: %+v", n)
	}
	if n := tell(v, 0, 200, admittedAnswer()); !n.admitted || v.op != opRenew {
		t.Fatalf("after admission: %+v, next %v", n, v.op)
	}
	start := v.due
	if n := tell(v, 0, 200, admittedAnswer()); !n.claimed || v.op != opRenew || v.due != start.Add(time.Minute) {
		t.Fatalf("after the claim: %+v, next %v at %v", n, v.op, v.due)
	}
	if n := tell(v, 0, 200, admittedAnswer()); n.claimed || v.op != opLeave || v.due != start.Add(100*time.Second) {
		t.Fatalf("after the renewal: %+v, next %v at %v", n, v.op, v.due)
	}
	if n := tell(v, 0, 204, nil); n.ended != left {
		t.Fatalf("after leave: %+v", n)
	}
}

func TestVisitorChecksWhatSheIsTold(t *testing.T) {
	changed := func(key string, value any) map[string]any {
		a := waitingAnswer(3)
		a[key] = value
		return a
	}
	for name, c := range map[string]struct {
		status int
		answer map[string]any
		want   faultKind
	}{
		"the same":         {200, waitingAnswer(3), noFault},
		"nearer":           {200, waitingAnswer(2), noFault},
		"farther":          {200, waitingAnswer(4), setBack},
		"an older answer":  {200, func() map[string]any { a := waitingAnswer(4); a["at"] = noon.Add(-time.Second); return a }(), noFault},
		"no place":         {200, changed("place", nil), noFault},
		"another seq":      {200, changed("seq", 10), lostPlace},
		"another pos":      {200, changed("pos", 10), lostPlace},
		"another ticket":   {200, changed("ticket_id", "u"), lostPlace},
		"unknown":          {401, nil, lostPlace},
		"ended":            {410, nil, perhapsLost},
		"not admitted yet": {200, changed("state", "waiting"), noFault},
	} {
		t.Run(name, func(t *testing.T) {
			v := newcomer()
			tell(v, 0, 202, waitingAnswer(3))
			if n := tell(v, 0, c.status, c.answer); n.fault != c.want {
				t.Errorf("%+v", n)
			}
		})
	}
	t.Run("our own silence", func(t *testing.T) {
		v := newcomer()
		tell(v, 0, 202, waitingAnswer(3))
		v.due = v.due.Add(10 * time.Minute)
		if n := tell(v, 0, 410, nil); n.fault != noFault || n.ended != ended {
			t.Errorf("%+v", n)
		}
	})
	t.Run("thrown out", func(t *testing.T) {
		v := newcomer()
		tell(v, 0, 200, admittedAnswer())
		if n := tell(v, 0, 410, nil); n.fault != perhapsLost {
			t.Errorf("%+v", n)
		}
	})
	t.Run("overstayed", func(t *testing.T) {
		v := newcomer()
		tell(v, 0, 200, admittedAnswer())
		v.due = noon.Add(2 * time.Hour)
		if n := tell(v, 0, 410, nil); n.fault != noFault || n.ended != expired {
			t.Errorf("%+v", n)
		}
	})
	t.Run("back in line", func(t *testing.T) {
		v := newcomer()
		tell(v, 0, 200, admittedAnswer())
		v.op = opRefresh
		if n := tell(v, 0, 202, waitingAnswer(1)); n.fault != setBack {
			t.Errorf("%+v", n)
		}
	})
}

// An enter whose answer was lost is repeated with the same request id, for as long as patience lasts.
func TestVisitorRepeats(t *testing.T) {
	v := newcomer()
	rng := rand.New(rand.NewPCG(1, 1))
	m := &manners{patience: time.Minute}
	tries := 0
	for ; v.phase != gone; tries++ {
		now := v.due
		if n := v.exchanged(response{}, errors.New("cut"), now, now, m, rng); n.errorKind == "" {
			t.Fatal("not counted")
		}
		if v.phase != gone && (v.op != opEnter || !v.due.After(now)) {
			t.Fatalf("next %v at %v", v.op, v.due)
		}
		if tries > 1000 {
			t.Fatal("never gives up")
		}
	}
	if d := v.due.Sub(noon); d < time.Minute || tries < 5 {
		t.Errorf("gave up after %v and %d tries", d, tries)
	}
}

func TestVisitorPings(t *testing.T) {
	v := newcomer()
	a := waitingAnswer(3)
	a["poll_after_ms"], a["presence_after_ms"] = 60000, 20000
	tell(v, 0, 202, a)
	for i := range 2 {
		if v.op != opPresence {
			t.Fatalf("ping %d: next is %v", i, v.op)
		}
		tell(v, 0, 204, nil)
	}
	if v.op != opStatus && v.op != opPresence || v.due.After(noon.Add(time.Minute)) {
		t.Errorf("next %v at %v", v.op, v.due)
	}
}
