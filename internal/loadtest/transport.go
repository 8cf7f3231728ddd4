package loadtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httputil"
	"net/url"
	"time"
)

// A Transport brings the news to a visitor who waits, in place of asking for her status again and again. Its methods
// are called from many goroutines.
type Transport interface {
	// Follow gives what the server says of one waiting ticket to tell, in order, until tell returns false (nil), ctx
	// ends (its error) or the connection does (why).
	Follow(ctx context.Context, ticket, from string, tell func(Update) bool) error
}

// Update is one message of a stream: a place, the admission, or the ticket's end.
type Update struct {
	Type      string     `json:"type"`   // rank | admission | timeout | stats | RECONNECT_SOON
	Reason    string     `json:"reason"` // of a timeout
	Place     *int64     `json:"place"`
	At        time.Time  `json:"at"`
	AfterMS   int64      `json:"after_ms"` // of RECONNECT_SOON
	Admission *admission `json:"admission"`
}

// errReconnect: the server asked to come back later.
type errReconnect struct{ after time.Duration }

func (e *errReconnect) Error() string { return fmt.Sprintf("asked to reconnect after %v", e.after) }

// sse follows GET …/events. Each waiting visitor holds a connection of her own, as browsers do.
type sse struct {
	t    *target
	room string
}

// silence is how long a stream may be quiet before it is dead; servers send a comment more often than that.
const silence = 35 * time.Second

func (s *sse) Follow(ctx context.Context, ticket, from string, tell func(Update) bool) error {
	c := s.t.conn()
	defer c.close()
	r := request{method: "GET", path: s.t.base + "/v1/rooms/" + url.PathEscape(s.room) + "/events", ticket: ticket, from: from, accept: "text/event-stream"}
	resp, f, err := c.send(&r)
	if err != nil {
		return err
	}
	if resp.status != 200 {
		if _, err := c.readBody(&resp, f); err != nil {
			return err
		}
		return &followError{resp}
	}
	nc := c.nc // it may be closed, and c empty, by the time that ctx ends
	stop := context.AfterFunc(ctx, func() { nc.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var body io.Reader = c.br
	if f.chunked {
		body = httputil.NewChunkedReader(c.br)
	}
	return events(ctx, bufio.NewReaderSize(body, 1<<10), func() error { return c.arm(silence) }, tell)
}

// followError is a stream that was refused.
type followError struct{ resp response }

func (e *followError) Error() string { return errorKind(e.resp, nil) }

// events reads a text/event-stream. alive is called before each read.
func events(ctx context.Context, br *bufio.Reader, alive func() error, tell func(Update) bool) error {
	var data []byte
	for {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := alive(); err != nil {
			return err
		}
		if ctx.Err() != nil { // alive has just undone the interruption's deadline
			return ctx.Err()
		}
		line, err := br.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			line, err = longLine(br, line)
		}
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return noEOF(err)
		}
		line = bytes.TrimRight(line, "\r\n")
		if rest, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if len(data)+len(rest) > keptBody {
				return errTooLarge
			}
			data = append(append(data, bytes.TrimPrefix(rest, []byte(" "))...), '\n')
			continue
		}
		if len(line) > 0 || len(data) == 0 {
			continue
		}
		var u Update
		err = json.Unmarshal(data, &u)
		data = data[:0]
		if err != nil {
			return fmt.Errorf("%w: %v", errMalformed, err)
		}
		if u.Type == "RECONNECT_SOON" {
			return &errReconnect{time.Duration(u.AfterMS) * time.Millisecond}
		}
		if !tell(u) {
			return nil
		}
	}
}

func longLine(br *bufio.Reader, begun []byte) ([]byte, error) {
	long := bytes.Clone(begun)
	for {
		line, err := br.ReadSlice('\n')
		if long = append(long, line...); len(long) > keptBody {
			return nil, errTooLarge
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return long, err
		}
	}
}
