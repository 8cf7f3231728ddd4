// Package poll brings push to whoever can do nothing but ask: a long poll on the cursor of the room's log.
//
// Every answer names a cursor; the next poll asks for what came after it. An answer that was lost is asked for again
// with the old cursor, and has it again. There is no state between polls.
package poll

import (
	"bytes"
	"context"
	"strconv"
	"time"

	"github.com/ushergo/usher/push"
)

// Hold is how long a poll waits for news.
const Hold = 25 * time.Second

// Caller is whose news are asked for.
type Caller struct {
	Room     *push.Room
	Ticket   push.Ticket
	Standing push.Standing
	From     push.Cursor  // the room's Head before the ticket was looked at
	After    *push.Cursor // nil: everything now true
	Addr     string       // as given to the hub's Accept
	Hidden   bool
}

// codec hands bodies from a shard to the request: a line of cursor and reset, a line of body. Bodies hold no line feed.
type codec struct{}

func (codec) Name() string  { return "poll" }
func (codec) Topical() bool { return false }

func (codec) AppendMessage(b []byte, m *push.Message, _ string) []byte {
	b = append(b, m.Cursor.String()...)
	if m.Reset {
		b = append(b, '!')
	}
	b = append(b, ' ')
	b = strconv.AppendInt(b, m.Retry.Milliseconds(), 10)
	b = append(b, '\n')
	b = append(b, m.Body...)
	return append(b, '\n')
}

func (codec) AppendBeat(b []byte) []byte                                          { return b }
func (codec) AppendPong(b, _ []byte) []byte                                       { return b }
func (codec) AppendClose(b []byte, _ push.Code, _ string, _ time.Duration) []byte { return b }

// Wait returns the answer to a poll: {"cursor","reset","next_poll_ms","messages":[…]}; Accept has said yes. Without news
// it returns one without messages after hold. Errors: those of Attach, ctx's.
func Wait(ctx context.Context, hub *push.Hub, c Caller, hold time.Duration) ([]byte, error) {
	conn, err := hub.Attach(c.Room, c.Ticket, c.Standing, c.From, push.Peer{
		Codec: codec{}, Addr: c.Addr, After: c.After, All: true, Hidden: c.Hidden, Hold: true,
	})
	if err != nil {
		return nil, err
	}
	defer conn.Gone()
	at := c.From
	if c.After != nil {
		at = *c.After
	}
	timer := time.NewTimer(hold)
	defer timer.Stop()
	select {
	case b, ok := <-conn.Pull():
		if !ok {
			return answer(at, nil), nil
		}
		return answer(at, b), nil
	case <-timer.C:
		return answer(at, nil), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// answer makes the document of what a shard handed over.
func answer(at push.Cursor, lines []byte) []byte {
	var bodies []byte
	reset, retry := false, "0"
	for len(lines) > 0 {
		var head, body []byte
		head, lines, _ = bytes.Cut(lines, []byte("\n"))
		body, lines, _ = bytes.Cut(lines, []byte("\n"))
		cursor, ms, _ := bytes.Cut(head, []byte(" "))
		if text, cut := bytes.CutSuffix(cursor, []byte("!")); cut {
			cursor, reset = text, true
			at = push.Cursor{}
		}
		if c, err := push.ParseCursor(string(cursor)); err == nil && at.Before(c) {
			at = c
		}
		if string(ms) != "0" {
			retry = string(ms)
		}
		if len(bodies) > 0 {
			bodies = append(bodies, ',')
		}
		bodies = append(bodies, body...)
	}
	b := append([]byte(`{"cursor":"`), at.String()...)
	b = append(b, `","reset":`...)
	b = strconv.AppendBool(b, reset)
	b = append(b, `,"next_poll_ms":`...)
	b = append(b, retry...)
	b = append(b, `,"messages":[`...)
	b = append(b, bodies...)
	return append(b, "]}"...)
}
