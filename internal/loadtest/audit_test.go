package loadtest

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/room"
)

// script replays a log written as words: "enter a", "admit a", "leave a", "expire a claim", "abandon a", "limit 3",
// "order random", "skip 2" (events are missing), "epoch".
func replay(t *testing.T, script string) *auditor {
	t.Helper()
	a := newAuditor()
	a.faults = &faults{}
	n, epoch, seq := uint64(0), uint64(1), uint64(0)
	from := map[string]string{}
	limit, order := int64(-1), "fifo"
	for words := range strings.SplitSeq(script, ",") {
		f := append(strings.Fields(words), "", "")
		e := logEvent{Epoch: epoch, At: time.Unix(int64(n), 0), TicketID: f[1]}
		switch f[0] {
		case "enter":
			seq++
			e.Type, e.Data.Seq, e.Data.Pos = "entered", seq, seq
			if f[2] != "" { // again, with the seq it had
				fmt.Sscan(f[2], &e.Data.Seq)
				e.Data.Pos = e.Data.Seq
			}
			from[f[1]] = "waiting"
		case "admit":
			e.Type = "admitted"
			from[f[1]] = "admitted"
		case "leave", "abandon", "expire":
			e.Type = map[string]string{"leave": "left", "abandon": "abandoned", "expire": "expired"}[f[0]]
			e.Data.From, e.Data.Reason = from[f[1]], f[2]
		case "limit", "order":
			e.Type, e.TicketID = "limit", ""
			if f[0] == "order" {
				order = f[1]
			} else {
				fmt.Sscan(f[1], &limit)
			}
			if e.Data.Order = order; limit >= 0 {
				l := limit
				e.Data.Limit = &l
			}
		case "skip":
			var k uint64
			fmt.Sscan(f[1], &k)
			n += k
			continue
		case "epoch":
			epoch++
			n = 0
			continue
		default:
			t.Fatalf("unknown word %q", f[0])
		}
		n++
		e.N = n
		a.add(&e)
	}
	return a
}

func TestAudit(t *testing.T) {
	for name, c := range map[string]struct {
		log  string
		want map[faultKind]int64
	}{
		"in order":                      {"limit 1, enter a, admit a, enter b, leave a, admit b, leave b", nil},
		"overtaken":                     {"limit 1, enter a, enter b, admit b", map[faultKind]int64{orderInversion: 1}},
		"overtaken twice":               {"limit 9, enter a, enter b, enter c, admit c, admit b, admit a", map[faultKind]int64{orderInversion: 2}},
		"ghosts are no line":            {"limit 1, enter a, enter b, abandon a abandoned, admit b", nil},
		"who left is no line":           {"limit 1, enter a, enter b, leave a left, admit b", nil},
		"twice":                         {"limit 5, enter a, admit a, admit a", map[faultKind]int64{doubleAdmission: 1}},
		"again after the end":           {"limit 5, enter a, admit a, leave a, admit a", map[faultKind]int64{doubleAdmission: 1}},
		"over the limit":                {"limit 1, enter a, enter b, admit a, admit b", map[faultKind]int64{limitOverrun: 1}},
		"freed by claim":                {"limit 1, enter a, enter b, admit a, expire a claim, admit b", nil},
		"lowered throws nobody out":     {"limit 2, enter a, enter b, enter c, admit a, admit b, limit 1, leave a, leave b, admit c", nil},
		"lowered admits nobody":         {"limit 2, enter a, enter b, enter c, admit a, admit b, limit 1, leave a, admit c", map[faultKind]int64{limitOverrun: 1}},
		"no limit":                      {"enter a, enter b, admit a, admit b", nil},
		"passthrough":                   {"limit 1, order passthrough, enter a, admit a, enter b, admit b", nil},
		"random":                        {"limit 1, order random, enter a, enter b, admit b", nil},
		"random, limit holds":           {"limit 1, order random, enter a, enter b, admit b, admit a", map[faultKind]int64{limitOverrun: 1}},
		"fifo after random":             {"limit 9, order random, enter a, enter b, order fifo, enter c, admit b, admit a, admit c", nil},
		"entered twice":                 {"enter a, enter a", map[faultKind]int64{lostPlace: 1}},
		"seq used again":                {"enter a, enter b 1", map[faultKind]int64{lostPlace: 1}},
		"never entered":                 {"limit 1, admit a", map[faultKind]int64{unlogged: 1}},
		"ended twice":                   {"limit 1, enter a, admit a, leave a, leave a", map[faultKind]int64{unlogged: 1}},
		"log begins later":              {"skip 7, limit 3, admit x, leave y, enter a, admit a", nil},
		"taken up again in a new epoch": {"limit 1, enter a, enter b, epoch, enter a 1, enter b 2, admit a, leave a, admit b", nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := replay(t, c.log)
			for k := orderInversion; k <= unlogged; k++ {
				if a.faults.count[k] != c.want[k] {
					t.Errorf("kind %d: %d, want %d: %q", k, a.faults.count[k], c.want[k], a.faults.examples[k])
				}
			}
		})
	}
}

func TestAuditCountsWhatIsMissing(t *testing.T) {
	a := replay(t, "limit 1, enter a, skip 3, enter b")
	if a.gaps != 3 {
		t.Errorf("%d events missing, want 3", a.gaps)
	}
	if a.waiting != 2 {
		t.Errorf("%s", a)
	}
}

// A scheduled opening shuffles by a seed that is published with it; the auditor repeats the draw.
func TestAuditRepeatsTheDraw(t *testing.T) {
	seed := []byte("0123456789abcdef0123456789abcdef")
	ids := make([]room.ID, 20)
	for i := range ids {
		ids[i][0], ids[i][9] = byte(i+1), 7
	}
	opening, order := room.Draw(seed, 1, ids)
	run := func(opening room.Opening, admit []room.ID) *faults {
		a := newAuditor()
		a.faults = &faults{}
		n := uint64(0)
		add := func(e logEvent) {
			n++
			e.Epoch, e.N = 1, n
			a.add(&e)
		}
		for i, id := range ids {
			e := logEvent{Type: "entered", TicketID: id.String()}
			e.Data.Seq, e.Data.Prequeue = uint64(i+1), true
			add(e)
		}
		e := logEvent{Type: "state"}
		e.Data.Opening = &opening
		add(e)
		late := logEvent{Type: "entered", TicketID: "late"}
		late.Data.Seq, late.Data.Pos = 21, 21
		add(late)
		for _, id := range admit {
			add(logEvent{Type: "admitted", TicketID: id.String()})
		}
		return a.faults
	}
	if f := run(opening, order); f.total() != 0 {
		t.Errorf("the true draw: %q", f.examples)
	}
	if f := run(opening, ids); f.count[orderInversion] == 0 {
		t.Error("admitted in the order of arrival, and nothing was said")
	}
	forged := opening
	forged.Seed = hex.EncodeToString([]byte("another seed, chosen afterwards."))
	if f := run(forged, order); f.count[orderInversion] == 0 {
		t.Error("a seed that does not fit its hash, and nothing was said")
	}
	missing := opening
	missing.Count = 19
	if f := run(missing, order); f.count[orderInversion] == 0 {
		t.Error("a draw that counts other tickets than the log, and nothing was said")
	}
}
