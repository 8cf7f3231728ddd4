package stomp_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"

	"github.com/ushergo/usher/push"
	"github.com/ushergo/usher/push/stomp"
)

// room is a room of tests with one ticket, "mine", opened by the secret "secret".
type room struct {
	mu sync.Mutex
	st push.Standing
	n  uint64
	at *push.Room
}

var mine = push.Ticket{Seq: 1, ID: push.ID{1}, Name: "mine"}

func (r *room) Look(context.Context, push.Ticket) (push.Standing, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.st, nil
}
func (r *room) Rank(push.Spot) push.Rank {
	return push.Rank{Place: 3, Waiting: 5, ETA: &push.ETA{LowS: 1, HighS: 2, Basis: "measured"}}
}
func (r *room) Stats() push.Stats   { return push.Stats{Waiting: 5, State: "open"} }
func (r *room) Heard(push.Ticket)   {}
func (r *room) Beat() time.Duration { return 200 * time.Millisecond }

func (r *room) become(st push.Standing) {
	r.mu.Lock()
	r.st = st
	r.n++
	n := r.n
	r.mu.Unlock()
	c := push.Change{ID: mine.ID, N: n, Type: push.ChangeAdmitted}
	if st.State == push.Ended {
		c.Type, c.Reason = push.ChangeEnded, st.Reason
	}
	r.at.Events([]push.Change{c}, push.Cursor{Epoch: 1, N: n}, false)
}

var admitted = push.Standing{State: push.Admitted, Admission: []byte(`{"token":"x"}`)}

type server struct {
	hub  *push.Hub
	room *room
	url  string
	addr string
	pipe *pipes // nil: over TCP
}

// serve is a server over TCP.
func serve(t testing.TB, o push.Options, within time.Duration) *server {
	t.Helper()
	s, h := door(t, o, within)
	l := httptest.NewServer(h)
	t.Cleanup(l.Close)
	s.url, s.addr = "ws"+strings.TrimPrefix(l.URL, "http"), l.Listener.Addr().String()
	return s
}

// bubble runs f by a clock of its own, with a server in memory.
func bubble(t *testing.T, o push.Options, within time.Duration, f func(t *testing.T, s *server)) {
	synctest.Test(t, func(t *testing.T) {
		s, h := door(t, o, within)
		s.url, s.pipe = "ws://usher.test", &pipes{make(chan net.Conn), make(chan struct{})}
		l := &http.Server{Handler: h}
		go func() { _ = l.Serve(s.pipe) }()
		t.Cleanup(func() { l.Close() })
		f(t, s)
	})
}

// pipes is a listener in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
func (l *pipes) Close() error   { close(l.done); return nil }

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipes) dial(context.Context, string, string) (net.Conn, error) {
	server, peer := net.Pipe()
	l.conns <- server
	return peer, nil
}

// door is a hub with a room, and the handler that lets into it.
func door(t testing.TB, o push.Options, within time.Duration) (*server, http.Handler) {
	t.Helper()
	o.StatsEvery, o.RankEvery = 20*time.Millisecond, 20*time.Millisecond
	hub := push.New(o)
	t.Cleanup(hub.Close)
	r := &room{st: push.Standing{State: push.Waiting, Spot: push.Spot{Pos: 3}}}
	r.at = hub.Room("premiere", func(*push.Room) (push.Source, push.Cursor) { return r, push.Cursor{Epoch: 1} })
	h := &stomp.Handler{Hub: hub, Within: within, Caller: func(ctx context.Context, req *http.Request, c stomp.Connect) (stomp.Caller, error) {
		secret := c.Ticket
		if k, err := req.Cookie("ticket"); err == nil && secret == "" {
			secret = k.Value
		}
		if secret != "secret" {
			return stomp.Caller{}, &stomp.Refusal{Code: push.CodePolicy, Message: "no valid ticket"}
		}
		from := r.at.Head()
		st, err := r.Look(ctx, mine)
		return stomp.Caller{Room: r.at, Ticket: mine, Standing: st, From: from}, err
	}}
	return &server{hub: hub, room: r}, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { h.Serve(w, req, "") })
}

// peer is a client that trims nothing and knows nothing: it writes bytes and reads frames.
type peer struct {
	t  testing.TB
	nc net.Conn
	br *bufio.Reader
	d  stomp.Decoder
}

func dial(t testing.TB, s *server) *peer {
	t.Helper()
	d := ws.Dialer{Protocols: []string{"v12.stomp", "v11.stomp"}}
	if s.pipe != nil {
		d.NetDial = s.pipe.dial
	}
	nc, br, hs, err := d.Dial(context.Background(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	if hs.Protocol != "v12.stomp" {
		t.Errorf("subprotocol %q", hs.Protocol)
	}
	if len(hs.Extensions) > 0 { // cases/push 16
		t.Errorf("extensions %v", hs.Extensions)
	}
	if br == nil {
		br = bufio.NewReader(nc)
	}
	t.Cleanup(func() { nc.Close() })
	return &peer{t: t, nc: nc, br: br, d: stomp.Decoder{Version: stomp.V12}}
}

func (p *peer) frame(op ws.OpCode, payload string) {
	p.t.Helper()
	if err := ws.WriteFrame(p.nc, ws.MaskFrame(ws.NewFrame(op, true, []byte(payload)))); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) send(text string) { p.t.Helper(); p.frame(ws.OpText, text) }

// next reads the next WebSocket frame.
func (p *peer) next() (ws.Frame, error) {
	p.nc.SetReadDeadline(time.Now().Add(60 * time.Second))
	return readFrame(p.br)
}

// read reads the next STOMP frame, answering pings; code is that of a close.
func (p *peer) read() (f stomp.Frame, code ws.StatusCode, err error) {
	for {
		if f, ok, err := p.d.Next(); ok || err != nil {
			return f, 0, err
		}
		w, err := p.next()
		if err != nil {
			return f, 0, err
		}
		switch w.Header.OpCode {
		case ws.OpText:
			p.d.Feed(w.Payload)
		case ws.OpClose:
			code, _ := ws.ParseCloseFrameData(w.Payload)
			return f, code, nil
		case ws.OpPing:
			p.frame(ws.OpPong, string(w.Payload))
		}
	}
}

func (p *peer) until(command string) stomp.Frame {
	p.t.Helper()
	for {
		f, code, err := p.read()
		if err != nil || code != 0 {
			p.t.Fatalf("before %s: close %d, %v", command, code, err)
		}
		if f.Command == command {
			return f
		}
	}
}

// end reads up to the close and returns its code, and the ERROR before it.
func (p *peer) end() (ws.StatusCode, string) {
	p.t.Helper()
	message := ""
	for {
		f, code, err := p.read()
		switch {
		case err != nil:
			p.t.Fatalf("no close: %v", err)
		case code != 0:
			return code, message
		case f.Command == "ERROR":
			message = f.Value("message")
		}
	}
}

const connect = "CONNECT\naccept-version:1.2\nhost:x\nticket:secret\n\n\x00"

func TestConversation(t *testing.T) {
	s := serve(t, push.Options{}, 0)
	p := dial(t, s)
	p.send("CONNECT\naccept-version:1.0,1.1,1.2\nheart-beat:10000,10000\nhost:x\nticket:secret\n\n\x00")
	c := p.until("CONNECTED")
	if c.Value("version") != "1.2" || c.Value("heart-beat") != "20000,0" || c.Value("ticket-id") != "mine" || c.Value("room") != "premiere" || c.Value("reconnect-window") == "" {
		t.Errorf("%v", c.Headers)
	}
	p.send("SUBSCRIBE\nid:a\ndestination:/topic/rank/mine\nreceipt:r 1\n\n\x00SUBSCRIBE\nid:b\ndestination:/topic/stats/premiere\n\n\x00\n")
	seen := map[string]bool{}
	for !seen["a"] || !seen["b"] || !seen["r 1"] {
		f, code, err := p.read()
		if err != nil || code != 0 {
			t.Fatal(code, err)
		}
		switch f.Command {
		case "RECEIPT":
			seen[f.Value("receipt-id")] = true
		case "MESSAGE":
			seen[f.Value("subscription")] = true
			if f.Value("message-id") == "" || f.Value("cursor") == "" || !strings.HasPrefix(f.Value("destination"), "/topic/") || !json.Valid(f.Body) {
				t.Errorf("%v %s", f.Headers, f.Body)
			}
			if f.Value("content-length") != fmt.Sprint(len(f.Body)) {
				t.Error("content-length")
			}
		}
	}
	p.send("SUBSCRIBE\nid:c\ndestination:/topic/admission/mine\n\n\x00SUBSCRIBE\nid:d\ndestination:/topic/timeout/mine\nreceipt:2\n\n\x00")
	p.until("RECEIPT")
	s.room.become(admitted)
	for {
		if f := p.until("MESSAGE"); f.Value("subscription") == "c" {
			if !strings.Contains(string(f.Body), `"action":"REDIRECT"`) {
				t.Errorf("%s", f.Body)
			}
			break
		}
	}
	s.room.become(push.Standing{State: push.Ended, Reason: "claim"})
	if f := p.until("MESSAGE"); f.Value("destination") != "/topic/timeout/mine" {
		t.Errorf("%v", f)
	}
	if code, _ := p.end(); code != 4500 {
		t.Error(code)
	}
}

func TestASubscriptionAfterTheAdmissionIsToldOfIt(t *testing.T) { // cases/push 11
	s := serve(t, push.Options{}, 0)
	s.room.st = admitted
	p := dial(t, s)
	p.send(connect)
	p.until("CONNECTED")
	for range 2 { // and whoever asks again, again
		p.send("SUBSCRIBE\nid:c\ndestination:/topic/admission/mine\n\n\x00")
		p.until("MESSAGE")
		p.send("UNSUBSCRIBE\nid:c\nreceipt:u\n\n\x00")
		p.until("RECEIPT")
	}
}

func TestVersions(t *testing.T) {
	for accept, want := range map[string]string{"": "1.0", "accept-version:1.0\n": "1.0", "accept-version:1.1,1.0\n": "1.1", "accept-version:1.2,1.1,1.0\n": "1.2", "accept-version:1.3,1.1\n": "1.1"} {
		p := dial(t, serve(t, push.Options{}, 0))
		p.send("STOMP\n" + accept + "ticket:secret\n\n\x00")
		if c := p.until("CONNECTED"); c.Value("version") != want {
			t.Errorf("%q: %s, want %s", accept, c.Value("version"), want)
		}
	}
	p := dial(t, serve(t, push.Options{}, 0))
	p.send("CONNECT\naccept-version:2.0\nticket:secret\n\n\x00")
	if code, text := p.end(); code != 1002 || !strings.Contains(text, "1.2") {
		t.Error(code, text)
	}
}

func TestRefusals(t *testing.T) { // cases/push 17, 20
	for _, c := range []struct {
		name, in string
		code     ws.StatusCode
		says     string
	}{
		{"another's rank", "SUBSCRIBE\nid:1\ndestination:/topic/rank/theirs\n\n\x00", 1008, "not yours"},
		{"another room's stats", "SUBSCRIBE\nid:1\ndestination:/topic/stats/mine\n\n\x00", 1008, "not yours"},
		{"a queue", "SUBSCRIBE\nid:1\ndestination:/queue/rank/mine\n\n\x00", 1008, "not yours"},
		{"everything", "SUBSCRIBE\nid:1\ndestination:/topic/*/mine\n\n\x00", 1008, "not yours"},
		{"SEND", "SEND\ndestination:/topic/rank/mine\n\n{}\x00", 1008, "do not send"},
		{"a transaction", "BEGIN\ntransaction:1\n\n\x00", 1008, "transactions"},
		{"a second CONNECT", connect, 1002, "already"},
		{"no id", "SUBSCRIBE\ndestination:/topic/rank/mine\n\n\x00", 1002, "id"},
		{"an id of 65 bytes", "SUBSCRIBE\nid:" + strings.Repeat("x", 65) + "\ndestination:/topic/rank/mine\n\n\x00", 1002, "id"},
		{"an id that would need escaping", "SUBSCRIBE\nid:a\\nb\ndestination:/topic/rank/mine\n\n\x00", 1002, "id"},
		{"the same id twice", "SUBSCRIBE\nid:1\ndestination:/topic/rank/mine\n\n\x00SUBSCRIBE\nid:1\ndestination:/topic/timeout/mine\n\n\x00", 1002, "in use"},
		{"the same topic twice", "SUBSCRIBE\nid:1\ndestination:/topic/rank/mine\n\n\x00SUBSCRIBE\nid:2\ndestination:/topic/rank/mine\n\n\x00", 1002, "already"},
		{"an unknown subscription", "UNSUBSCRIBE\nid:9\n\n\x00", 1002, "no subscription"},
		{"an unknown command", "HELLO\n\n\x00", 1002, "unknown"},
		{"a huge content-length", "SUBSCRIBE\ncontent-length:1099511627776\n\n", 1002, "content-length"},
		{"a large content-length", "SUBSCRIBE\ncontent-length:99999\n\n", 1009, "limits"},
		{"a long line", "SUBSCRIBE\nx:" + strings.Repeat("y", 1100), 1009, "limits"},
		{"an unknown escape", "SUBSCRIBE\nid:\\q\n\n\x00", 1002, "escape"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, push.Options{}, 0)
			p := dial(t, s)
			p.send(connect)
			p.until("CONNECTED")
			p.send(c.in)
			code, text := p.end()
			if code != c.code || !strings.Contains(text, c.says) {
				t.Errorf("%d %q", code, text)
			}
			p.nc.Close()
			eventually(t, func() bool { return s.hub.Conns() == 0 })
		})
	}
}

func TestBeforeConnect(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		code ws.StatusCode
	}{
		"a bad ticket":     {"CONNECT\naccept-version:1.2\nticket:wrong\n\n\x00", 1008},
		"SUBSCRIBE first":  {"SUBSCRIBE\nid:1\ndestination:/topic/stats/premiere\n\n\x00", 1008},
		"bad heart-beats":  {"CONNECT\naccept-version:1.2\nticket:secret\nheart-beat:a,b\n\n\x00", 1002},
		"a bad cursor":     {"CONNECT\naccept-version:1.2\nticket:secret\nafter:1\n\n\x00", 1002},
		"endless headers":  {"CONNECT\n" + strings.Repeat("a:b\n", 40) + "\n\x00", 1009},
		"not STOMP at all": {"{\"hello\":1}\n\n\x00", 1002},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, push.Options{}, 0)
			p := dial(t, s)
			p.send("\n")
			p.send(c.in)
			if code, text := p.end(); code != c.code || text == "" {
				t.Errorf("%d %q", code, text)
			}
		})
	}
}

func TestNoConnectIsReaped(t *testing.T) { // cases/push 6
	bubble(t, push.Options{MaxConns: 3}, 10*time.Second, func(t *testing.T, s *server) {
		synctest.Wait()
		base, began := runtime.NumGoroutine(), time.Now()
		p := dial(t, s)
		p.frame(ws.OpPing, "still here")
		if code, text := p.end(); code != 1008 || !strings.Contains(text, "CONNECT") {
			t.Errorf("%d %q", code, text)
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it was reaped after %v", took)
		}
		p.nc.Close()
		eventually(t, func() bool { return runtime.NumGoroutine() <= base })
		for range 3 { // its place was given back
			q := dial(t, s)
			q.send(connect)
			q.until("CONNECTED")
		}
	})
}

func TestHostileFrames(t *testing.T) { // cases/push 17
	huge := []byte{0x82, 0xff, 0, 0, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4} // says 2^40 bytes
	long := []byte{0x81, 0xfe, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(long[2:], 20_000)
	for name, c := range map[string]struct {
		raw  []byte
		code ws.StatusCode
	}{
		"2^40 bytes":            {huge, 1009},
		"20,000 bytes":          {long, 1009},
		"unmasked":              {[]byte{0x81, 1, 'x'}, 1002},
		"reserved bit":          {[]byte{0xc1, 0x80, 0, 0, 0, 0}, 1002},
		"unknown opcode":        {[]byte{0x83, 0x80, 0, 0, 0, 0}, 1002},
		"fragmented ping":       {[]byte{0x09, 0x80, 0, 0, 0, 0}, 1002},
		"continuation of none":  {[]byte{0x80, 0x80, 0, 0, 0, 0}, 1002},
		"text within fragments": {[]byte{0x01, 0x80, 0, 0, 0, 0, 0x81, 0x80, 0, 0, 0, 0}, 1002},
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, serve(t, push.Options{}, 0))
			p.send(connect)
			p.until("CONNECTED")
			if _, err := p.nc.Write(c.raw); err != nil {
				t.Fatal(err)
			}
			if code, _ := p.end(); code != c.code {
				t.Error(code)
			}
		})
	}
}

func TestFragmentsAndBinary(t *testing.T) { // cases/push 17
	p := dial(t, serve(t, push.Options{}, 0))
	p.frame(ws.OpBinary, "\n\n"+connect[:20])
	for _, part := range []struct {
		op  ws.OpCode
		fin bool
		b   string
	}{{ws.OpText, false, connect[20:30]}, {ws.OpContinuation, false, connect[30:40]}, {ws.OpContinuation, true, connect[40:] + "SUBSCRIBE\nid:x\ndestination:/topic/ra"}} {
		if err := ws.WriteFrame(p.nc, ws.MaskFrame(ws.NewFrame(part.op, part.fin, []byte(part.b)))); err != nil {
			t.Fatal(err)
		}
	}
	p.until("CONNECTED")
	p.send("nk/mine\n\n\x00")
	p.until("MESSAGE")
}

func TestPingsAreAnswered(t *testing.T) { // cases/push 8
	p := dial(t, serve(t, push.Options{}, 0))
	p.send(connect)
	p.until("CONNECTED")
	began := time.Now()
	for range 50 {
		p.frame(ws.OpPing, "hello")
	}
	p.send("DISCONNECT\nreceipt:bye\n\n\x00")
	pongs := 0
	for {
		f, err := p.next()
		if err != nil {
			t.Fatal(err)
		}
		if f.Header.OpCode == ws.OpPong {
			if pongs++; string(f.Payload) != "hello" {
				t.Errorf("%q", f.Payload)
			}
		}
		if f.Header.OpCode == ws.OpClose {
			break
		}
	}
	if pongs < 1 || pongs > 2+int(time.Since(began)/time.Second) { // one a second
		t.Errorf("%d pongs for 50 pings", pongs)
	}
}

// A client that sends nothing but pongs stays, and sees heart-beats: a hidden tab.
func TestPongsAreEnough(t *testing.T) { // cases/push 18
	bubble(t, push.Options{SilentAfter: 600 * time.Millisecond}, 0, func(t *testing.T, s *server) {
		p := dial(t, s)
		p.send("CONNECT\naccept-version:1.2\nheart-beat:10000,10000\nticket:secret\n\n\x00")
		p.until("CONNECTED")
		beats := 0
		for beats < 10 {
			f, err := p.next()
			if err != nil {
				t.Fatalf("cut after %d beats: %v", beats, err)
			}
			switch f.Header.OpCode {
			case ws.OpPing:
				p.frame(ws.OpPong, "")
			case ws.OpText:
				if string(f.Payload) == "\n" {
					beats++
				}
			case ws.OpClose:
				t.Fatal("closed")
			}
		}
		for { // and who does not even pong is cut
			f, err := p.next()
			if err != nil {
				t.Fatal(err)
			}
			if f.Header.OpCode == ws.OpClose {
				if code, _ := ws.ParseCloseFrameData(f.Payload); code != 4010 {
					t.Error(code)
				}
				return
			}
		}
	})
}

func TestDisconnectWithReceipt(t *testing.T) { // cases/push 21
	p := dial(t, serve(t, push.Options{}, 0))
	p.send(connect)
	p.until("CONNECTED")
	p.send("DISCONNECT\nreceipt:close-1\n\n\x00")
	if f := p.until("RECEIPT"); f.Value("receipt-id") != "close-1" {
		t.Error(f)
	}
	if code, _ := p.end(); code != 1000 {
		t.Error(code)
	}
}

func TestShedding(t *testing.T) { // cases/push 14
	s := serve(t, push.Options{MaxConns: 1}, 0)
	p := dial(t, s)
	p.send(connect)
	p.until("CONNECTED")
	q := dial(t, s)
	f, err := q.next()
	if err != nil || f.Header.OpCode != ws.OpClose {
		t.Fatal(f, err)
	}
	if code, reason := ws.ParseCloseFrameData(f.Payload); code != 1013 || !strings.Contains(reason, "retry=") {
		t.Error(code, reason)
	}
}

func TestDrain(t *testing.T) { // cases/push 15
	s := serve(t, push.Options{}, 0)
	p := dial(t, s)
	p.send(connect + "SUBSCRIBE\nid:a\ndestination:/topic/rank/mine\n\n\x00SUBSCRIBE\nid:b\ndestination:/topic/stats/premiere\nreceipt:1\n\n\x00")
	p.until("RECEIPT")
	go s.hub.Drain(context.Background(), 100)
	soon := map[string]bool{}
	for {
		f, code, err := p.read()
		if err != nil {
			t.Fatal(err)
		}
		if code != 0 {
			if code != 1012 || len(soon) != 2 {
				t.Error(code, soon)
			}
			return
		}
		if strings.Contains(string(f.Body), "RECONNECT_SOON") {
			soon[f.Value("destination")] = true
		}
	}
}

func TestChatterIsCut(t *testing.T) {
	p := dial(t, serve(t, push.Options{}, 0))
	p.send(connect)
	go func() {
		for range 500 {
			_ = ws.WriteFrame(p.nc, ws.MaskFrame(ws.NewTextFrame([]byte("ACK\nid:1\n\n\x00"))))
		}
	}()
	if code, _ := p.end(); code != 1008 {
		t.Error(code)
	}
}

func TestNoWebSocket(t *testing.T) {
	s := serve(t, push.Options{}, 0)
	resp, err := http.Get("http://" + s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode < 400 || resp.StatusCode >= 500 {
		t.Error(resp.Status)
	}
}

func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal(errors.New("it never came to be"))
}

// readFrame reads one frame of the server's, of a megabyte at most.
func readFrame(r io.Reader) (f ws.Frame, err error) {
	if f.Header, err = ws.ReadHeader(r); err != nil {
		return f, err
	}
	if f.Header.Length > 1<<20 {
		return f, fmt.Errorf("a frame of %d bytes", f.Header.Length)
	}
	f.Payload = make([]byte, f.Header.Length)
	_, err = io.ReadFull(r, f.Payload)
	return f, err
}
