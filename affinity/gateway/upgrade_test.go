package gateway_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/ushergo/usher/affinity"
	"github.com/ushergo/usher/affinity/gateway"
	"github.com/ushergo/usher/engine/memory"
)

func TestSessionsEndCutsItsClients(t *testing.T) {
	d := memory.NewDirectory(nil)
	owner, _ := here(t, d, "a", nil)
	_, srv := before(t, d, nil)
	announced(t, d, 1)
	c := upgrade(t, srv, "1", "")
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != 101 {
		t.Fatal(res, err)
	}
	owner.Retire("1", affinity.ErrAge)
	if _, err := io.Copy(io.Discard, c); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the socket stays open")
	}
}

// upgrade opens a WebSocket by hand and sends early with the handshake.
func upgrade(t *testing.T, srv *httptest.Server, key, early string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(c, "GET /?account="+key+" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"+early)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestBytesSentWithTheHandshakeArrive(t *testing.T) { // cases/affinity 10
	d := memory.NewDirectory(nil)
	here(t, d, "a", nil)
	_, srv := before(t, d, nil)
	announced(t, d, 1)
	hello := "\x81\x85\x00\x00\x00\x00hello"
	c := upgrade(t, srv, "1", hello)
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatal(res, err)
	}
	frame := make([]byte, 9)
	if _, err := io.ReadFull(br, frame); err != nil || string(frame[2:]) != "a:hello" {
		t.Errorf("%q, %v", frame, err)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc to count descriptors:", err)
	}
	return len(list)
}

func TestSoakUpgradesToADeadOwner(t *testing.T) { // cases/affinity 10
	n := 1000
	if os.Getenv("USHER_SOAK") != "" {
		n = 10_000
	}
	d := memory.NewDirectory(nil)
	dead := deadAddr(t)
	// Half of them are refused, half are cut by an owner that dies in the handshake.
	dying, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer dying.Close()
	go func() {
		for {
			c, err := dying.Accept()
			if err != nil {
				return
			}
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil && r.URL.Path == "/health/live" {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			} else if err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			}
			c.Close()
		}
	}()
	_, srv := before(t, d, func(o *gateway.Options) {
		o.Static = []affinity.Instance{
			{Owner: affinity.Identity{Instance: "dead"}, Addr: dead}, {Owner: affinity.Identity{Instance: "dying"}, Addr: dying.Addr().String()},
		}
	})
	try := func() {
		c := upgrade(t, srv, "1", "early")
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := bufio.NewReader(c).ReadByte(); err != nil {
			t.Errorf("no answer: %v", err)
		}
		c.Close()
	}
	for range 50 {
		try()
	}
	start := openFiles(t)
	for range n {
		try()
	}
	eventually(t, "descriptors are flat", func() bool { return openFiles(t) <= start+10 })
}
