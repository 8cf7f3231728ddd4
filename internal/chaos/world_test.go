package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/internal/loadtest"
	"github.com/ushergo/usher/internal/redistest"
)

// world is Redis, nodes and what stands in front of them.
type world struct {
	t                testing.TB
	redis            *redistest.Server // the master
	replica          *redistest.Server // nil: none
	engine           string            // the section of the configuration file
	rooms            string
	visitors, admins *balancer
	nodes            []*node
	drain            time.Duration
}

func newWorld(t testing.TB, rooms string) *world {
	t.Helper()
	if _, err := binary(); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, rooms: rooms, drain: 5 * time.Second}
	for _, b := range []**balancer{&w.visitors, &w.admins} {
		var err error
		if *b, err = newBalancer(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup((*b).close)
	}
	return w
}

// config is the file of one node.
func (w *world) config(name string) string {
	return fmt.Sprintf("engine: %s\nnode: {id: %s, drain: %v}\nrooms:\n%s\n", w.engine, name, w.drain, w.rooms)
}

// add starts a node and puts it behind the balancer.
func (w *world) add(name string, inside *namespace) *node {
	w.t.Helper()
	n := startNode(w.t, name, w.config(name), inside)
	w.nodes = append(w.nodes, n)
	w.enlist(n)
	return n
}

func (w *world) enlist(n *node) {
	w.visitors.set(n.name, hostPort(n.public), n.public+"/health/ready")
	w.admins.set(n.name, hostPort(n.admin), n.admin+"/health/live")
}

func (w *world) delist(n *node) {
	w.visitors.remove(n.name)
	w.admins.remove(n.name)
}

// ready waits until so many nodes take visitors.
func (w *world) ready(n int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%d nodes are ready", n), func() bool { return w.visitors.ready() == n })
}

// until waits for what happens at once on an idle machine; it prints the nodes' logs when it does not happen.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("not within %v: %s\n%s", patience, what, w.logs())
		}
	}
}

// logs are the last lines of each node.
func (w *world) logs() string {
	var b strings.Builder
	for _, n := range w.nodes {
		lines := strings.Split(strings.TrimSpace(n.text()), "\n")
		fmt.Fprintf(&b, "%s:\n%s\n", n.name, strings.Join(lines[max(0, len(lines)-25):], "\n"))
	}
	return b.String()
}

// state is what each node says of the rooms and of the others.
func (w *world) state() string {
	var b strings.Builder
	for _, n := range w.nodes {
		for _, path := range []string{"/admin/v1/rooms", "/admin/v1/nodes"} {
			code, doc, err := n.api("GET", path, "")
			fmt.Fprintf(&b, "%s %s: %d %v %v\n", n.name, path, code, doc, err)
		}
	}
	return b.String()
}

// api calls a node's admin API.
func (n *node) api(method, path, body string) (int, map[string]any, error) {
	return call(n.admin, method, path, body)
}

func call(base, method, path, body string) (int, map[string]any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	token := adminToken
	if strings.HasPrefix(path, "/svc/") {
		token = serviceToken
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	if method == "PATCH" {
		req.Header.Set("If-Match", "*")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, nil, err
	}
	var doc map[string]any
	_ = json.Unmarshal(b, &doc)
	return res.StatusCode, doc, nil
}

// crowd is a run of usher bench against the world.
func (w *world) crowd(room, transport string, visitors int, ramp, stay time.Duration) loadtest.Config {
	return loadtest.Config{
		URL: w.visitors.url(), Room: room, Visitors: visitors, Ramp: ramp, Stay: stay, Transport: transport, Refresh: 0.05,
		Timeout: 15 * time.Second, Patience: 3 * time.Minute, Connections: 300, // each takes three files here, beside the sockets
		Admin: w.admins.url(), AdminToken: adminToken,
	}
}

// counts are the numbers that must be 0.
type counts struct {
	overLimit, admittedTwice, inversions, lostEnters, unlogged, neverHeard int64

	setBack  int64 // kept ticket and pos; a place rose, or an admission was taken back
	examples []string
}

func countsOf(s *loadtest.Step) (c counts) {
	of := func(f loadtest.Fault) int64 {
		if f.Count == nil {
			c.examples = append(c.examples, f.JudgedBy)
			return -1
		}
		c.examples = append(c.examples, f.Examples...)
		return *f.Count
	}
	c.overLimit, c.admittedTwice, c.inversions = of(s.Faults.LimitOverruns), of(s.Faults.DoubleAdmissions), of(s.Faults.OrderInversions)
	c.lostEnters, c.unlogged, c.setBack = of(s.Faults.LostPlaces), of(s.Faults.UnloggedAdmissions), *s.Faults.SetBack.Count
	c.lostEnters -= c.setBack
	c.neverHeard = s.Crowd.Arrived - s.Crowd.Admitted // nobody vanishes: who came must have been told
	return c
}

// bad says whether a count that must be 0 is not. A place that rose counts in the soak alone: answers tell the time in ms,
// so of two nodes' news of one ms nobody can say which is the newer, and a busy machine makes such moments.
func (c counts) bad() bool {
	if c.setBack != 0 && os.Getenv("USHER_SOAK") == "1" {
		return true
	}
	return c.overLimit != 0 || c.admittedTwice != 0 || c.inversions != 0 || c.lostEnters != 0 || c.unlogged != 0 || c.neverHeard != 0
}

func (c counts) String() string {
	return fmt.Sprintf("over the limit %d, admitted twice %d, order inversions %d, lost answered enters %d, admissions without event %d, clients that never heard %d",
		c.overLimit, c.admittedTwice, c.inversions, c.lostEnters, c.unlogged, c.neverHeard)
}
