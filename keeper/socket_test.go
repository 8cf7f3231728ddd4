package keeper

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"github.com/ushergo/usher/lease"
)

// peer answers every connection with f, after its request was read.
func peer(t *testing.T, f func(req *http.Request, c net.Conn, r *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				if req, err := http.ReadRequest(r); err == nil {
					f(req, c, r)
				}
			}()
		}
	}()
	return "ws://" + l.Addr().String()
}

// shake answers a handshake with 101, and sends what follows in the same write.
func shake(req *http.Request, c net.Conn, follows ...ws.Frame) {
	sum := sha1.Sum([]byte(req.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	text := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " +
		base64.StdEncoding.EncodeToString(sum[:]) + "\r\n"
	if p := req.Header.Get("Sec-WebSocket-Protocol"); p != "" && req.FormValue("noproto") == "" {
		first, _, _ := strings.Cut(p, ",")
		text += "Sec-WebSocket-Protocol: " + first + "\r\n"
	}
	_, _ = c.Write(append([]byte(text+"\r\n"), wire(follows...)...))
}

func wire(frames ...ws.Frame) (out []byte) {
	for _, f := range frames {
		b, err := ws.CompileFrame(f)
		if err != nil {
			panic(err)
		}
		out = append(out, b...)
	}
	return out
}

func dialTo(t *testing.T, s Spec, most int64) (*socket, error) {
	t.Helper()
	d := &dialing{netDial: (&net.Dialer{}).DialContext, timeout: 30 * time.Second, silence: 30 * time.Second, maxBytes: most}
	sock, err := d.dial(context.Background(), &s, place{"feed/1", 41, 7})
	if err == nil {
		t.Cleanup(func() { sock.close(ws.StatusNormalClosure) })
	}
	return sock, err
}

func TestHandshakeCarriesWhatItShould(t *testing.T) {
	first, got := make(chan string, 1), make(chan *http.Request, 1)
	url := peer(t, func(req *http.Request, c net.Conn, r *bufio.Reader) {
		got <- req
		shake(req, c, ws.NewTextFrame([]byte("early")))
		if h, err := ws.ReadHeader(r); err == nil {
			text := make([]byte, min(h.Length, 1000))
			_, _ = io.ReadFull(r, text)
			ws.Cipher(text, h.Mask, 0)
			first <- string(text)
		}
		_, _ = io.Copy(io.Discard, r)
	})
	sock, err := dialTo(t, Spec{
		URL: url + "/v1?a=b", Headers: map[string]string{"Authorization": "Bearer x"}, Subprotocols: []string{"feed.v2", "feed.v1"}, Desired: lease.Started,
		Cursor: CursorRule{JSON: "seq"},
		Resume: Resume{Query: "from={cursor}&fence={fence}&id={id}", Headers: map[string]string{"X-Next": "{next}"}, Message: `{"from":{next},"id":"{id}"}`},
	}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	req := <-got
	if req.RequestURI != "/v1?a=b&from=41&fence=7&id=feed%2F1" || req.Header.Get("Authorization") != "Bearer x" || req.Header.Get("X-Next") != "42" ||
		req.Header.Get("Sec-WebSocket-Protocol") != "feed.v2, feed.v1" {
		t.Errorf("%s %v", req.RequestURI, req.Header)
	}
	if data, binary, err := sock.read(); err != nil || binary || string(data) != "early" {
		t.Errorf("what came with the handshake: %q %v %v", data, binary, err)
	}
	if m := <-first; m != `{"from":42,"id":"feed/1"}` {
		t.Errorf("first message %s", m)
	}
}

func TestHandshakeThatIsRefused(t *testing.T) {
	for _, c := range []struct {
		answer  string
		lasting bool
		retry   time.Duration
	}{
		{"401 Unauthorized\r\nContent-Length: 0", true, 0},
		{"404 Not Found", true, 0},
		{"429 Too Many Requests\r\nRetry-After: 7", false, 7 * time.Second},
		{"503 Service Unavailable\r\nRetry-After: 99999999", false, time.Hour},
		{"302 Found\r\nLocation: http://169.254.169.254/", false, 0}, // and is not followed
	} {
		url := peer(t, func(_ *http.Request, conn net.Conn, _ *bufio.Reader) {
			_, _ = io.WriteString(conn, "HTTP/1.1 "+c.answer+"\r\n\r\n")
		})
		_, err := dialTo(t, Spec{URL: url}, 1000)
		var status *statusError
		if !errors.As(err, &status) || status.lasting() != c.lasting || status.retry != c.retry {
			t.Errorf("%s: %v, %+v", c.answer, err, status)
		}
	}
	url := peer(t, func(req *http.Request, c net.Conn, _ *bufio.Reader) { shake(req, c) })
	if _, err := dialTo(t, Spec{URL: url + "/?noproto=1", Subprotocols: []string{"a"}}, 1000); err == nil || !strings.Contains(err.Error(), "subprotocols") {
		t.Errorf("no subprotocol: %v", err)
	}
}

func TestFrames(t *testing.T) {
	piece := func(op ws.OpCode, fin bool, text string) ws.Frame { return ws.NewFrame(op, fin, []byte(text)) }
	long := strings.Repeat("x", 200_000)
	for name, c := range map[string]struct {
		sent []byte
		most int64
		want []string
		err  string
	}{
		"text and binary":            {sent: wire(ws.NewTextFrame([]byte("a")), ws.NewBinaryFrame([]byte{0xff})), want: []string{"a", "\xff"}, err: "cut"},
		"empty":                      {sent: wire(ws.NewTextFrame(nil), ws.NewTextFrame([]byte("b"))), want: []string{"", "b"}, err: "cut"},
		"fragments":                  {sent: wire(piece(ws.OpText, false, "a"), piece(ws.OpContinuation, false, ""), piece(ws.OpContinuation, true, "b")), want: []string{"ab"}, err: "cut"},
		"pings between fragments":    {sent: wire(piece(ws.OpText, false, "a"), ws.NewPingFrame([]byte("p")), ws.NewPongFrame(nil), piece(ws.OpContinuation, true, "b")), want: []string{"ab"}, err: "cut"},
		"pings between messages":     {sent: wire(ws.NewPingFrame(nil), ws.NewTextFrame([]byte("a")), ws.NewPingFrame([]byte("p")), ws.NewTextFrame([]byte("b"))), want: []string{"a", "b"}, err: "cut"},
		"long":                       {sent: wire(ws.NewTextFrame([]byte(long))), want: []string{long}, err: "cut"},
		"closed with a reason":       {sent: wire(ws.NewCloseFrame(ws.NewCloseFrameBody(1012, "restart"))), err: `closed the connection with 1012: "restart"`},
		"closed without":             {sent: wire(ws.NewCloseFrame(nil)), err: "closed the connection with 1005"},
		"closed between fragments":   {sent: wire(piece(ws.OpText, false, "a"), ws.NewCloseFrame(ws.NewCloseFrameBody(1001, ""))), err: "1001"},
		"too long":                   {sent: wire(ws.NewTextFrame([]byte(long))), most: 1000, err: "raise max_message"},
		"too long in fragments":      {sent: wire(piece(ws.OpText, false, long[:900]), piece(ws.OpContinuation, true, long[:900])), most: 1000, err: "raise max_message"},
		"a length that is a bomb":    {sent: []byte("\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff"), err: "raise max_message"},
		"a negative length":          {sent: []byte("\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff"), err: "header"},
		"cut in a message":           {sent: []byte("\x81\x05ab"), err: "cut"},
		"not UTF-8":                  {sent: wire(ws.NewTextFrame([]byte{0xff, 0xfe})), err: "utf8"},
		"masked by a server":         {sent: wire(ws.MaskFrame(ws.NewTextFrame([]byte("a")))), err: "mask"},
		"a reserved bit":             {sent: []byte("\xc1\x01a"), err: "rsv"},
		"a long ping":                {sent: []byte("\x89\x7e\x01\x00" + long[:256]), err: "control"},
		"a continuation of nothing":  {sent: wire(piece(ws.OpContinuation, true, "a")), err: "continuation"},
		"a message inside a message": {sent: wire(piece(ws.OpText, false, "a"), ws.NewTextFrame([]byte("b"))), err: "continuation"},
	} {
		t.Run(name, func(t *testing.T) {
			url := peer(t, func(req *http.Request, conn net.Conn, r *bufio.Reader) {
				shake(req, conn)
				_, _ = conn.Write(c.sent)
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, r) // pongs and the close frame
			})
			if c.most == 0 {
				c.most = 1 << 20
			}
			sock, err := dialTo(t, Spec{URL: url}, c.most)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for err == nil {
				var data []byte
				if data, _, err = sock.read(); err == nil {
					got = append(got, string(data))
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%d messages %.80q, want %.80q", len(got), got, c.want)
			}
			if !strings.Contains(strings.ToLower(err.Error()), c.err) {
				t.Errorf("ends with %q, want %s", err, c.err)
			}
		})
	}
}

func TestSilenceCountsWhileReadAlone(t *testing.T) {
	url := peer(t, func(req *http.Request, c net.Conn, r *bufio.Reader) {
		shake(req, c, ws.NewTextFrame([]byte("a")))
		_, _ = io.Copy(io.Discard, r)
	})
	sock, err := dialTo(t, Spec{URL: url}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	sock.silence = 20 * time.Millisecond
	time.Sleep(3 * sock.silence) // the sink held it up; nobody read, and nobody was silent
	if data, _, err := sock.read(); err != nil || string(data) != "a" {
		t.Fatalf("%q %v", data, err)
	}
	if _, _, err := sock.read(); !errors.Is(err, errSilent) {
		t.Fatalf("%v", err)
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		message, path string
		want          int64 // -1: none
	}{
		{`{"seq":7}`, "seq", 7}, {`{"seq":"7"}`, "seq", 7}, {`{"meta":{"seq":9223372036854775807}}`, "meta.seq", 1<<63 - 1},
		{`{"seq":0}`, "seq", 0}, {`{"seq":9223372036854775808}`, "seq", -1}, {`{"seq":-1}`, "seq", -1}, {`{"seq":1.5}`, "seq", -1}, {`{"seq":1e3}`, "seq", -1},
		{`{"seq":null}`, "seq", -1}, {`{"seq":"x"}`, "seq", -1}, {`{"seq":"+1"}`, "seq", -1}, {`{"seq":[1]}`, "seq", -1}, {`{"meta":7}`, "meta.seq", -1},
		{`{}`, "seq", -1}, {`[1]`, "seq", -1}, {`hello`, "seq", -1}, {``, "seq", -1}, {`{"seq":1} {"seq":2}`, "seq", -1}, {`{"seq":""}`, "seq", -1},
		{`{"SEQ":3}`, "seq", -1},
	} {
		got, err := numberOf([]byte(c.message), strings.Split(c.path, "."))
		if err != nil {
			got = -1
		}
		if got != c.want {
			t.Errorf("%s at %s: %d, want %d", c.message, c.path, got, c.want)
		}
	}
}

func TestBackoffIsFullJitter(t *testing.T) {
	b := backoff{first: 100 * time.Millisecond, most: time.Second}
	for i, bound := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		if d := b.next(); d < 0 || d > bound*time.Millisecond {
			t.Errorf("pause %d is %v, above %v", i, d, bound*time.Millisecond)
		}
	}
	b.n = 1000
	if b.bound() != time.Second {
		t.Error(b.bound())
	}
	b.reset()
	small := 0
	for range 1000 {
		if d := b.next(); d < 50*time.Millisecond {
			small++
		}
		b.reset()
	}
	if small < 350 || small > 650 {
		t.Errorf("%d of 1000 pauses are in the lower half", small)
	}
}
