package web

import (
	"context"
	"net"
	"syscall"
	"testing"
)

func TestVanishedNetworksAreNoticed(t *testing.T) { // cases/room 1
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cutUnheard(context.Background()) // a server without ConnContext: nothing happens
	cutUnheard(ConnContext(context.Background(), c))
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var ms int
	if err := raw.Control(func(fd uintptr) { ms, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout) }); err != nil {
		t.Fatal(err)
	}
	if err != nil || ms != int(unheardAfter.Milliseconds()) {
		t.Errorf("%d ms, %v", ms, err)
	}
}
