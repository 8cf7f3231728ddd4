package stomp

import (
	"encoding/binary"
	"errors"
	"net"
	"time"

	"github.com/gobwas/ws"

	"github.com/ushergo/usher/push"
)

// reader takes messages off a WebSocket. Its buffer is small and its own: most of what browsers send are pongs.
type reader struct {
	nc    net.Conn
	early []byte // read by the HTTP server already
	pos   int
	end   int
	buf   [64]byte
}

// closeError is a peer that broke the protocol, or left.
type closeError struct {
	code push.Code
	text string
}

func (e *closeError) Error() string { return e.text }

var (
	errMask   = &closeError{push.CodeProtocol, "a client's frames must be masked"}
	errFrame  = &closeError{push.CodeProtocol, "unknown or broken frame"}
	errTooBig = &closeError{push.CodeTooBig, "the message is over the limits"}
	errLeft   = &closeError{push.CodeNormal, "closed by the peer"}
)

// head is a frame's head.
type head struct {
	op   ws.OpCode
	fin  bool
	mask [4]byte
	n    int
}

// fill reads until at least n bytes (at most 14) are in the buffer.
func (r *reader) fill(n int) error {
	for r.end-r.pos < n {
		if r.pos > 0 {
			copy(r.buf[:], r.buf[r.pos:r.end])
			r.end -= r.pos
			r.pos = 0
		}
		if len(r.early) > 0 {
			k := copy(r.buf[r.end:], r.early)
			r.early = r.early[k:]
			r.end += k
			continue
		}
		r.early = nil
		k, err := r.nc.Read(r.buf[r.end:])
		r.end += k
		if err != nil && k == 0 {
			return err
		}
	}
	return nil
}

// head reads a frame's head and judges it before anything is kept for it.
func (r *reader) head(h *head) error {
	if err := r.fill(2); err != nil {
		return err
	}
	b0, b1 := r.buf[r.pos], r.buf[r.pos+1]
	h.fin, h.op, h.n = b0&0x80 != 0, ws.OpCode(b0&0x0f), int(b1&0x7f)
	switch {
	case b0&0x70 != 0: // no extension was negotiated
		return errFrame
	case b1&0x80 == 0:
		return errMask
	case h.op > ws.OpBinary && h.op < ws.OpClose || h.op > ws.OpPong:
		return errFrame
	case h.op >= ws.OpClose && (!h.fin || h.n > 125):
		return errFrame
	}
	size := 6
	switch h.n {
	case 126:
		size = 8
	case 127:
		size = 14
	}
	if err := r.fill(size); err != nil {
		return err
	}
	p := r.buf[r.pos:]
	switch h.n {
	case 126:
		h.n = int(binary.BigEndian.Uint16(p[2:]))
	case 127:
		n := binary.BigEndian.Uint64(p[2:])
		if n > MaxFrame {
			return errTooBig
		}
		h.n = int(n)
	}
	if h.n > MaxFrame {
		return errTooBig
	}
	copy(h.mask[:], p[size-4:size])
	r.pos += size
	return nil
}

// payload reads a frame's payload, growing as it arrives: what is only claimed costs nothing.
func (r *reader) payload(h *head, b []byte) ([]byte, error) {
	start := len(b)
	for left := h.n; left > 0; {
		if r.end == r.pos {
			if err := r.fill(1); err != nil {
				return b, err
			}
		}
		k := min(left, r.end-r.pos)
		b = append(b, r.buf[r.pos:r.pos+k]...)
		r.pos += k
		left -= k
	}
	ws.Cipher(b[start:], h.mask, 0)
	return b, nil
}

// messages assembles fragments.
type messages struct {
	part []byte
	in   bool
}

// next takes one frame; done is true when a whole text or binary message is in part.
func (m *messages) next(r *reader, h *head) (done bool, err error) {
	switch {
	case h.op == ws.OpContinuation && !m.in, h.op != ws.OpContinuation && m.in:
		return false, errFrame
	case len(m.part)+h.n > MaxFrame:
		return false, errTooBig
	}
	if m.part, err = r.payload(h, m.part); err != nil {
		return false, err
	}
	m.in = !h.fin
	return h.fin, nil
}

// bucket bounds what a client may say: it has little to.
type bucket struct {
	left float64
	at   time.Time
}

var errChatter = &closeError{push.CodePolicy, "too many messages"}

func (b *bucket) take(max, perSecond float64) error {
	now := time.Now()
	if b.at.IsZero() {
		b.left = max
	} else {
		b.left = min(b.left+now.Sub(b.at).Seconds()*perSecond, max)
	}
	b.at = now
	if b.left--; b.left < 0 {
		return errChatter
	}
	return nil
}

// asClose says with which code to close after an error; ok is false when the peer is simply gone.
func asClose(err error) (*closeError, bool) {
	var e *closeError
	if errors.As(err, &e) {
		return e, true
	}
	return nil, false
}
