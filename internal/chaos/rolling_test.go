package chaos

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ushergo/usher/internal/loadtest"
	"github.com/ushergo/usher/internal/redistest"
)

// Every node is restarted, one after the other, as a new release is rolled out, while a crowd holds sockets open: nobody
// loses a place, everybody is told.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes half a minute; make test runs it")
	}
	visitors, active, gap := 400, 40, time.Second
	if os.Getenv("USHER_SOAK") == "1" {
		visitors, active, gap = 5000, 200, 5*time.Second
	}
	w := newWorld(t, fmt.Sprintf("- {id: premiere, capacity: {active: %d}}", active))
	w.redis = redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec")
	w.engine = fmt.Sprintf("{kind: redis, addrs: ['%s'], dial_timeout: 1s}", w.redis.Addr)
	for _, name := range []string{"a", "b", "c"} {
		w.add(name, nil)
	}
	w.ready(3)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	report := make(chan *loadtest.Report, 1)
	go func() {
		r, err := loadtest.Run(ctx, w.crowd("premiere", "ws", visitors, 3*time.Second, 1500*time.Millisecond))
		if err != nil {
			t.Error(err)
		}
		report <- r
	}()
	w.until("the crowd is there", func() bool {
		code, doc, err := w.nodes[0].api("GET", "/admin/v1/rooms/premiere", "")
		waiting, _ := doc["waiting"].(float64)
		return err == nil && code == 200 && waiting > float64(visitors)/3
	})
	for _, n := range w.nodes {
		time.Sleep(gap) // not to wait for anything: the crowd goes on
		began := time.Now()
		n.stop()
		if code := n.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("%s ended with %d:\n%s", n.name, code, n.text())
		}
		w.delist(n)
		drained := time.Since(began)
		n.start()
		w.enlist(n)
		w.ready(3)
		t.Logf("%s: drained in %.1fs, back after %.1fs", n.name, drained.Seconds(), time.Since(began).Seconds())
	}
	r := <-report
	if r == nil {
		return
	}
	s := &r.Steps[0]
	got := countsOf(s)
	cr := s.Crowd
	t.Logf("%.0f s: arrived %d, tickets %d, admitted %d, left %d; errors met: %v", s.DurationS, cr.Arrived, cr.Tickets, cr.Admitted, cr.Left, s.Errors)
	t.Logf("%v, set back %d", got, got.setBack)
	if s.Told != nil {
		t.Logf("from the admission in the log to the client that knows: p50 %.0f ms, p99 %.0f ms", s.Told.P50MS, s.Told.P99MS)
	}
	if got.bad() {
		t.Errorf("%s\n%s", strings.Join(got.examples, "\n"), w.logs())
	}
}

// What a visitor measures who waits at one node while the one before her leaves at another.
func TestToldAcrossNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("a measurement; make test runs it")
	}
	w := newWorld(t, "- {id: premiere, capacity: {active: 1}}")
	w.redis = redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec")
	w.engine = fmt.Sprintf("{kind: redis, addrs: ['%s']}", w.redis.Addr)
	a, b := w.add("a", nil), w.add("b", nil)
	const rounds = 100
	var took []time.Duration
	enter := func(n *node) string {
		code, doc, err := call(n.public, "POST", "/v1/rooms/premiere/enter", "")
		if err != nil || code/100 != 2 {
			t.Fatal(code, doc, err)
		}
		return doc["ticket"].(string)
	}
	inside := enter(a)
	for range rounds {
		next := enter(b)
		told := listen(t, b, next)
		began := time.Now()
		send(t, a, "leave", inside)
		select {
		case at := <-told:
			took = append(took, at.Sub(began))
		case <-time.After(patience):
			t.Fatalf("the next one was never told\n%s", w.logs())
		}
		inside = next
		a, b = b, a
	}
	slices.Sort(took)
	t.Logf("two nodes, %d times: from sending leave at one to the admission at a stream of the other: p50 %.1f ms, p99 %.1f ms, max %.1f ms", rounds,
		took[rounds/2].Seconds()*1000, took[rounds*99/100-1].Seconds()*1000, took[rounds-1].Seconds()*1000)
}

func send(t *testing.T, n *node, what, ticket string) {
	t.Helper()
	req, err := http.NewRequest("POST", n.public+"/v1/rooms/premiere/"+what, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Usher-Ticket", ticket)
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode/100 != 2 {
		t.Fatal(res, err)
	}
	res.Body.Close()
}

// listen opens an event stream, returns once it brings something, and gives the moment of the admission.
func listen(t *testing.T, n *node, ticket string) <-chan time.Time {
	t.Helper()
	req, err := http.NewRequest("GET", n.public+"/v1/rooms/premiere/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Usher-Ticket", ticket)
	req.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != 200 {
		t.Fatal(res, err)
	}
	told, first := make(chan time.Time, 1), make(chan struct{})
	go func() {
		defer res.Body.Close()
		opened := false
		for in := bufio.NewScanner(res.Body); in.Scan(); {
			if !opened && strings.HasPrefix(in.Text(), "data:") {
				opened = true
				close(first)
			}
			if strings.Contains(in.Text(), `"type":"admission"`) {
				told <- time.Now()
				return
			}
		}
	}()
	select {
	case <-first:
	case <-time.After(patience):
		t.Fatal("the stream brings nothing")
	}
	return told
}
