package push

import (
	"bytes"
	"time"
)

// write writes what the peer takes now. The rest goes the slow way; it never waits.
func (s *shard) write(c *Conn, b []byte) {
	s.frames.Add(1)
	s.hub.counts.frames.Add(1)
	s.hub.counts.bytes.Add(int64(len(b)))
	if c.nc == nil {
		c.set(busy)
		c.out <- bytes.Clone(b) // has room: it is empty while not busy
		return
	}
	n := 0
	if c.raw != nil {
		var err error
		if n, err = s.w.write(c.raw, b); err != nil {
			s.drop(c, CodeNormal) // the peer is gone
			return
		}
		if n == len(b) {
			return
		}
	}
	if s.hub.slow.Add(1) > int64(s.hub.opts.MaxSlow) {
		s.hub.slow.Add(-1)
		s.drop(c, CodeSlow)
		return
	}
	s.hub.counts.slow.Add(1)
	c.set(busy)
	go c.slow(bytes.Clone(b[n:]))
}

// slow writes the rest of a frame, for as long as it may take.
func (c *Conn) slow(rest []byte) {
	_ = c.nc.SetWriteDeadline(time.Now().Add(c.hub.opts.SlowWithin))
	_, err := c.nc.Write(rest)
	if err == nil {
		err = c.nc.SetWriteDeadline(time.Time{})
	}
	c.post(op{kind: opWritable, c: c, err: err})
}
