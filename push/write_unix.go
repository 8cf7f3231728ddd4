//go:build unix

package push

import (
	"net"
	"syscall"
	"time"
)

// rawWrite is one write system call that does not park. It belongs to a shard, so that a connection needs no closure
// of its own.
type rawWrite struct {
	b   []byte
	n   int
	err error
	fn  func(fd uintptr) bool
}

func (w *rawWrite) bind() {
	w.fn = func(fd uintptr) bool {
		for {
			w.n, w.err = syscall.Write(int(fd), w.b)
			if w.err != syscall.EINTR {
				return true // done, whatever it took: never wait until it is writable
			}
		}
	}
}

// write returns how much the kernel took; a full buffer is no error.
func (w *rawWrite) write(raw syscall.RawConn, b []byte) (int, error) {
	w.b, w.n, w.err = b, 0, nil
	err := raw.Write(w.fn)
	w.b = nil
	switch {
	case err != nil:
		return 0, err
	case w.err == syscall.EAGAIN:
		return 0, nil
	case w.err != nil:
		return 0, w.err
	}
	return max(w.n, 0), nil
}

// tune makes a socket fit for pushing: a small send buffer, so that a stopped peer costs the kernel little, and a limit
// to how long it keeps what is not acknowledged. It returns nil for what is no plain socket (TLS): that is written to
// the slow way.
func tune(c net.Conn, o *Options) syscall.RawConn {
	t, ok := c.(*net.TCPConn)
	if !ok {
		if u, ok := c.(*net.UnixConn); ok {
			if raw, err := u.SyscallConn(); err == nil {
				return raw
			}
		}
		return nil
	}
	_ = t.SetWriteBuffer(o.SendBuffer)
	_ = t.SetNoDelay(true)
	_ = t.SetDeadline(time.Time{})
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	_ = raw.Control(func(fd uintptr) { userTimeout(int(fd), o.UserTimeout) })
	return raw
}
