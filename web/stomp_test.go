package web_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"github.com/ushergo/usher/push/stomp"
	"github.com/ushergo/usher/room"
)

// talker is a STOMP client that knows no more than the protocol.
type talker struct {
	t  *testing.T
	nc net.Conn
	br *bufio.Reader
	d  stomp.Decoder
}

// talk upgrades with the given headers, name and value in turn; connect are lines of the CONNECT.
func (s *site) talk(connect string, headers ...string) *talker {
	s.t.Helper()
	t := s.t.(*testing.T)
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	d := ws.Dialer{Protocols: []string{"v12.stomp"}, Header: ws.HandshakeHeaderHTTP(h)}
	nc, br, _, err := d.Dial(context.Background(), "ws"+strings.TrimPrefix(s.public.URL, "http")+"/v1/stomp")
	if err != nil {
		t.Fatal(err)
	}
	if br == nil {
		br = bufio.NewReader(nc)
	}
	t.Cleanup(func() { nc.Close() })
	k := &talker{t, nc, br, stomp.Decoder{Version: stomp.V12}}
	k.say("CONNECT\naccept-version:1.2\nhost:x\n" + connect + "\n\x00")
	return k
}

func (k *talker) say(text string) {
	k.t.Helper()
	if err := ws.WriteFrame(k.nc, ws.MaskFrame(ws.NewTextFrame([]byte(text)))); err != nil {
		k.t.Fatal(err)
	}
}

// next returns a frame, or the close code.
func (k *talker) next() (stomp.Frame, ws.StatusCode) {
	k.t.Helper()
	for {
		if f, ok, err := k.d.Next(); err != nil {
			k.t.Fatal(err)
		} else if ok {
			return f, 0
		}
		_ = k.nc.SetReadDeadline(time.Now().Add(60 * time.Second))
		f, err := readFrame(k.br)
		if err != nil {
			k.t.Fatal(err)
		}
		switch f.Header.OpCode {
		case ws.OpText:
			k.d.Feed(f.Payload)
		case ws.OpClose:
			code, _ := ws.ParseCloseFrameData(f.Payload)
			return stomp.Frame{}, code
		}
	}
}

// until reads up to a message of a type, or a frame of a command.
func (k *talker) until(what string) map[string]any {
	k.t.Helper()
	for {
		f, code := k.next()
		if code != 0 {
			k.t.Fatalf("closed with %d before %s", code, what)
		}
		if f.Command == what {
			doc := map[string]any{}
			for _, h := range f.Headers {
				doc[h.Name] = h.Value
			}
			return doc
		}
		if f.Command == "ERROR" {
			k.t.Fatalf("%s before %s", f.Body, what)
		}
		if f.Command != "MESSAGE" {
			continue
		}
		var doc map[string]any
		if err := json.Unmarshal(f.Body, &doc); err != nil {
			k.t.Fatal(err)
		}
		checkEvent(k.t, doc)
		if doc["type"] == what {
			return doc
		}
	}
}

func (k *talker) refused() (message string, code ws.StatusCode) {
	k.t.Helper()
	for {
		f, code := k.next()
		if code != 0 {
			return message, code
		}
		if f.Command == "ERROR" {
			message = string(f.Body)
		}
	}
}

func (k *talker) subscribeAll(ticket, room string) {
	k.say("SUBSCRIBE\nid:0\ndestination:/topic/admission/" + ticket + "\n\n\x00SUBSCRIBE\nid:1\ndestination:/topic/rank/" + ticket +
		"\n\n\x00SUBSCRIBE\nid:2\ndestination:/topic/timeout/" + ticket + "\n\n\x00SUBSCRIBE\nid:3\ndestination:/topic/stats/" + room + "\n\n\x00")
}

func TestSTOMP(t *testing.T) {
	s := build(t, quick, config("premiere", 1))
	_, inside := s.enter("premiere")
	r, secret := s.enter("premiere")
	id := r.doc(t)["ticket_id"].(string)
	ways := map[string]*talker{
		"header":        s.talk("ticket:" + secret + "\n"),
		"cookie":        s.talk("", "Cookie", "usher-premiere="+secret),
		"authorization": s.talk("", "Authorization", "Bearer "+secret),
	}
	for way, k := range ways {
		if c := k.until("CONNECTED"); c["ticket-id"] != id || c["room"] != "premiere" {
			t.Errorf("%s: %v", way, c)
		}
		k.subscribeAll(id, "premiere")
		if d := k.until("rank"); d["place"] != 1.0 {
			t.Errorf("%s: %v", way, d)
		}
	}
	s.api("POST", "/admin/v1/rooms/premiere/state", `{"state":"open","message":"hello"}`).is(t, 200, "")
	for _, k := range ways {
		for k.until("stats")["message"] != "hello" {
		}
	}
	s.do("POST", "/v1/rooms/premiere/leave", "", bearer(inside)...).is(t, 204, "")
	for way, k := range ways { // all tabs are told
		d := k.until("admission")
		if _, err := s.keys.Verify("premiere", d["admission"].(map[string]any)["token"].(string), time.Now()); err != nil {
			t.Errorf("%s: %v", way, err)
		}
	}
	s.do("POST", "/v1/rooms/premiere/leave", "", bearer(secret)...).is(t, 204, "")
	for way, k := range ways {
		if _, code := k.refused(); code != 4500 {
			t.Errorf("%s: %d", way, code)
		}
	}
	if text, code := s.talk("ticket:" + secret + "\n").refused(); code != 4500 || !strings.Contains(text, "left") {
		t.Error(code, text)
	}
}

func TestSTOMPTurnsAway(t *testing.T) { // cases/push 20
	s := build(t, quick, config("premiere", 1), config("matinee", 1))
	one, secret := s.enter("premiere")
	two, theirs := s.enter("premiere")
	_, other := s.enter("matinee")
	is := func(k *talker, code ws.StatusCode, says string) {
		t.Helper()
		if text, got := k.refused(); got != code || !strings.Contains(text, says) {
			t.Errorf("%d %q", got, text)
		}
	}
	is(s.talk(""), 1008, "no valid ticket")
	is(s.talk("ticket:x"+secret[1:]+"\n"), 1008, "no valid ticket")
	is(s.talk("room:matinee\nticket:"+secret+"\n"), 1008, "no valid ticket")
	is(s.talk("room:nowhere\nticket:"+secret+"\n"), 1008, "no such room")
	both := "usher-premiere=" + secret + "; usher-matinee=" + other
	is(s.talk("", "Cookie", both), 1008, "several rooms")
	k := s.talk("room:matinee\n", "Cookie", both)
	if c := k.until("CONNECTED"); c["room"] != "matinee" {
		t.Error(c)
	}
	is(s.talk("", "Authorization", "Bearer "+secret, "Usher-Ticket", theirs), 1008, "two different tickets")
	k = s.talk("ticket:" + secret + "\n")
	k.until("CONNECTED")
	k.say("SUBSCRIBE\nid:1\ndestination:/topic/rank/" + two.doc(t)["ticket_id"].(string) + "\n\n\x00")
	is(k, 1008, "not yours")
	k = s.talk("ticket:" + secret + "\n")
	k.until("CONNECTED")
	k.say("SEND\ndestination:/topic/rank/" + one.doc(t)["ticket_id"].(string) + "\n\n{}\x00")
	is(k, 1008, "do not send")

	r := s.do("GET", "/v1/stomp", "", "Origin", "https://evil.test", "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", "Cookie", both)
	r.is(t, 403, "cross_site")
}

// A page that one room's cors lists does not get another room's news.
func TestSTOMPOfAListedPage(t *testing.T) {
	c := config("premiere", 1)
	c.CORS = []string{"https://app.test"}
	s := build(t, quick, c, config("matinee", 1))
	_, secret := s.enter("premiere")
	_, other := s.enter("matinee")
	s.talk("ticket:"+secret+"\n", "Origin", "https://app.test").until("CONNECTED")
	if text, code := s.talk("ticket:"+other+"\n", "Origin", "https://app.test").refused(); code != 1008 || !strings.Contains(text, "another site") {
		t.Error(code, text)
	}
}

// At the opening everybody gets a place, without asking.
func TestSTOMPThroughAnOpening(t *testing.T) {
	c := config("premiere", 1)
	c.Schedule.OpensAt = room.Time{Time: time.Now().Add(10 * time.Minute)}
	s := build(t, quick, c)
	var talkers []*talker
	for range 2 {
		r, secret := s.enter("premiere")
		k := s.talk("ticket:" + secret + "\n")
		k.until("CONNECTED")
		k.subscribeAll(r.doc(t)["ticket_id"].(string), "premiere")
		if d := k.until("rank"); d["place"] != nil {
			t.Errorf("a place before the opening: %v", d)
		}
		talkers = append(talkers, k)
	}
	s.api("PATCH", premiere, `{"schedule":{"opens_at":"`+time.Now().Add(time.Second).UTC().Format(time.RFC3339)+`"}}`, "If-Match", "*").is(t, 200, "")
	admitted, first := 0, 0
	for _, k := range talkers {
		for {
			f, code := k.next()
			if code != 0 {
				t.Fatal(code)
			}
			if strings.Contains(string(f.Body), `"type":"admission"`) {
				admitted++
				break
			}
			if strings.Contains(string(f.Body), `"place":1,`) {
				first++
				break
			}
		}
	}
	if admitted != 1 || first != 1 {
		t.Errorf("%d admitted, %d first in line", admitted, first)
	}
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

func TestPushFigures(t *testing.T) {
	s := build(t, quick, config("premiere", 1))
	s.enter("premiere")
	_, one := s.enter("premiere")
	_, two := s.enter("premiere")
	k := s.talk("ticket:" + one + "\n")
	k.until("CONNECTED")
	s.stream(eventsPath, bearer(two)...).next()
	has := func(lines ...string) bool {
		m := string(s.api("GET", "/metrics", "").body)
		for _, l := range lines {
			if !strings.Contains(m, "\n"+l+"\n") {
				return false
			}
		}
		return !strings.Contains(m, "usher_push_frames_total 0\n") && !strings.Contains(m, "usher_push_bytes_total 0\n") && strings.Contains(m, "usher_push_frame_seconds ")
	}
	eventually(t, "both are counted", func() bool {
		return has(`usher_push_connections{transport="ws"} 1`, `usher_push_connections{transport="sse"} 1`, `usher_push_connections{transport="poll"} 0`,
			"usher_push_slow_connections 0", "usher_push_pace 0", "usher_http_event_streams 2")
	})
	s.do("POST", "/v1/rooms/premiere/leave", "", bearer(one)...).is(t, 204, "")
	eventually(t, "the close is counted by its code", func() bool {
		return has(`usher_push_connections{transport="ws"} 0`, `usher_push_closed_total{code="4500"} 1`)
	})
}
