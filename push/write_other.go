//go:build !unix

package push

import (
	"net"
	"syscall"
)

type rawWrite struct{}

func (*rawWrite) bind() {}

func (*rawWrite) write(syscall.RawConn, []byte) (int, error) { return 0, nil }

// tune finds no way to write without waiting here: every write takes the slow path, with a goroutine of its own.
func tune(net.Conn, *Options) syscall.RawConn { return nil }
