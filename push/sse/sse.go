// Package sse brings push to EventSource. On HTTP/1.1 the socket is taken from the server and handed to the hub, as a
// WebSocket is; on HTTP/2 the request's goroutine writes what the hub gives it.
//
// An EventSource that is answered with anything but 200 closes for ever, so shedding is 200, a time to come back, and the
// end (see [Shed]).
package sse

import (
	"bytes"
	"errors"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/ushergo/usher/push"
)

// Caller is whose events are asked for.
type Caller struct {
	Room     *push.Room
	Ticket   push.Ticket
	Standing push.Standing
	From     push.Cursor  // the room's Head before the ticket was looked at
	After    *push.Cursor // Last-Event-ID
	Addr     string       // as given to the hub's Accept
	Hidden   bool
}

// Codec writes events.
type Codec struct{}

func (Codec) Name() string  { return "sse" }
func (Codec) Topical() bool { return false }

func (Codec) AppendMessage(b []byte, m *push.Message, _ string) []byte {
	if m.Retry > 0 {
		b = appendRetry(b, m.Retry)
	}
	if m.Reset {
		b = append(b, "event: reset\ndata: {\"type\":\"reset\"}\n\n"...)
	}
	if m.Cursor != (push.Cursor{}) {
		b = append(b, "id: "...)
		b = strconv.AppendUint(b, m.Cursor.Epoch, 10)
		b = append(b, '.')
		b = strconv.AppendUint(b, m.Cursor.N, 10)
		b = append(b, '\n')
	}
	b = append(b, "data: "...)
	b = append(b, m.Body...)
	return append(b, "\n\n"...)
}

func (Codec) AppendBeat(b []byte) []byte    { return append(b, ":\n\n"...) }
func (Codec) AppendPong(b, _ []byte) []byte { return b }
func appendRetry(b []byte, d time.Duration) []byte {
	b = append(b, "retry: "...)
	b = strconv.AppendInt(b, d.Milliseconds(), 10)
	return append(b, '\n')
}

func (Codec) AppendClose(b []byte, code push.Code, _ string, after time.Duration) []byte {
	if code == push.CodeSlow || code == push.CodeBehind || code == push.CodeLater {
		after = max(after, time.Second)
		return append(appendRetry(b, after), '\n')
	}
	return b
}

// Headers are those of an event stream, also through proxies that buffer, compress or cache.
func Headers(h http.Header) {
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Content-Type-Options", "nosniff")
}

// Shed answers a stream that cannot be had now: come back after a while.
func Shed(w http.ResponseWriter, after time.Duration) {
	Headers(w.Header())
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(append(appendRetry(nil, after), "\n"...))
}

// Serve attaches the request to the hub; Accept has said yes. It returns when the socket has been handed over, or
// on HTTP/2 with the end of the stream. Errors are those of Attach, before anything has been written.
func Serve(hub *push.Hub, w http.ResponseWriter, r *http.Request, c Caller) error {
	Headers(w.Header())
	hello := append(appendRetry(nil, time.Second+time.Duration(rand(hub.Window()))), '\n')
	peer := push.Peer{Codec: Codec{}, Addr: c.Addr, After: c.After, All: true, Hidden: c.Hidden}
	if r.ProtoMajor == 1 && r.ProtoMinor == 1 {
		nc, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			peer.Conn = nc
			peer.Hello = append(answerHead(w.Header()), hello...)
			conn, err := hub.Attach(c.Room, c.Ticket, c.Standing, c.From, peer)
			if err != nil {
				refuse(nc, w.Header(), hub, err)
				hub.Forget(c.Addr)
				return nil
			}
			go watch(nc, conn)
			return nil
		}
		if !errors.Is(err, http.ErrNotSupported) {
			return err
		}
	}
	peer.Hello = hello
	conn, err := hub.Attach(c.Room, c.Ticket, c.Standing, c.From, peer)
	if err != nil {
		return err
	}
	defer conn.Gone()
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	for {
		select {
		case b, ok := <-conn.Pull():
			if !ok {
				return nil
			}
			_ = rc.SetWriteDeadline(time.Now().Add(writeWithin))
			_, err := w.Write(b)
			if err == nil {
				err = rc.Flush()
			}
			if conn.Taken(err); err != nil {
				return nil
			}
		case <-r.Context().Done():
			return nil
		}
	}
}

// writeWithin is how long a reader on HTTP/2 may take for what was written.
const writeWithin = 10 * time.Second

// answerHead is the answer's head as the server would have written it. Its end is the connection's.
func answerHead(h http.Header) []byte {
	h.Set("Connection", "close")
	h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 200 OK\r\n")
	_ = h.Write(&b)
	b.WriteString("\r\n")
	return b.Bytes()
}

// refuse sheds on a socket that has been taken from the server.
func refuse(nc net.Conn, h http.Header, hub *push.Hub, err error) {
	after := hub.Window()
	if errors.Is(err, push.ErrTicket) {
		after = 30 * time.Second
	}
	_ = nc.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = nc.Write(append(appendRetry(answerHead(h), time.Second+time.Duration(rand(after))), '\n'))
	_ = nc.Close()
}

// watch waits for the client to leave. What it sends is nothing to us.
func watch(nc net.Conn, c *push.Conn) {
	defer c.Gone()
	var sink [16]byte
	for {
		if _, err := nc.Read(sink[:]); err != nil {
			return
		}
	}
}

func rand(d time.Duration) int64 { return mrand.Int64N(int64(d) + 1) }
