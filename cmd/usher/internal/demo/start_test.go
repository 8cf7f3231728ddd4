package demo

import (
	"net"
	"strconv"
	"strings"
	"testing"
)

// The one moves on to the port that the other asks for.
func TestFreeAddrsDiffer(t *testing.T) {
	for range 20 {
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := taken.Addr().(*net.TCPAddr).Port
		public, admin, notes, err := freeAddrs(taken.Addr().String(), net.JoinHostPort("127.0.0.1", strconv.Itoa(port+1)))
		taken.Close()
		if err != nil && port > 65000 {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		if public == admin || public == taken.Addr().String() || len(notes) == 0 || !strings.Contains(notes[0], "--listen") {
			t.Fatalf("%s and %s, notes %q", public, admin, notes)
		}
		if strings.HasSuffix(public, ":"+strconv.Itoa(port+1)) { // else somebody else had it
			if len(notes) != 2 || !strings.Contains(notes[1], "--admin-listen") {
				t.Fatalf("notes %q", notes)
			}
			return
		}
	}
	t.Fatal("the next port was never free")
}
