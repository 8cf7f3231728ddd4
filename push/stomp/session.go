package stomp

import (
	"bytes"
	"errors"
	"strings"

	"github.com/gobwas/ws"

	"github.com/ushergo/usher/push"
)

// session is one connection after its CONNECT. Its reader is the one goroutine that a connection costs: it keeps small
// what it does, so that its stack stays small, and has frames handled by a goroutine that ends with them.
type session struct {
	c    *push.Conn
	r    reader
	dec  Decoder
	msgs messages
	text bucket
	ctrl bucket
	over bool // an ERROR or a farewell has been sent: what comes is thrown away
}

func (s *session) read() {
	defer s.c.Gone()
	for {
		var h head
		if err := s.r.head(&h); err != nil {
			s.fail(err)
			return
		}
		s.c.Heard()
		if err := s.frame(&h); err != nil {
			s.fail(err)
			if err == errLeft {
				return
			}
		}
	}
}

// fail ends the connection for a reason of the peer's; the reader goes on until the peer or the hub closes.
func (s *session) fail(err error) {
	e, ok := asClose(err)
	if !ok || s.over {
		return
	}
	s.over = true
	s.c.Close(e.code, nil)
}

func (s *session) frame(h *head) error {
	if h.op >= ws.OpClose {
		return s.control(h)
	}
	done, err := s.msgs.next(&s.r, h)
	if err != nil || !done {
		return err
	}
	part := s.msgs.part
	s.msgs.part = nil
	if s.over || beatOnly(part) && s.dec.Pending() == 0 {
		return s.ctrl.take(200, 20)
	}
	if err := s.text.take(100, 5); err != nil {
		return err
	}
	reply := make(chan error, 1)
	go func() { reply <- s.frames(part) }()
	return <-reply
}

func (s *session) control(h *head) error {
	if err := s.ctrl.take(200, 20); err != nil {
		return err
	}
	b, err := s.r.payload(h, make([]byte, 0, h.n))
	if err != nil {
		return err
	}
	switch h.op {
	case ws.OpPing:
		s.c.Pong(b)
	case ws.OpClose:
		return errLeft
	}
	return nil
}

func beatOnly(b []byte) bool {
	for _, c := range b {
		if c != '\n' && c != '\r' {
			return false
		}
	}
	return true
}

// frames handles what a message holds: several frames, or a part of one.
func (s *session) frames(b []byte) error {
	s.dec.Feed(b)
	for {
		f, ok, err := s.dec.Next()
		if err == nil && !ok {
			return nil
		}
		if err != nil {
			code := push.CodeProtocol
			if errors.Is(err, ErrTooBig) {
				code = push.CodeTooBig
			}
			s.refuse(code, strings.TrimPrefix(err.Error(), "stomp: "), "")
			return nil
		}
		if s.handle(&f); s.over {
			return nil
		}
	}
}

// refuse sends ERROR and closes.
func (s *session) refuse(code push.Code, message, receipt string) {
	s.over = true
	s.c.Close(code, text(nil, errorFrame(message, receipt), s.dec.Version))
}

func errorFrame(message, receipt string) *Frame {
	f := &Frame{Command: "ERROR", Headers: []Header{{"message", message}, {"content-type", "text/plain"}}, Body: []byte(message)}
	if receipt != "" {
		f.Headers = append(f.Headers, Header{"receipt-id", receipt})
	}
	return f
}

func (s *session) handle(f *Frame) {
	receipt := f.Value("receipt")
	if len(receipt) > 128 {
		s.refuse(push.CodePolicy, "receipt ids have at most 128 bytes", "")
		return
	}
	var answer []byte
	if receipt != "" {
		answer = text(nil, &Frame{Command: "RECEIPT", Headers: []Header{{"receipt-id", receipt}}}, s.dec.Version)
	}
	switch f.Command {
	case "SUBSCRIBE":
		s.subscribe(f, receipt, answer)
	case "UNSUBSCRIBE":
		id, ok := f.Get("id")
		if !ok && s.dec.Version == V10 {
			id = f.Value("destination")
		}
		if err := s.c.Unsubscribe(id, answer); err != nil {
			s.refuse(push.CodeProtocol, "there is no subscription of that id", receipt)
		}
	case "DISCONNECT":
		s.over = true
		s.c.Close(push.CodeNormal, answer)
	case "ACK", "NACK":
		if answer != nil {
			s.c.Send(answer)
		}
	case "SEND":
		s.refuse(push.CodePolicy, "clients do not send here; use the HTTP API", receipt)
	case "BEGIN", "COMMIT", "ABORT":
		s.refuse(push.CodePolicy, "there are no transactions here", receipt)
	case "CONNECT", "STOMP":
		s.refuse(push.CodeProtocol, "connected already", receipt)
	default:
		s.refuse(push.CodeProtocol, "unknown command", receipt)
	}
}

func (s *session) subscribe(f *Frame, receipt string, answer []byte) {
	id, ok := f.Get("id")
	dest := f.Value("destination")
	if !ok && s.dec.Version == V10 {
		id = dest // 1.0 may leave it out
	}
	if !validID(id) && id != dest {
		s.refuse(push.CodeProtocol, "a subscription needs an id of 1 to 64 characters of A-Z a-z 0-9 . _ ~ -", receipt)
		return
	}
	topic, ok := s.own(dest)
	if !ok {
		s.refuse(push.CodePolicy, "that destination is not yours: there are /topic/admission/, /topic/rank/ and /topic/timeout/ with your ticket's id, and /topic/stats/ with its room", receipt)
		return
	}
	if err := s.c.Subscribe(topic, id, f.Value("hidden") == "1", answer); errors.Is(err, push.ErrSubscribed) {
		s.refuse(push.CodeProtocol, "already subscribed, or that id is in use", receipt)
	}
}

// own says which topic a destination is, if this connection may have it.
func (s *session) own(dest string) (push.Topic, bool) {
	rest, ok := strings.CutPrefix(dest, "/topic/")
	if !ok {
		return 0, false
	}
	name, of, ok := strings.Cut(rest, "/")
	if !ok {
		return 0, false
	}
	topic, ok := push.ParseTopic(name)
	mine := s.c.Ticket().Name
	if topic == push.TopicStats {
		mine = s.c.Room().ID()
	}
	return topic, ok && of == mine
}

func validID(id string) bool {
	return id != "" && len(id) <= 64 && bytes.IndexFunc([]byte(id), func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '~' && c != '-'
	}) < 0
}
