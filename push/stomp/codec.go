package stomp

import (
	"encoding/binary"
	"strconv"
	"time"

	"github.com/gobwas/ws"

	"github.com/ushergo/usher/push"
)

// codec writes MESSAGE frames in WebSocket text frames. beat: the client wants to see heart-beats, beside pings.
type codec struct{ beat bool }

func (codec) Name() string  { return "ws" }
func (codec) Topical() bool { return true }

func (codec) AppendMessage(b []byte, m *push.Message, sub string) []byte {
	start := len(b)
	b = append(b, 0x81, 126, 0, 0) // the length is known afterwards
	b = append(b, "MESSAGE\nsubscription:"...)
	b = append(b, sub...)
	b = append(b, "\nmessage-id:"...)
	b = strconv.AppendUint(b, m.Cursor.Epoch, 10)
	b = append(b, '.')
	b = strconv.AppendUint(b, m.Cursor.N, 10)
	b = append(b, '-')
	b = append(b, m.Topic.String()...)
	b = append(b, "\ndestination:/topic/"...)
	b = append(b, m.Topic.String()...)
	b = append(b, '/')
	b = append(b, m.Of...)
	if m.Cursor != (push.Cursor{}) {
		b = append(b, "\ncursor:"...)
		b = strconv.AppendUint(b, m.Cursor.Epoch, 10)
		b = append(b, '.')
		b = strconv.AppendUint(b, m.Cursor.N, 10)
	}
	if m.Reset {
		b = append(b, "\nreset:true"...)
	}
	b = append(b, "\ncontent-type:application/json\ncontent-length:"...)
	b = strconv.AppendInt(b, int64(len(m.Body)), 10)
	b = append(b, "\n\n"...)
	b = append(b, m.Body...)
	b = append(b, 0)
	return seal(b, start)
}

// seal writes the length of the text frame that begins at start with four bytes of head.
func seal(b []byte, start int) []byte {
	switch n := len(b) - start - 4; {
	case n < 126:
		b[start+1] = byte(n)
		copy(b[start+2:], b[start+4:])
		return b[:len(b)-2]
	case n < 1<<16:
		binary.BigEndian.PutUint16(b[start+2:], uint16(n))
		return b
	default: // larger than anything of ours; still right
		b = append(b, 0, 0, 0, 0, 0, 0)
		copy(b[start+10:], b[start+4:len(b)-6])
		b[start+1] = 127
		binary.BigEndian.PutUint64(b[start+2:], uint64(n))
		return b
	}
}

// text appends a STOMP frame in a text frame.
func text(b []byte, f *Frame, v Version) []byte {
	start := len(b)
	b = append(b, 0x81, 126, 0, 0)
	return seal(f.Append(b, v), start)
}

func (c codec) AppendBeat(b []byte) []byte {
	b = append(b, 0x89, 0) // a ping: browsers answer it without a script
	if c.beat {
		b = append(b, 0x81, 1, '\n') // scripts do not see pings
	}
	return b
}

func (codec) AppendPong(b, payload []byte) []byte {
	b = append(b, 0x8a, byte(len(payload)))
	return append(b, payload...)
}

func (codec) AppendClose(b []byte, code push.Code, reason string, after time.Duration) []byte {
	if after > 0 {
		reason += " retry=" + strconv.FormatInt(after.Milliseconds(), 10)
	}
	body := ws.NewCloseFrameBody(ws.StatusCode(code), reason[:min(len(reason), 123)])
	b = append(b, 0x88, byte(len(body)))
	return append(b, body...)
}
