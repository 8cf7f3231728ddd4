package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// namespace is a network of its own for one node, with two cables to this machine: one to Redis, one to visitors.
type namespace struct {
	t            testing.TB
	name         string
	redisAddr    string // of this machine, as the node reaches Redis there
	visitorsAddr string // of the node, as this machine reaches it
}

// newNamespace lays the cables. It skips, or fails under USHER_TEST_ALL=1, where that is not allowed.
func newNamespace(t testing.TB) *namespace {
	t.Helper()
	missing := func(why string) {
		if os.Getenv("USHER_TEST_ALL") == "1" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	if _, err := exec.LookPath("ip"); err != nil {
		missing("needs ip (apt-get install iproute2)")
	}
	// Two processes that test at once get networks of their own by their pids: 10.200.0.0/13 has 2^16 of eight addresses.
	id := os.Getpid() & 0xffff
	name := fmt.Sprintf("usher%d", id)
	addr := func(i int) string { return fmt.Sprintf("10.%d.%d.%d", 200+id>>13, id>>5&255, id&31*8+i) }
	n := &namespace{t: t, name: name, redisAddr: addr(1), visitorsAddr: addr(6)}
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		missing("needs the right to make network namespaces (root): " + strings.TrimSpace(string(out)))
	}
	t.Cleanup(func() { // the cables go with it
		_ = exec.Command("ip", "netns", "del", name).Run()
	})
	for _, line := range []string{
		"link add " + name + "r type veth peer name redis netns " + name,
		"link add " + name + "v type veth peer name visitors netns " + name,
		"addr add " + addr(1) + "/30 dev " + name + "r", "link set " + name + "r up",
		"addr add " + addr(5) + "/30 dev " + name + "v", "link set " + name + "v up",
		"-n " + name + " addr add " + addr(2) + "/30 dev redis", "-n " + name + " link set redis up",
		"-n " + name + " addr add " + addr(6) + "/30 dev visitors", "-n " + name + " link set visitors up",
		"-n " + name + " link set lo up",
	} {
		n.ip(line)
	}
	return n
}

func (n *namespace) ip(line string) {
	n.t.Helper()
	if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s", line, err, out)
	}
}

// cut pulls the cable to Redis; visitors still reach the node.
func (n *namespace) cut() { n.ip("-n " + n.name + " link set redis down") }

// mend puts it back.
func (n *namespace) mend() { n.ip("-n " + n.name + " link set redis up") }
