package stomp

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// Limits on what a client may send.
const (
	MaxHeaders = 32
	MaxLine    = 1 << 10
	MaxFrame   = 16 << 10
)

// Version is a version of the protocol.
type Version uint8

const (
	V10 Version = iota
	V11
	V12
)

func (v Version) String() string { return [...]string{"1.0", "1.1", "1.2"}[v] }

// ErrTooBig reports a frame over the limits; any other error of a Decoder is a breach of the protocol.
var ErrTooBig = errors.New("stomp: frame over the limits")

// Header is one line of a frame's head.
type Header struct{ Name, Value string }

// Frame is one frame.
type Frame struct {
	Command string
	Headers []Header
	Body    []byte
}

// Get returns the first header of a name: repeated ones count for nothing.
func (f *Frame) Get(name string) (string, bool) {
	for i := range f.Headers {
		if f.Headers[i].Name == name {
			return f.Headers[i].Value, true
		}
	}
	return "", false
}

// Value is Get without a second result.
func (f *Frame) Value(name string) string {
	v, _ := f.Get(name)
	return v
}

// Decoder takes frames out of a stream of bytes, however it is cut. The zero value reads as before a CONNECT. After an
// error it must not be used.
type Decoder struct {
	Version Version
	buf     []byte
}

// Feed adds bytes. They are copied.
func (d *Decoder) Feed(b []byte) { d.buf = append(d.buf, b...) }

// Pending is how many bytes wait for the rest of their frame.
func (d *Decoder) Pending() int { return len(d.buf) }

// Next returns the next whole frame; ok is false when more bytes are needed.
func (d *Decoder) Next() (f Frame, ok bool, err error) {
	// Ends of line between frames are heart-beats.
	n := 0
	for n < len(d.buf) && (d.buf[n] == '\n' || d.buf[n] == '\r') {
		n++
	}
	d.buf = d.buf[n:]
	if len(d.buf) == 0 {
		d.buf = nil // what was large does not stay
		return f, false, nil
	}
	f, n, err = parse(d.buf, d.Version)
	switch {
	case err != nil:
		return Frame{}, false, err
	case n == 0 && len(d.buf) >= MaxFrame:
		return Frame{}, false, ErrTooBig
	case n == 0:
		return Frame{}, false, nil
	}
	d.buf = d.buf[n:]
	return f, true, nil
}

// parse reads one frame; n is 0 while it is not whole.
func parse(b []byte, v Version) (f Frame, n int, err error) {
	line, rest, ok, err := cutLine(b, v)
	if err != nil || !ok {
		return f, 0, err
	}
	if f.Command = string(line); f.Command == "" || !upper(line) {
		return f, 0, fmt.Errorf("stomp: %.20q is no command", line)
	}
	// CONNECT is read before a version is agreed on: it is not escaped, and ends of line may be CR LF.
	connect := f.Command == "CONNECT" || f.Command == "STOMP"
	for {
		if line, rest, ok, err = cutLine(rest, v); err != nil || !ok {
			return f, 0, err
		}
		if len(line) == 0 {
			break
		}
		if len(f.Headers) == MaxHeaders {
			return f, 0, ErrTooBig
		}
		name, value, found := bytes.Cut(line, []byte(":"))
		if !found || len(name) == 0 {
			return f, 0, fmt.Errorf("stomp: header without a name and a colon: %.40q", line)
		}
		h := Header{string(name), string(value)}
		if !connect && v > V10 {
			if h.Name, err = unescape(name, v); err == nil {
				h.Value, err = unescape(value, v)
			}
			if err != nil {
				return f, 0, err
			}
		}
		f.Headers = append(f.Headers, h)
	}
	if text, has := f.Get("content-length"); has {
		// Judged before anything is kept for it.
		size, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return f, 0, fmt.Errorf("stomp: content-length %.20q is no number", text)
		}
		if size > MaxFrame {
			return f, 0, ErrTooBig
		}
		if uint64(len(rest)) < size+1 {
			return f, 0, nil
		}
		if rest[size] != 0 {
			return f, 0, errors.New("stomp: no NUL after content-length bytes")
		}
		f.Body = bytes.Clone(rest[:size])
		rest = rest[size+1:]
	} else {
		i := bytes.IndexByte(rest, 0)
		if i < 0 {
			return f, 0, nil
		}
		f.Body = bytes.Clone(rest[:i])
		rest = rest[i+1:]
	}
	if n = len(b) - len(rest); n > MaxFrame {
		return f, 0, ErrTooBig
	}
	return f, n, nil
}

// cutLine takes a line off the front. CR LF ends one too in 1.2.
func cutLine(b []byte, v Version) (line, rest []byte, ok bool, err error) {
	i := bytes.IndexByte(b, '\n')
	if i > MaxLine || i < 0 && len(b) > MaxLine {
		return nil, nil, false, ErrTooBig
	}
	if i < 0 {
		return nil, nil, false, nil
	}
	line, rest = b[:i], b[i+1:]
	if k := len(line); k > 0 && line[k-1] == '\r' && v == V12 {
		line = line[:k-1]
	}
	if bytes.IndexByte(line, 0) >= 0 || bytes.IndexByte(line, '\r') >= 0 {
		return nil, nil, false, fmt.Errorf("stomp: control character in %.40q", line)
	}
	return line, rest, true, nil
}

func upper(b []byte) bool {
	for _, c := range b {
		if c < 'A' || c > 'Z' {
			return false
		}
	}
	return len(b) <= 16
}

func unescape(b []byte, v Version) (string, error) {
	if bytes.IndexByte(b, '\\') < 0 {
		return string(b), nil
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			out = append(out, b[i])
			continue
		}
		i++
		switch {
		case i == len(b):
			return "", errors.New("stomp: a header ends in a backslash")
		case b[i] == 'n':
			out = append(out, '\n')
		case b[i] == 'c':
			out = append(out, ':')
		case b[i] == '\\':
			out = append(out, '\\')
		case b[i] == 'r' && v == V12:
			out = append(out, '\r')
		default:
			return "", fmt.Errorf("stomp: unknown escape \\%c", b[i])
		}
	}
	return string(out), nil
}

// Append appends a frame as a server sends it. Header values of ours need no escaping; those that quote a client do.
func (f *Frame) Append(b []byte, v Version) []byte {
	b = append(b, f.Command...)
	b = append(b, '\n')
	for _, h := range f.Headers {
		if f.Command == "CONNECTED" || v == V10 {
			b = append(append(append(b, h.Name...), ':'), h.Value...)
		} else {
			b = escape(b, h.Name, v)
			b = append(b, ':')
			b = escape(b, h.Value, v)
		}
		b = append(b, '\n')
	}
	b = append(b, '\n')
	b = append(b, f.Body...)
	return append(b, 0)
}

func escape(b []byte, s string, v Version) []byte {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == ':':
			b = append(b, '\\', 'c')
		case c == '\\':
			b = append(b, '\\', '\\')
		case c == '\r' && v == V12:
			b = append(b, '\\', 'r')
		default:
			b = append(b, c)
		}
	}
	return b
}
