package push_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ushergo/usher/push"
)

// lines is a transport of tests: a line of topic, cursor and body for each message.
type lines struct{}

func (lines) Name() string  { return "lines" }
func (lines) Topical() bool { return true }
func (lines) AppendMessage(b []byte, m *push.Message, sub string) []byte {
	reset := ""
	if m.Reset {
		reset = "!"
	}
	return fmt.Appendf(b, "%s%s %s %s\n", m.Topic, reset, m.Cursor, m.Body)
}
func (lines) AppendBeat(b []byte) []byte    { return append(b, "beat\n"...) }
func (lines) AppendPong(b, p []byte) []byte { return fmt.Appendf(b, "pong %s\n", p) }
func (lines) AppendClose(b []byte, code push.Code, _ string, after time.Duration) []byte {
	return fmt.Appendf(b, "close %d %d\n", code, after.Milliseconds())
}

// source is a room of tests: a line of tickets by seq.
type source struct {
	mu       sync.Mutex
	room     *push.Room
	standing map[push.ID]push.Standing
	stats    push.Stats
	n        uint64
	heard    map[push.ID]int
	broken   bool
	beat     time.Duration
	looked   func() // called within Look, before it answers
}

func (s *source) Look(_ context.Context, t push.Ticket) (push.Standing, error) {
	if s.looked != nil {
		s.looked()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		return push.Standing{}, errors.New("no store")
	}
	return s.standing[t.ID], nil
}

func (s *source) Rank(p push.Spot) push.Rank {
	s.mu.Lock()
	defer s.mu.Unlock()
	return push.Rank{Place: int64(p.Pos), Waiting: s.stats.Waiting, At: int64(s.n)}
}

func (s *source) Stats() push.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

func (s *source) Heard(t push.Ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard[t.ID]++
}

func (s *source) Beat() time.Duration { return s.beat }

// put sets what is so without an event.
func (s *source) put(id push.ID, st push.Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.standing[id] = st
}

// event makes something happen to a ticket and tells the hub.
func (s *source) event(id push.ID, st push.Standing) {
	s.mu.Lock()
	s.standing[id] = st
	s.n++
	n := s.n
	s.mu.Unlock()
	c := push.Change{ID: id, N: n, Type: push.ChangeAdmitted, At: st.At}
	if st.State == push.Ended {
		c.Type, c.Reason = push.ChangeEnded, st.Reason
	}
	s.room.Events([]push.Change{c}, push.Cursor{Epoch: 1, N: n}, false)
}

// say changes the room's message.
func (s *source) say(message string) {
	s.mu.Lock()
	s.stats.Message = message
	s.stats.At++
	s.n++
	n := s.n
	s.mu.Unlock()
	s.room.Events(nil, push.Cursor{Epoch: 1, N: n}, true)
}

// move changes what stats say.
func (s *source) move(waiting int64) {
	s.mu.Lock()
	s.stats.Waiting = waiting
	s.stats.At++
	s.n++
	n := s.n
	s.mu.Unlock()
	s.room.Events(nil, push.Cursor{Epoch: 1, N: n}, false)
}

func quick() push.Options {
	return push.Options{StatsEvery: 10 * time.Millisecond, RankEvery: 20 * time.Millisecond, SlowWithin: 2 * time.Second}
}

func build(t testing.TB, o push.Options) (*push.Hub, *source) {
	t.Helper()
	h := push.New(o)
	t.Cleanup(h.Close)
	s := &source{standing: map[push.ID]push.Standing{}, heard: map[push.ID]int{}, beat: 5 * time.Second, stats: push.Stats{State: "open"}}
	s.room = h.Room("r", func(r *push.Room) (push.Source, push.Cursor) { s.room = r; return s, push.Cursor{Epoch: 1} })
	return h, s
}

func id(n int) (id push.ID) {
	copy(id[:], fmt.Sprintf("ticket-%08d", n))
	return id
}

func ticket(n int) push.Ticket {
	return push.Ticket{Seq: uint64(n), ID: id(n), Name: fmt.Sprint("t", n)}
}

func waiting(pos int) push.Standing {
	return push.Standing{State: push.Waiting, Spot: push.Spot{Pos: uint64(pos)}}
}

var admitted = push.Standing{State: push.Admitted, Admission: []byte(`{"token":"x"}`)}

// client is the other end of a connection.
type client struct {
	t    testing.TB
	conn *push.Conn
	nc   net.Conn
	br   *bufio.Reader
}

// pair is a TCP connection over loopback.
func pair(t testing.TB, l net.Listener) (server, peer net.Conn) {
	t.Helper()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return server, peer
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// join attaches ticket n by the steps of a transport.
func join(t testing.TB, h *push.Hub, s *source, l net.Listener, n int, after *push.Cursor) *client {
	t.Helper()
	c, err := tryJoin(t, h, s, l, n, after)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tryJoin(t testing.TB, h *push.Hub, s *source, l net.Listener, n int, after *push.Cursor) (*client, error) {
	t.Helper()
	if _, err := h.Accept(""); err != nil {
		return nil, err
	}
	server, peer := pair(t, l)
	from := s.room.Head()
	st, err := s.Look(context.Background(), ticket(n))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := h.Attach(s.room, ticket(n), st, from, push.Peer{Conn: server, Codec: lines{}, All: true, After: after})
	if err != nil {
		h.Forget("")
		server.Close()
		peer.Close()
		return nil, err
	}
	go func() {
		defer conn.Gone()
		b := make([]byte, 16)
		for {
			if _, err := server.Read(b); err != nil {
				return
			}
			conn.Heard()
		}
	}()
	t.Cleanup(func() { peer.Close() })
	return &client{t, conn, peer, bufio.NewReader(peer)}, nil
}

// line is one message.
type line struct {
	topic  string
	reset  bool
	cursor push.Cursor
	body   map[string]any // nil where it is very long
	text   string
}

func (c *client) next() (line, bool) {
	c.t.Helper()
	c.nc.SetReadDeadline(time.Now().Add(60 * time.Second))
	text, err := c.br.ReadString('\n')
	if err != nil {
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			c.t.Fatal("nothing came")
		}
		return line{}, false
	}
	l := line{text: strings.TrimSpace(text)}
	if f := strings.SplitN(l.text, " ", 3); len(f) == 3 && strings.HasPrefix(f[2], "{") {
		l.topic, l.reset = strings.CutSuffix(f[0], "!")
		if l.cursor, err = push.ParseCursor(f[1]); err != nil {
			c.t.Fatal(err)
		}
		if len(f[2]) > 16<<10 { // padded: reading it takes longer than all else
			return l, true
		}
		if err := json.Unmarshal([]byte(f[2]), &l.body); err != nil {
			c.t.Fatalf("%s: %v", l.text, err)
		}
	} else {
		l.topic = strings.Fields(l.text)[0]
	}
	return l, true
}

func (c *client) until(topic string) line {
	c.t.Helper()
	for {
		l, ok := c.next()
		if !ok {
			c.t.Fatalf("closed before %s", topic)
		}
		if l.topic == topic {
			return l
		}
	}
}

// eventually waits for what other goroutines do.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("never: " + what)
}

func newReader(c net.Conn) *bufio.Reader { return bufio.NewReader(c) }
