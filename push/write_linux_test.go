package push_test

import (
	"net"
	"syscall"
	"testing"

	"github.com/ushergo/usher/push"
)

// A stopped peer costs the kernel little, and a vanished one is noticed.
func TestSocketsAreTuned(t *testing.T) {
	h, s := build(t, quick())
	s.put(id(1), waiting(1))
	l := listen(t)
	if _, err := h.Accept(""); err != nil {
		t.Fatal(err)
	}
	server, peer := pair(t, l)
	defer peer.Close()
	if _, err := h.Attach(s.room, ticket(1), waiting(1), s.room.Head(), push.Peer{Conn: server, Codec: lines{}, All: true}); err != nil {
		t.Fatal(err)
	}
	raw, err := server.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		if n, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF); err != nil || n > 32<<10 {
			t.Errorf("send buffer %d, %v", n, err)
		}
		if ms, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, 18); err != nil || ms != 25_000 {
			t.Errorf("user timeout %d, %v", ms, err)
		}
	})
}
