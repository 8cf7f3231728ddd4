package push

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// paced is a room in which the line moves all the time: every place and every number changes at each look.
type paced struct {
	mu sync.Mutex
	n  int64
}

func (*paced) Look(context.Context, Ticket) (Standing, error) { return Standing{State: Waiting}, nil }
func (*paced) Heard(Ticket)                                   {}
func (*paced) Beat() time.Duration                            { return 15 * time.Second }

func (p *paced) Rank(s Spot) Rank {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	return Rank{Place: int64(s.Pos), Waiting: 10_000 + p.n%1000, At: p.n}
}

func (p *paced) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	return Stats{Waiting: p.n, State: "open", At: p.n}
}

type topicLines struct{}

func (topicLines) Name() string  { return "lines" }
func (topicLines) Topical() bool { return true }
func (topicLines) AppendMessage(b []byte, m *Message, _ string) []byte {
	return append(append(b, m.Topic.String()...), '\n')
}
func (topicLines) AppendBeat(b []byte) []byte    { return b }
func (topicLines) AppendPong(b, _ []byte) []byte { return b }
func (topicLines) AppendClose(b []byte, code Code, _ string, _ time.Duration) []byte {
	return fmt.Appendf(b, "close %d\n", code)
}

// meterOf is a meter by which a frame costs what is told, whatever it really does.
type meterOf struct {
	mu            sync.Mutex
	cost          time.Duration
	spent, frames int64
}

func (m *meterOf) read(*Hub) (spent, frames int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frames += 1000
	m.spent += 1000 * int64(m.cost)
	return m.spent, m.frames
}

func (m *meterOf) set(cost time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cost = cost
}

// told counts what a connection at a place is told, by topic.
type told struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *told) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n
	c.n = map[string]int{}
	return n
}

func TestCadenceUnderPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &meterOf{cost: 10 * time.Microsecond}
		h := New(Options{Shards: 1, meter: m.read, procs: 2})
		defer h.Close()
		src := &paced{}
		r := h.Room("r", func(*Room) (Source, Cursor) { return src, Cursor{Epoch: 1} })
		places := map[string]uint64{"first": 5, "1 %": 100, "10 %": 900, "half": 4_000, "last": 9_000, "hidden": 3}
		clients := map[string]*told{}
		i := uint64(0)
		for name, pos := range places {
			i++
			server, peer := net.Pipe()
			defer peer.Close()
			c := &told{n: map[string]int{}}
			clients[name] = c
			go func() {
				for in := bufio.NewScanner(peer); in.Scan(); {
					c.mu.Lock()
					c.n[strings.Fields(in.Text())[0]]++
					c.mu.Unlock()
				}
			}()
			if _, err := h.Accept(""); err != nil {
				t.Fatal(err)
			}
			_, err := h.Attach(r, Ticket{Seq: i, ID: ID{byte(i)}, Name: name}, Standing{State: Waiting, Spot: Spot{Pos: pos}}, r.Head(),
				Peer{Conn: server, Codec: topicLines{}, All: true, Hidden: name == "hidden"})
			if err != nil {
				t.Fatal(err)
			}
		}
		// What 6 connections cost the machine is given by the meter: at ease a frame costs 10 µs; under pressure as much as
		// if there were a crowd.
		for _, step := range []struct {
			name  string
			cost  time.Duration
			level int
			rank  map[string]time.Duration // how often each is told its place
			stats time.Duration            // how often the first is told stats
		}{
			{"at ease", 10 * time.Microsecond, 0, map[string]time.Duration{
				"first": 2 * time.Second, "1 %": 2 * time.Second, "10 %": 2 * time.Second, "half": 2 * time.Second, "last": 2 * time.Second, "hidden": 45 * time.Second}, time.Second},
			// 6 frames a second are 30 % of two processors, 3 are 15 %.
			{"stats ride with places", 100 * time.Millisecond, 1, map[string]time.Duration{
				"first": 2 * time.Second, "1 %": 2 * time.Second, "10 %": 2 * time.Second, "half": 2 * time.Second, "last": 2 * time.Second, "hidden": 45 * time.Second}, 2 * time.Second},
			// 3 are 45 %, and by place 0.57 are 9 %.
			{"by place", 300 * time.Millisecond, 2, map[string]time.Duration{
				"first": 2 * time.Second, "1 %": 2 * time.Second, "10 %": 5 * time.Second, "half": 10 * time.Second, "last": 15 * time.Second, "hidden": 45 * time.Second}, 2 * time.Second},
			// 0.57 are 40 %: all but the first wait twice as long.
			{"longer still", 1400 * time.Millisecond, 2, map[string]time.Duration{
				"first": 2 * time.Second, "1 %": 2 * time.Second, "10 %": 10 * time.Second, "half": 20 * time.Second, "last": 30 * time.Second, "hidden": 45 * time.Second}, 2 * time.Second},
			{"at ease again", 10 * time.Microsecond, 0, map[string]time.Duration{
				"first": 2 * time.Second, "last": 2 * time.Second, "hidden": 45 * time.Second}, time.Second},
		} {
			m.set(step.cost)
			time.Sleep(3 * time.Minute) // the cost is averaged
			if f := h.Figures(); f.Level != step.level {
				t.Errorf("%s: level %d with frames at %v, want %d", step.name, f.Level, f.FrameCost, step.level)
			}
			for _, c := range clients {
				c.take()
			}
			const span = 15 * time.Minute
			time.Sleep(span)
			check := func(name, topic string, got int, every time.Duration) {
				// The wheel visits at its own moments, so what is due is told up to a slot or two late.
				most := int(span/every) + 1
				least := int(span / (every + every/10 + 2*slot))
				if got < least || got > most {
					t.Errorf("%s: %s is told %s %d times in %v, want one each %v (%d to %d)", step.name, name, topic, got, span, every, least, most)
				}
			}
			for name, every := range step.rank {
				n := clients[name].take()
				check(name, "rank", n["rank"], every)
				if name == "first" {
					check(name, "stats", n["stats"], step.stats)
				}
			}
		}
		// Whatever the pressure: what is sure comes at once.
		m.set(1400 * time.Millisecond)
		time.Sleep(3 * time.Minute)
		clients["last"].take()
		now := time.Now()
		r.Events([]Change{{ID: lastID(h, "last"), N: 1, Type: ChangeEnded, Reason: "max", At: 1}}, Cursor{Epoch: 1, N: 1}, false)
		synctest.Wait()
		if n := clients["last"].take(); n["timeout"] != 1 || !time.Now().Equal(now) {
			t.Errorf("an end was told %d times within %v", n["timeout"], time.Since(now))
		}
	})
}

// lastID is the id of the connection with that name.
func lastID(h *Hub, name string) ID {
	reply := make(chan ID, 1)
	h.shards[0].post(op{kind: opCall, call: func(s *shard) {
		for id, c := range s.tickets {
			if c.ticket.Name == name {
				reply <- id
			}
		}
	}})
	return <-reply
}
