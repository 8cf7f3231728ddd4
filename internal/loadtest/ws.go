package loadtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gobwas/ws"

	"github.com/ushergo/usher/push/stomp"
)

// websocket follows /v1/stomp as a browser's page does: one socket for each waiting visitor.
type websocket struct {
	t    *target
	room string
}

func (s *websocket) Follow(ctx context.Context, ticket, from string, tell func(Update) bool) error {
	c := s.t.conn()
	defer c.close()
	if err := c.dial(); err != nil {
		return err
	}
	nc := c.nc // it may be closed, and c empty, by the time that ctx ends
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.arm(s.t.timeout); err != nil {
		return err
	}
	h := http.Header{"Usher-Ticket": {ticket}, "User-Agent": {"usher-bench"}}
	if from != "" {
		h.Set("X-Forwarded-For", from)
	}
	d := ws.Dialer{Protocols: []string{"v12.stomp"}, Header: ws.HandshakeHeaderHTTP(h)}
	br, _, err := d.Upgrade(nc, &url.URL{Scheme: "ws", Host: s.t.host, Path: s.t.base + "/v1/stomp"})
	if err != nil {
		return end(ctx, err)
	}
	if br == nil {
		br = bufio.NewReaderSize(nc, 1<<10)
	}
	say := func(op ws.OpCode, text string) error {
		return ws.WriteFrame(nc, ws.MaskFrameInPlace(ws.NewFrame(op, true, []byte(text))))
	}
	if err := say(ws.OpText, "CONNECT\naccept-version:1.2\nheart-beat:0,20000\nhost:bench\nroom:"+s.room+"\n\n\x00"); err != nil {
		return end(ctx, err)
	}
	dec := stomp.Decoder{Version: stomp.V12}
	for {
		if err := c.arm(silence); err != nil {
			return err
		}
		if ctx.Err() != nil { // arm has just undone the interruption's deadline
			return ctx.Err()
		}
		head, err := ws.ReadHeader(br)
		if err != nil {
			return end(ctx, noEOF(err))
		}
		if head.Length > keptBody {
			return errTooLarge
		}
		payload := make([]byte, head.Length)
		if _, err := io.ReadFull(br, payload); err != nil {
			return end(ctx, noEOF(err))
		}
		switch head.OpCode {
		case ws.OpPing:
			err = say(ws.OpPong, string(payload))
		case ws.OpClose:
			code, reason := ws.ParseCloseFrameData(payload)
			return fmt.Errorf("closed with %d %s", code, reason)
		case ws.OpText, ws.OpBinary:
			dec.Feed(payload)
			for err == nil {
				f, ok, broken := dec.Next()
				if broken != nil {
					return fmt.Errorf("%w: %w", errMalformed, broken)
				}
				if !ok {
					break
				}
				var goOn bool
				if goOn, err = s.frame(&f, say, tell); err == nil && !goOn {
					return nil
				}
			}
		}
		if err != nil {
			return end(ctx, err)
		}
	}
}

// frame takes one frame of the server's; goOn is false when the visitor has heard enough.
func (s *websocket) frame(f *stomp.Frame, say func(ws.OpCode, string) error, tell func(Update) bool) (goOn bool, err error) {
	switch f.Command {
	case "CONNECTED":
		var b strings.Builder
		for i, topic := range []string{"admission/" + f.Value("ticket-id"), "timeout/" + f.Value("ticket-id"), "rank/" + f.Value("ticket-id"), "stats/" + s.room} {
			fmt.Fprintf(&b, "SUBSCRIBE\nid:%d\ndestination:/topic/%s\n\n\x00", i, topic)
		}
		return true, say(ws.OpText, b.String())
	case "ERROR":
		return false, errors.New("refused: " + f.Value("message"))
	case "MESSAGE":
		var u Update
		if err := json.Unmarshal(f.Body, &u); err != nil {
			return false, fmt.Errorf("%w: %w", errMalformed, err)
		}
		if u.Type == "RECONNECT_SOON" {
			return false, &errReconnect{time.Duration(u.AfterMS) * time.Millisecond}
		}
		return tell(u), nil
	}
	return true, nil
}

// end is ctx's error where that is why a read failed.
func end(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
